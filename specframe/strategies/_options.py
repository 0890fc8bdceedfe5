"""Options that the strategies with a draft model have in common."""

from __future__ import annotations

from typing import Any

import attrs

from specframe.core.validators import finite, whole_number

#: Most tokens that may be asked of a draft model at once.
MAX_DRAFT = 64
_unless_set = attrs.validators.optional


@attrs.frozen(kw_only=True)
class ModelOptions:
    """Options of every strategy that drafts with a model."""

    n_max: int = attrs.field(default=3, validator=whole_number(1, MAX_DRAFT), metadata={"doc": "most tokens to draft"})
    n_min: int = attrs.field(
        default=0, validator=whole_number(0, MAX_DRAFT), metadata={"doc": "drafts shorter than this are dropped"}
    )
    p_min: float = attrs.field(
        default=0.0, validator=finite(0, 1), metadata={"doc": "a draft ends before a token less probable than this"}
    )
    type_k: str = attrs.field(default="f16", metadata={"doc": "memory format of the draft's keys"})
    type_v: str = attrs.field(default="f16", metadata={"doc": "memory format of the draft's values"})
    n_ctx: int | None = attrs.field(
        default=None,
        validator=_unless_set(whole_number(1, 2**31 - 1)),
        metadata={"doc": "tokens of a sequence the draft can hold; the target's unless set"},
    )
    n_batch: int | None = attrs.field(
        default=None,
        validator=_unless_set(whole_number(1, 2**31 - 1)),
        metadata={"doc": "most tokens the draft takes in at once; as the target does unless set"},
    )
    threads: int | None = attrs.field(
        default=None, validator=_unless_set(whole_number(1, 512)), metadata={"doc": "threads; the target's unless set"}
    )
    devices: str | None = attrs.field(
        default=None,
        validator=_unless_set(attrs.validators.instance_of(str)),
        metadata={"doc": "devices of the draft file, separated by commas, or none; the target's unless set"},
    )
    n_gpu_layers: int | None = attrs.field(
        default=None,
        validator=_unless_set(whole_number(0, 2**31 - 1)),
        metadata={"doc": "layers of the draft file to keep on a GPU; all unless set"},
    )

    def __attrs_post_init__(self) -> None:
        if self.n_min > self.n_max:
            msg = f"n_min={self.n_min} would drop every draft of n_max={self.n_max} tokens; lower it"
            raise ValueError(msg)


def choosing_field() -> Any:
    """Field ``backend_sampling``, of draft models whose tokens are chosen from logits; see ``DraftSettings``."""
    return attrs.field(
        default=None,
        validator=_unless_set(attrs.validators.instance_of(bool)),
        metadata={"doc": "choose tokens inside the evaluation, without copying logits; unset: where there are GPUs"},
    )


def in_place(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Transformer of attrs fields: what a subclass redefines stays where it was, instead of moving to the end."""
    order = [field.name for base in reversed(cls.__mro__[1:]) if attrs.has(base) for field in attrs.fields(base)]
    return sorted(fields, key=lambda field: order.index(field.name) if field.name in order else len(order))
