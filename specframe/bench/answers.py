"""What workers answered, put together: judged tokens, the second turn of a chat, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from specframe.bench.sides import Side
from specframe.bench.statistics import Summary, paired


@attrs.frozen(kw_only=True)
class TurnCost:
    """Time to first token of a second turn."""

    side: str
    shared_tokens: int
    """Tokens of the second turn's prompt that memory already held."""
    new_tokens: int
    ttft_s: Summary
    first_turn_s: Summary
    """Time to first token of the first turn, which evaluates everything."""
    ratio: Summary | None
    """Against plain decoding, in pairs; None where that was not measured."""


@attrs.frozen(kw_only=True)
class Verdict:
    """Tokens of one side on one text, judged by plain decoding."""

    side: str
    workload: str
    n_tokens: int
    margins: tuple[tuple[int, float], ...]
    """Where plain decoding would have chosen another token, and by how much."""


def verdicts(answers: Iterable[tuple[Side, str, Mapping[str, Any]]]) -> list[Verdict]:
    """From what workers answered to ``verify``."""
    return [
        Verdict(
            side=side.label,
            workload=workload,
            n_tokens=answer["n_tokens"],
            margins=tuple((at, margin) for at, margin in answer["margins"]),
        )
        for side, workload, answer in answers
    ]


def turns(answers: Iterable[tuple[Side, int, Mapping[str, Any]]]) -> list[TurnCost]:
    """One cost per side, in the order in which they come."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for side, repetition, answer in answers:
        found.setdefault(side.label, {})[repetition] = answer
    plain = found.get("plain", {})
    costs = []
    for label, runs in found.items():
        both = sorted(runs.keys() & plain.keys())
        last = runs[max(runs)]
        costs.append(
            TurnCost(
                side=label,
                shared_tokens=last["shared_tokens"],
                new_tokens=last["new_tokens"],
                ttft_s=Summary.of([run["second_s"] for run in runs.values()]),
                first_turn_s=Summary.of([run["first_s"] for run in runs.values()]),
                ratio=paired([runs[i]["second_s"] for i in both], [plain[i]["second_s"] for i in both])
                if both
                else None,
            )
        )
    return costs


@attrs.frozen(kw_only=True)
class CheckpointCost:
    """Taking and restoring one checkpoint."""

    place: str
    """``host`` or ``device``."""
    length: int
    """Tokens the sequence held."""
    n_bytes: int
    capture_ms: Summary
    restore_ms: Summary


def checkpoints(answers: Sequence[Mapping[str, Any]]) -> list[CheckpointCost]:
    """Costs from what the task ``checkpoints`` found. What was asked of a device but kept on the host is left out."""
    costs = dict[tuple[str, int], CheckpointCost]()
    for answer in answers:
        place, length = "device" if answer["on_device"] else "host", answer["length"]
        cost = CheckpointCost(
            place=place,
            length=length,
            n_bytes=answer["n_bytes"],
            capture_ms=Summary.of([seconds * 1e3 for seconds in answer["capture_s"]]),
            restore_ms=Summary.of([seconds * 1e3 for seconds in answer["restore_s"]]),
        )
        costs.setdefault((place, length), cost)
    return list(costs.values())
