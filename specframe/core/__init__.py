"""The engine room: types, ports, verification, transaction, sessions. numpy and attrs only."""
