"""Printing: JSON documents, tables, and the summary of a request."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specframe.files import json_text

if TYPE_CHECKING:
    from specframe.core.request import Completion
    from specframe.core.stats import StrategyStats


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json_text(document))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table on stdout, as wide as the terminal."""
    from rich.console import Console  # noqa: PLC0415 -- --json and errors do without
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=None if title is None else Text(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: what a model file or a plugin says is not ours to interpret.
        table.add_row(*(Text(cell) for cell in row))
    Console(file=sys.stdout).print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """``name  value`` lines on stdout."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def completion_document(completion: Completion) -> dict[str, Any]:
    """A finished request as JSON."""
    document: dict[str, Any] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "finish_reason": completion.finish_reason.value,
        "stop_detail": completion.stop_detail,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "strategy": completion.strategy,
        "stats": completion.stats.to_dict(),
    }
    if completion.logprobs:
        document["logprobs"] = [
            {
                "token": entry.token,
                "logprob": entry.logprob,
                "top": [{"token": token, "logprob": logprob} for token, logprob in entry.top],
            }
            for entry in completion.logprobs
        ]
    return document


def summary(completion: Completion) -> str:
    """The statistics of a request in a few lines."""
    stats = completion.stats
    speed = stats.tokens_per_second
    lines = [
        f"{completion.prompt_tokens} prompt tokens ({stats.cached_tokens} from memory), "
        f"{completion.completion_tokens} generated"
        + (f" at {speed:.1f} tokens/s" if speed is not None else "")
        + (f", first after {stats.ttft_s * 1000:.0f} ms" if stats.ttft_s is not None else "")
        + f"; ended by {completion.stop_detail}"
    ]
    chosen = [f"chosen by {stats.strategy_reason}"] if stats.strategy_reason.startswith("auto") else []
    if completion.strategy == "none":
        lines += [f"plain decoding, {line}" for line in chosen]
    else:
        lines += [f"strategy {completion.strategy}: {_drafting(completion)}", *chosen]
        if len(stats.strategies) > 1 or any(own.ended for own in stats.strategies.values()):
            lines += [_share(label, own) for label, own in stats.strategies.items()]
        lines.append(f"rollback by {stats.rollback_means}: {_rollbacks(completion)}")
    return "\n".join(lines)


def _drafting(completion: Completion) -> str:
    stats = completion.stats
    if not stats.verified:
        return f"nothing drafted ({stats.inactive_reason or 'no guess was made'})"
    rate, length = stats.acceptance_rate or 0.0, stats.mean_accepted_length or 0.0
    text = (
        f"{stats.accepted} of {stats.verified} verified draft tokens accepted ({rate:.0%}), "
        f"{length:.2f} tokens per drafted step, {stats.steps} steps for {stats.emitted} tokens"
    )
    return text if stats.inactive_reason is None else f"{text}; then off: {stats.inactive_reason}"


def decisions(completion: Completion) -> str:
    """What the scheduler decided about drafts, in a line; empty for a plain request."""
    scheduler = completion.stats.scheduler
    if not scheduler.lengths:
        return ""
    drafts = sorted(length for length in scheduler.lengths if length)
    span = f" of {drafts[0]} to {drafts[-1]} tokens" if drafts else ""
    n_plain = scheduler.lengths.get(0, 0)
    text = f"scheduler: {sum(scheduler.lengths.values()) - n_plain} drafts{span} verified, {n_plain} steps without; "
    text += ", ".join(f"{reason} {n}" for reason, n in sorted(scheduler.reasons.items()))
    if scheduler.expected_plain is not None and scheduler.expected_drafted is not None:
        text += (
            f"; expected last: {scheduler.expected_plain:.1f} tokens/s plain, {scheduler.expected_drafted:.1f} drafted"
        )
    return text


def _share(label: str, own: StrategyStats) -> str:
    text = f"  {label}: {own.accepted} of {own.verified} accepted, in {own.draft_steps} steps"
    return text if own.ended is None else f"{text}; left: {own.ended}"


def _rollbacks(completion: Completion) -> str:
    stats = completion.stats
    parts = [f"{count} by {means}" for means, count in sorted(stats.rollbacks.items())] or ["none needed"]
    if stats.checkpoints:
        parts.append(f"{stats.checkpoints} checkpoints taken in {stats.seconds['checkpoint'] * 1000:.1f} ms")
    if stats.restores:
        parts.append(f"{stats.restores} restored in {stats.restore_s * 1000:.1f} ms")
    return ", ".join(parts)
