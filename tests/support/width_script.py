"""Whether rows depend on how many are computed together, found out without specframe: a program of its own.

It knows llama.cpp's declarations and nothing else. Each width starts in a context of its own. Reads JSON from its input
and prints JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cffi
import numpy as np

PIECE = 512
N_CELLS = 1024
TILED = 64


class Program:
    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.ffi: Any = cffi.FFI()
        ffi = self.ffi
        for declarations in wanted["declarations"]:
            ffi.cdef(declarations)
        lib: Any = ffi.dlopen(wanted["library"])
        self.lib = lib
        self.quiet = ffi.callback("ggml_log_callback", lambda *_: None)
        lib.llama_log_set(self.quiet, ffi.NULL)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.use_extra_bufts = wanted["repack"]
        self.model = lib.llama_model_load_from_file(wanted["model"].encode(), params)
        vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(vocab)
        text = wanted["text"].encode()
        room = ffi.new("llama_token[]", len(text))
        found = list(room[0 : lib.llama_tokenize(vocab, text, len(text), room, len(text), False, False)])
        n = wanted["context"] + wanted["tail"]
        self.tokens = (found * (n // len(found) + 1))[:n]

    def rows(self, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        lib, wanted, start = self.lib, self.wanted, self.wanted["context"]
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = N_CELLS, N_CELLS, wanted["n_ubatch"], 1
        params.n_threads = params.n_threads_batch = wanted["n_threads"]
        params.flash_attn_type = int(wanted["flash_attn"])
        params.n_outputs_max = 64
        context = lib.llama_init_from_model(self.model, params)
        for at in range(0, start, PIECE):
            self.decode(context, at, min(PIECE, start - at), outputs=False)
        starts = range(start, len(self.tokens) - width + 1, width)
        rows = [self.decode(context, at, width, outputs=True) for at in starts]
        lib.llama_free(context)
        return np.concatenate(rows)

    def decode(self, context: Any, at: int, n: int, *, outputs: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
        lib, batch = self.lib, self.lib.llama_batch_init(n, 0, 1)
        scheduler = lib._ZNK13llama_context9get_schedEv(context)
        for i in range(lib.ggml_backend_sched_get_n_backends(scheduler)):
            backend = lib.ggml_backend_sched_get_backend(scheduler, i)
            if lib.ggml_backend_is_cpu(backend):
                lib.ggml_backend_cpu_set_use_ref(backend, self.wanted["reference"] and n < TILED)
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = self.tokens[at + i], at + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, outputs
        if lib.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        lib.llama_batch_free(batch)
        n_rows = n if outputs else 0
        raw = self.ffi.buffer(lib.llama_get_logits(context), n_rows * self.n_vocab * 4) if outputs else b""
        return np.frombuffer(bytes(raw), np.float32).reshape(n_rows, self.n_vocab)


def main() -> None:
    program = Program(json.load(sys.stdin))
    alone = program.rows(1)
    top = np.sort(alone, axis=1)[:, -2:]
    verdicts = []
    for width in program.wanted["widths"]:
        wide = program.rows(width)
        same = alone[: len(wide)]
        verdicts.append(
            {
                "width": width,
                "positions": len(wide),
                "exact": wide.tobytes() == same.tobytes(),
                "max_difference": float(np.abs(wide - same).max()),
                "flips": int((wide.argmax(axis=1) != same.argmax(axis=1)).sum()),
            }
        )
    print(json.dumps({"rows": verdicts, "smallest_margin": float((top[:, 1] - top[:, 0]).min())}))  # noqa: T201


if __name__ == "__main__":
    main()
