"""The engine room: types, ports, verification, transaction, engine. numpy and attrs only."""
