"""What a measurement of a model is kept under, for the next process that opens it in the same way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from specframe.backends.llama.model import Model
from specframe.backends.llama.processor import machine_features
from specframe.backends.llama.state import fingerprint
from specframe.backends.llama.threads import default_threads

#: Counts up when the kernels are chosen in another way: what was found before says nothing any more.
_POLICY = 3


def settings_key(model: Model, options: Mapping[str, Any]) -> str:
    """A name for everything that what batches compute and cost depends on, contexts of any length and number alike."""
    library = model.library.path.stat()
    facts = {
        "model": fingerprint(model.gguf.parts),
        "library": [str(model.library.path), library.st_size, library.st_mtime_ns],
        "machine": machine_features(),
        "threads": default_threads(),
        "offloaded": [str(model.devices), model.n_gpu_layers],
        "use_extra_bufts": model.use_extra_bufts,
        "options": {name: value for name, value in sorted(options.items()) if name not in {"n_ctx", "n_seq"}},
        "policy": _POLICY,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
