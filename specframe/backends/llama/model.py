"""A loaded model: weights, facts and vocabulary."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from specframe.backends.llama.architectures import provides
from specframe.backends.llama.closable import Closable
from specframe.backends.llama.devices import device_array, device_names
from specframe.backends.llama.gguf import GgufFile, Value, inspect
from specframe.backends.llama.kernels import repacks_steadily
from specframe.backends.llama.library import Library, load_library
from specframe.backends.llama.log import native_log
from specframe.backends.llama.status import failure
from specframe.backends.llama.validation import validate_loadable
from specframe.backends.llama.vocab import LlamaVocab
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.ports import Need
from specframe.core.validators import check_flag, check_whole_number


class Dependent(Protocol):
    """Something that must be closed before the model it uses: a context."""

    def close(self) -> None:
        """Release the native object; closing twice is allowed."""
        ...


@attrs.frozen(kw_only=True)
class ModelFacts:
    """What a model is; read once when it is loaded."""

    arch: str
    description: str
    """For people: ``llama 134M Q4_1``."""
    n_params: int
    size_bytes: int
    """Bytes of all tensors."""
    n_ctx_train: int
    n_embd: int
    n_embd_out: int
    n_layer: int
    """The trunk only, without NextN blocks."""
    n_layer_nextn: int
    """NextN blocks in the file, loaded or not."""
    n_head: int
    n_head_kv: int
    n_swa: int
    """Width of the sliding window; 0: none."""
    n_vocab: int
    rope: str
    is_recurrent: bool
    is_hybrid: bool
    is_diffusion: bool
    has_encoder: bool
    has_decoder: bool
    provides: Need
    """What it can give a strategy beyond tokens."""


class Model(Closable):
    """An open model file. Close it, or use it as a context manager.

    Contexts made from a model are closed with it, before it: the order in which an application closes things does not
    matter. Nothing is freed while the interpreter shuts down; the operating system does that better.
    """

    _handle: Any = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        library: Library | None = None,
        devices: str | Sequence[str] | None = None,
        n_gpu_layers: int | None = None,
        use_mmap: bool = True,
        use_mlock: bool = False,
        use_extra_bufts: bool | None = None,
        check_tensors: bool = False,
        load_mtp: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load a model.

        Args:
            path: a GGUF file; of a split model the first part.
            library: the native library, by default ``load_library()``.
            devices: names of those to offload to, ``"none"`` for the processor only; None: all there are.
            n_gpu_layers: layers to keep on a GPU; None: all that a GPU build can take, 0: none.
            use_mmap: map the file instead of reading it.
            use_mlock: keep the pages in memory.
            use_extra_bufts: let the CPU repack weights for faster kernels; None: where rows do not come to depend on
                how many are computed together (``kernels.repacks_steadily``).
            check_tensors: look for invalid values in every tensor; slow.
            load_mtp: load built-in NextN heads as well.
            progress: called with 0..1 while weights load. An exception stops the load and comes out of here.

        Raises:
            ConfigError: the file cannot be used, and the message quotes llama.cpp's reason; or there is no such device.
            BackendError: there is not enough memory.
        """
        for name, value in (("use_mmap", use_mmap), ("use_mlock", use_mlock), ("check_tensors", check_tensors)):
            check_flag(name, value)
        self._close_lock = threading.Lock()
        # Re-entrant: the garbage collector may release a hold at any point.
        self._hold_lock = threading.RLock()
        self._holds = 0
        self._doomed: Any = None
        self._dependents: weakref.WeakSet[Dependent] = weakref.WeakSet()
        self.library = library or load_library()
        self.gguf: GgufFile = inspect(path, library=self.library)
        validate_loadable(self.gguf)
        lib = self.library.lib
        params = lib.llama_model_default_params()
        self.devices = device_names(devices)
        """What it was told to use; None: every device."""
        offload = device_array(self.library, self.devices)
        params.devices = offload
        if n_gpu_layers is not None:
            check_whole_number("n_gpu_layers", n_gpu_layers, 0, 2**31 - 1, way_out="leave it out for all that fit")
            params.n_gpu_layers = n_gpu_layers
        params.load_mode = _load_mode(lib, use_mmap=use_mmap, use_mlock=use_mlock)
        self.use_extra_bufts = repacks_steadily(self.gguf.weights) if use_extra_bufts is None else use_extra_bufts
        """Whether weights may be repacked."""
        params.use_extra_bufts = self.use_extra_bufts
        params.check_tensors = check_tensors
        params.load_mtp = load_mtp
        self.load_mtp = load_mtp
        self.n_gpu_layers = n_gpu_layers
        self._handle = _load(self.library, self.gguf.path, params, progress)
        with self._opening():
            self.vocab = LlamaVocab(self.library, self._handle, is_open=_is_open(self))
            self.facts = _facts(self.library, self._handle, self.gguf.arch)

    @property
    def path(self) -> Path:
        """The file, or the first part of a split one."""
        return self.gguf.path

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Key-value pairs of the file; long arrays are named, not read (see ``GgufFile.array``)."""
        return self.gguf.metadata

    @property
    def handle(self) -> Any:
        """``struct llama_model *``, valid until ``close``. For the modules of this package."""
        if self._handle is None:
            raise ClosedError(f"the model {self.path.name} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._handle is None

    def adopt(self, dependent: Dependent) -> None:
        """Close ``dependent`` before this model is. It is held weakly."""
        if self._handle is None:
            raise ClosedError(f"the model {self.path.name} is closed")
        self._dependents.add(dependent)

    def hold(self) -> Callable[[], None]:
        """Keep the weights until the returned function is called, also after ``close``.

        For a context, which llama.cpp cannot free without its model, while numpy still looks into the context's logits.
        """
        with self._hold_lock:
            if self._handle is None:
                raise ClosedError(f"the model {self.path.name} is closed")
            self._holds += 1
        return self._let_go

    def _let_go(self) -> None:
        with self._hold_lock:
            self._holds -= 1
            self._free_unheld()

    def _free_unheld(self) -> None:
        if self._doomed is not None and self._holds == 0:
            doomed, self._doomed = self._doomed, None
            self.library.lib.llama_model_free(doomed)

    def close(self) -> None:
        """Close what depends on this model, then free the weights. Closing twice is allowed."""
        with self._close_lock:
            for dependent in list(self._dependents):
                dependent.close()
            with self._hold_lock:
                if self._handle is not None:
                    self._doomed, self._handle = self._handle, None
                self._free_unheld()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else "open"
        return f"<Model {self.gguf.path.name} ({state})>" if hasattr(self, "gguf") else "<Model>"


def _is_open(model: Model) -> Callable[[], bool]:
    # Weak: a vocabulary that is still referenced must not keep the weights alive.
    reference = weakref.ref(model)

    def is_open() -> bool:
        found = reference()
        return found is not None and not found.closed

    return is_open


def _load_mode(lib: Any, *, use_mmap: bool, use_mlock: bool) -> int:
    names = {
        (False, False): "LLAMA_LOAD_MODE_NONE",
        (True, False): "LLAMA_LOAD_MODE_MMAP",
        (False, True): "LLAMA_LOAD_MODE_MLOCK",
        (True, True): "LLAMA_LOAD_MODE_MMAP_MLOCK",
    }
    return int(getattr(lib, names[use_mmap, use_mlock]))


def _load(library: Library, path: Path, params: Any, progress: Callable[[float], None] | None) -> Any:
    ffi, lib = library.ffi, library.lib
    raised: list[BaseException] = []

    def report(fraction: float, _user_data: Any) -> bool:
        try:
            if progress is not None:
                progress(float(fraction))
        except BaseException as error:  # noqa: BLE001  must not travel through C; raised again below
            raised.append(error)
            return False
        return True

    callback = ffi.callback("llama_progress_callback", report)
    params.progress_callback = callback
    native_log.take()
    handle = lib.llama_model_load_from_file(os.fsencode(path), params)
    if raised:
        if handle:
            lib.llama_model_free(handle)
        raise raised[0]
    if handle:
        return handle
    reasons = native_log.take()
    if any("alloc" in line or "memory" in line for line in reasons):
        raise failure("loading the model", meaning=" | ".join(reasons), path=str(path))
    said = " | ".join(reasons) or "no reason given"
    raise ConfigError(f"{path} cannot be loaded; llama.cpp says: {said}. Check the file, or download it again.")


def _facts(library: Library, handle: Any, arch: str) -> ModelFacts:
    ffi, lib = library.ffi, library.lib
    buffer = ffi.new("char[]", 256)
    lib.llama_model_desc(handle, buffer, len(buffer))
    rope: str = ffi.string(ffi.cast("enum llama_rope_type", lib.llama_model_rope_type(handle)))
    return ModelFacts(
        arch=arch,
        description=ffi.string(buffer).decode("utf-8", "replace"),
        n_params=int(lib.llama_model_n_params(handle)),
        size_bytes=int(lib.llama_model_size(handle)),
        n_ctx_train=int(lib.llama_model_n_ctx_train(handle)),
        n_embd=int(lib.llama_model_n_embd(handle)),
        n_embd_out=int(lib.llama_model_n_embd_out(handle)),
        n_layer=int(lib.llama_model_n_layer(handle)),
        n_layer_nextn=int(lib.llama_model_n_layer_nextn(handle)),
        n_head=int(lib.llama_model_n_head(handle)),
        n_head_kv=int(lib.llama_model_n_head_kv(handle)),
        n_swa=int(lib.llama_model_n_swa(handle)),
        n_vocab=int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(handle))),
        rope=rope.removeprefix("LLAMA_ROPE_TYPE_").lower(),
        is_recurrent=bool(lib.llama_model_is_recurrent(handle)),
        is_hybrid=bool(lib.llama_model_is_hybrid(handle)),
        is_diffusion=bool(lib.llama_model_is_diffusion(handle)),
        has_encoder=bool(lib.llama_model_has_encoder(handle)),
        has_decoder=bool(lib.llama_model_has_decoder(handle)),
        provides=provides(arch),
    )
