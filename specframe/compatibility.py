"""What a model file is, and what works with it, told from its metadata: no weights are loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe import catalogue, plugins
from specframe.backends.llama.architectures import provides, rollback_means
from specframe.backends.llama.draft_kinds import draft_kind
from specframe.backends.llama.gguf import GgufFile, LongArray, inspect, inspecting
from specframe.backends.llama.library import load_library
from specframe.backends.llama.validation import validate_target
from specframe.backends.llama.vocab_difference import vocabulary_difference
from specframe.chat import ChatTemplate, templates_of
from specframe.core.errors import ConfigError
from specframe.core.strategy import AnyStrategyClass
from specframe.llm.choosing import Choice, StrategyChooser
from specframe.plugin_info import what_it_says


@attrs.frozen
class Check:
    """One thing that was looked at."""

    subject: str
    ok: bool
    detail: str
    decides: bool = True
    """False: worth knowing, but what was asked for works without it."""


@attrs.frozen
class Report:
    """Everything that was looked at."""

    target: Path
    draft: Path | None
    strategy: str | None
    checks: tuple[Check, ...]

    @property
    def usable(self) -> bool:
        """True when nothing that decides is wrong."""
        return all(check.ok for check in self.checks if check.decides)

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {
            "target": str(self.target),
            "draft": None if self.draft is None else str(self.draft),
            "strategy": self.strategy,
            "usable": self.usable,
            "checks": [attrs.asdict(check) for check in self.checks],
        }


def check_files(
    target: str | os.PathLike[str], *, draft: str | os.PathLike[str] | None = None, strategy: str | None = None
) -> Report:
    """Say whether ``target`` can generate, and with which strategies.

    Args:
        target: A GGUF file or a name, as ``load`` takes it.
        draft: A draft model to check against it, named in the same ways.
        strategy: Only this one, as ``load`` takes it, which then has to work; otherwise all are listed.

    Raises:
        ConfigError: There is no such file, name or strategy, or it has no such option. Files that cannot be used are
            reported, not raised.
    """
    target = catalogue.resolve(target)
    draft = catalogue.resolve_draft(draft)
    return _checked(target, draft, strategy)


def _checked(target: Path, draft: Path | None, strategy: str | None) -> Report:
    wanted = _wanted(strategy, target, draft) if strategy != "auto" else []
    checks: list[Check] = []
    with inspecting(load_library()):
        try:
            file = inspect(target)
            validate_target(file)
        except ConfigError as error:
            return Report(target, draft, strategy, (Check("target", False, str(error)),))
        size = f"{file.size_bytes / 1e6:.0f} MB"
        checks += [
            Check("target", True, f"{file.arch}, {size}, {len(file.tensors)} tensors"),
            _template_check(file),
        ]
        if strategy == "auto":
            try:
                choice = StrategyChooser("auto", None, draft, target).default_choice
            except ConfigError as error:
                return Report(target, draft, strategy, (*checks, Check("strategy auto", False, str(error))))
            checks.append(Check("strategy auto", True, f"{choice.label}, {choice.reason.removeprefix('auto: ')}"))
            wanted = [] if choice.spec is None else [member.cls for member in choice.spec.members]
        if draft is not None:
            checks += _draft_checks(file, draft, wanted)
        alone = strategy is None or not any(cls.uses_draft_file for cls in wanted)
        for cls in wanted:
            given = draft if alone or cls.uses_draft_file else None
            checks.append(_strategy_check(file, cls, given, decides=strategy is not None))
        return Report(target, draft, strategy, tuple(checks))


def _wanted(strategy: str | None, target: Path, draft: Path | None) -> list[AnyStrategyClass]:
    if strategy is None:
        return [info.cls for info in plugins.registry().strategies()]
    spec = StrategyChooser(strategy, None, draft, target).default
    return [] if spec is None else [member.cls for member in spec.members]


def describe(model: str | os.PathLike[str]) -> dict[str, Any]:
    """Facts about a model file, named as ``load`` takes it, JSON-ready. Raises ConfigError when it is no GGUF file."""
    path = catalogue.resolve(model)
    with inspecting(load_library()):
        file = inspect(path)
        auto = _auto_choice(file)
    kinds: dict[str, int] = {}
    for tensor in file.tensors.values():
        kinds[tensor.kind] = kinds.get(tensor.kind, 0) + tensor.n_bytes
    return {
        "path": str(file.path),
        "parts": len(file.parts),
        "size_bytes": file.size_bytes,
        "name": file.metadata.get("general.name"),
        "architecture": file.arch,
        "draft_strategy": draft_kind(file),
        "auto_strategy": None if auto is None else auto.label,
        "auto_reason": None if auto is None else auto.reason.removeprefix("auto: "),
        "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "quantization": max(kinds, key=kinds.__getitem__, default=None),
        "layers": _plain(file.get("{arch}.block_count")),
        "nextn_layers": _plain(file.get("{arch}.nextn_predict_layers")) or 0,
        "embedding_length": _plain(file.get("{arch}.embedding_length")),
        "context_length": _plain(file.get("{arch}.context_length")),
        "vocabulary": _length(file.metadata.get("tokenizer.ggml.tokens")),
        "tokenizer": file.metadata.get("tokenizer.ggml.model"),
        "chat_templates": sorted(templates_of(file.metadata)),
        "provides": list(provides(file.arch).names),
        "rollback": [means.value for means in rollback_means(file.arch)],
        "tensors": len(file.tensors),
        "metadata": {key: _plain(value) for key, value in file.metadata.items()},
    }


def _auto_choice(file: GgufFile) -> Choice | None:
    """What ``strategy="auto"`` chooses for this target; None: it is no target."""
    try:
        validate_target(file)
    except ConfigError:
        return None
    return StrategyChooser("auto", target=file.path).default_choice


def _template_check(file: GgufFile) -> Check:
    try:
        ChatTemplate.from_metadata(file.metadata)
    except ConfigError as error:
        return Check("chat template", False, str(error), decides=False)
    return Check("chat template", True, ", ".join(sorted(templates_of(file.metadata))))


def _draft_checks(target: GgufFile, path: Path, wanted: Sequence[AnyStrategyClass]) -> Iterator[Check]:
    try:
        draft = inspect(path)
    except ConfigError as error:
        yield Check("draft", False, str(error))
        return
    if not any(cls.uses_draft_file for cls in wanted):
        names = ", ".join(cls.name for cls in wanted) or "none"
        yield Check("draft", False, f"no strategy asked for uses a draft file ({names})")
        return
    yield Check("draft", True, f"{draft.arch}, {draft.size_bytes / 1e6:.0f} MB, {len(draft.tensors)} tensors")
    difference = vocabulary_difference(target, draft)
    yield Check("draft vocabulary", difference is None, difference or "the same as the target's")


def _strategy_check(file: GgufFile, cls: AnyStrategyClass, draft: Path | None, *, decides: bool) -> Check:
    lacking = cls.needs & ~provides(file.arch)
    subject = f"strategy {cls.name}"
    if lacking:
        names = " and ".join(lacking.names)
        detail = f"needs {names} rows of the target, which llama.cpp does not hand out for {file.arch} models"
        return Check(subject, False, detail, decides)
    if draft is not None and not cls.uses_draft_file:
        detail = "uses no draft file, but one was given" if decides else "without the draft file, which it does not use"
        return Check(subject, not decides, detail, decides)
    try:
        cls.check_files(file.path, draft)
    except Exception as error:  # noqa: BLE001 -- foreign code: what it raises is an answer, too
        return Check(subject, False, what_it_says(error).removeprefix(f"strategy {cls.name!r} "), decides)
    return Check(
        subject, True, "needs nothing but tokens" if not cls.needs else "the target provides what it needs", decides
    )


def _length(value: object) -> int | None:
    if isinstance(value, LongArray):
        return value.length
    return len(value) if isinstance(value, tuple) else None


def _plain(value: object) -> Any:
    if isinstance(value, LongArray):
        return f"{value.length} x {value.kind}"
    return list(value) if isinstance(value, tuple) else value
