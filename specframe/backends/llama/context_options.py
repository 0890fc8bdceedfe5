"""What a context can be asked for, checked before llama.cpp sees it: there, most mistakes end the process."""

from __future__ import annotations

import logging
import math
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from specframe.backends.llama.gguf import GgufFile
from specframe.backends.llama.threads import MAX_THREADS, default_threads
from specframe.core.errors import ConfigError
from specframe.core.names import resembling
from specframe.core.validators import flag, whole_number

if TYPE_CHECKING:
    from specframe.backends.llama.model import Model

log = logging.getLogger("specframe.llama.context")

#: ``LLAMA_MAX_SEQ``.
MAX_SEQ = 256
#: Context sizes are rounded up to this (``GGML_PAD`` in the constructor of ``llama_context``).
PADDING = 256
#: Rows of logits per sequence that are reserved when nothing is said: the longest common draft and the token before it.
ROWS_PER_SEQ = 64
_MAX_TOKENS = 2**31 - 1

#: Memory formats: name -> (bits per value, values per block).
CACHE_TYPES = MappingProxyType(
    {
        "f32": (32.0, 1),
        "f16": (16.0, 1),
        "bf16": (16.0, 1),
        "q8_0": (8.5, 32),
        "q5_1": (6.0, 32),
        "q5_0": (5.5, 32),
        "q4_1": (5.0, 32),
        "q4_0": (4.5, 32),
        "iq4_nl": (4.5, 32),
    }
)
#: Those of several values each. As values, llama.cpp reads them with flash attention only.
IN_BLOCKS = frozenset(name for name, (_, values) in CACHE_TYPES.items() if values > 1)


def _cache_type(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or value not in CACHE_TYPES:
        hint = resembling(value, CACHE_TYPES, f"there are {', '.join(CACHE_TYPES)}")
        msg = f"{field.name} {value!r} is not a memory format; {hint}"
        raise ConfigError(msg)


def _threads() -> Any:
    return attrs.field(
        default=None,
        validator=attrs.validators.optional(
            whole_number(1, MAX_THREADS, way_out="leave it out for one per physical core")
        ),
    )


@attrs.frozen(kw_only=True)
class ContextOptions:
    """Options of a :class:`~specframe.backends.llama.context.Context`; each is validated.

    Raises:
        ConfigError: names the option, its value and the way out.
    """

    n_ctx: int = attrs.field(default=4096, validator=whole_number(1, _MAX_TOKENS, way_out="4096 suits most chats"))
    """Tokens one sequence can hold."""
    n_batch: int = attrs.field(default=2048, validator=whole_number(1, _MAX_TOKENS, way_out="2048 is the default"))
    """Most tokens in one decode, over all sequences; never more than all sequences can hold."""
    n_ubatch: int = attrs.field(default=512, validator=whole_number(1, _MAX_TOKENS, way_out="512 is the default"))
    """Most tokens computed at a time; never more than ``n_batch``."""
    n_seq: int = attrs.field(default=1, validator=whole_number(1, MAX_SEQ, way_out="run further requests after these"))
    """Sequences held at once."""
    n_threads: int | None = _threads()
    """Threads of a decode of one token; None: one per physical core this process may use."""
    n_threads_batch: int | None = _threads()
    """Threads of larger decodes; None: as ``n_threads``."""
    flash_attn: bool = attrs.field(default=True, validator=flag)
    """Without it logits depend on the width of the batch, and drafting changes the text."""
    exact: bool = attrs.field(default=False, validator=flag)
    """Compute each row as if it were alone also where that takes longer: with BF16 and F32 weights."""
    type_k: str = attrs.field(default="f16", validator=_cache_type)
    """Memory format of keys; see ``CACHE_TYPES``."""
    type_v: str = attrs.field(default="f16", validator=_cache_type)
    """Memory format of values."""
    offload_kqv: bool = attrs.field(default=True, validator=flag)
    """Keep the memory on the GPU, where there is one."""
    swa_full: bool = attrs.field(default=True, validator=flag)
    """Keep what slid out of the window, so that a tail can be cut; else only checkpoints bring a sequence back."""
    kv_unified: bool = attrs.field(default=False, validator=flag)
    """One pool of cells for all sequences instead of one for each."""
    n_rs_seq: int = attrs.field(default=0, validator=whole_number(0, 2**16, way_out="use the longest draft"))
    """Recurrent states kept per sequence: tokens of a decode that can be taken back (recurrent, hybrid)."""
    checkpoint_on_device: bool = attrs.field(default=False, validator=flag)
    """Keep the checkpoint of a verification in device memory, where it costs no transfer (recurrent, hybrid)."""
    n_outputs_max: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(
            whole_number(1, _MAX_TOKENS, way_out="leave it out for 64 rows per sequence")
        ),
    )
    """Most logits rows in one decode; memory for them is reserved."""

    def __attrs_post_init__(self) -> None:
        if self.n_ctx_alloc * self.n_seq > _MAX_TOKENS:
            msg = f"n_ctx {self.n_ctx} times n_seq {self.n_seq} is more than {_MAX_TOKENS} tokens; lower one of them"
            raise ConfigError(msg)
        if self.batch < self.n_seq:
            msg = (
                f"n_batch must be at least n_seq, one token for each sequence, but it is {self.n_batch} and n_seq is "
                f"{self.n_seq}; raise n_batch to {self.n_seq} or more"
            )
            raise ConfigError(msg)
        if self.outputs < self.n_seq:
            msg = (
                f"n_outputs_max must be at least n_seq, one row for each sequence, but it is {self.n_outputs_max} and "
                f"n_seq is {self.n_seq}; raise it or leave it out"
            )
            raise ConfigError(msg)
        if self.n_outputs_max is not None and self.n_outputs_max > self.batch:
            msg = (
                f"n_outputs_max {self.n_outputs_max} is more than the {self.batch} tokens of the largest batch; "
                "lower it or raise n_batch"
            )
            raise ConfigError(msg)
        if self.n_rs_seq and self.ubatch < self.n_rs_seq + 2:
            msg = (
                f"n_rs_seq {self.n_rs_seq} needs n_ubatch and n_batch of at least {self.n_rs_seq + 2}, but a batch is "
                f"computed {self.ubatch} tokens at a time; raise them or lower n_rs_seq"
            )
            raise ConfigError(msg)
        if self.type_v in IN_BLOCKS and not self.flash_attn:
            msg = f"type_v {self.type_v!r} needs flash_attn; turn it on or use type_v 'f16'"
            raise ConfigError(msg)

    @property
    def n_ctx_alloc(self) -> int:
        """Cells that llama.cpp reserves for one sequence."""
        return math.ceil(self.n_ctx / PADDING) * PADDING

    @property
    def batch(self) -> int:
        """``n_batch`` as llama.cpp takes it: no more than fits into the memory."""
        return min(self.n_batch, self.n_ctx_alloc * self.n_seq)

    @property
    def ubatch(self) -> int:
        """``n_ubatch`` as llama.cpp takes it."""
        return min(self.n_ubatch, self.batch)

    @property
    def outputs(self) -> int:
        """Rows that are reserved."""
        return self.n_outputs_max or min(self.batch, ROWS_PER_SEQ * self.n_seq)

    def check_model(self, model: Model) -> None:
        """Check what depends on the model. Raises ConfigError where llama.cpp would abort or take all memory."""
        file = model.gguf
        if self.type_v in IN_BLOCKS and file.arch == "grok":
            msg = (
                f"type_v {self.type_v!r} needs flash attention, which llama.cpp lacks for grok models; use type_v 'f16'"
            )
            raise ConfigError(msg)
        if self.type_k != self.type_v and (file.get("{arch}.attention.key_length_mla") or file.arch == "deepseek4"):
            msg = (
                f"type_k {self.type_k!r} and type_v {self.type_v!r} must be the same for {file.arch} models, which "
                "keep keys and values in one; change one of them"
            )
            raise ConfigError(msg)
        for option, key, type_name in (("type_k", "key", self.type_k), ("type_v", "value", self.type_v)):
            block = CACHE_TYPES[type_name][1]
            for size in _head_sizes(file, key):
                if size % block:
                    msg = (
                        f"{option} {type_name!r} stores blocks of {block} values, which do not divide the attention "
                        f"heads of {file.path.name} ({size} values); use {option} 'f16'"
                    )
                    raise ConfigError(msg)
        self._check_room(model)
        if self.n_ctx > model.facts.n_ctx_train > 0:
            log.warning(
                "n_ctx %d is more than the %d tokens that %s was trained with; its text gets worse beyond them",
                self.n_ctx, model.facts.n_ctx_train, file.path.name,
            )  # fmt: skip

    def _check_room(self, model: Model) -> None:
        """The kernel promises a memory larger than the machine's, and kills once it is written to."""
        if model.library.lib.llama_supports_gpu_offload():
            return
        facts = model.facts
        sizes = [max(_head_sizes(model.gguf, kind), default=0) for kind in ("key", "value")]
        bits = sizes[0] * CACHE_TYPES[self.type_k][0] + sizes[1] * CACHE_TYPES[self.type_v][0]
        if facts.is_recurrent or facts.is_hybrid:
            return  # a part of the layers, or none, has a memory that grows
        need = self.n_ctx_alloc * self.n_seq * facts.n_layer * facts.n_head_kv * bits / 8
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
        if need > have:
            msg = (
                f"n_ctx {self.n_ctx} for {self.n_seq} sequence(s) of {model.path.name} takes {need / 2**30:.1f} GiB, "
                f"but the machine has {have / 2**30:.1f} GiB; lower n_ctx, run fewer sequences at once, "
                "or take a smaller type_k and type_v"
            )
            raise ConfigError(msg)

    def native(self, model: Model) -> Any:
        """``struct llama_context_params`` for these options."""
        lib = model.library.lib
        params = lib.llama_context_default_params()
        params.n_ctx = self.n_ctx_alloc * self.n_seq
        params.n_batch = self.batch
        params.n_ubatch = self.ubatch
        params.n_seq_max = self.n_seq
        params.n_rs_seq = self.n_rs_seq
        params.n_outputs_max = self.outputs
        threads = self.n_threads or default_threads()
        params.n_threads = threads
        params.n_threads_batch = self.n_threads_batch or threads
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if self.flash_attn else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.type_k = getattr(lib, f"GGML_TYPE_{self.type_k.upper()}")
        params.type_v = getattr(lib, f"GGML_TYPE_{self.type_v.upper()}")
        params.offload_kqv = self.offload_kqv
        params.swa_full = self.swa_full
        params.kv_unified = self.kv_unified
        params.no_perf = True
        return params


def _head_sizes(file: GgufFile, kind: str) -> set[int]:
    """Sizes of attention heads, for sliding-window layers too, as far as the file tells."""
    given = [file.get(f"{{arch}}.attention.{kind}_length{suffix}") for suffix in ("", "_swa")]
    sizes = {size for size in given if isinstance(size, int) and size > 0}
    width, heads = file.get("{arch}.embedding_length"), file.get("{arch}.attention.head_count")
    if not sizes and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        sizes = {width // heads}
    return sizes
