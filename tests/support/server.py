"""A program: llama.cpp's own server as a peer, in a process of its own; JSON in argv, JSON on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Printed before the answer: the server logs to stdout as well.
MARK = "\n@answer@"


def ask(
    model: Path,
    prompts: Sequence[Sequence[int]],
    settings: Sequence[dict[str, Any]],
    *,
    kind: str,
    draft: Path | None = None,
    max_tokens: int = 96,
) -> list[list[dict[str, Any]]]:
    """Greedy completions for each of ``settings``, with their texts and what the server says about its drafts.

    Args:
        model: the target.
        prompts: token ids.
        settings: ``n_max``, ``n_min``, ``p_min`` and ``backend_sampling`` of the drafts; a server for each.
        kind: name of a ``common_speculative_type`` without its prefix.
        draft: file of the draft model.
        max_tokens: of each completion.
    """
    request = {
        "model": str(model),
        "draft": None if draft is None else str(draft),
        "kind": kind,
        "prompts": [list(prompt) for prompt in prompts],
        "max_tokens": max_tokens,
    }
    program = [sys.executable, __file__, json.dumps([{**request, **each} for each in settings])]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=300)
    answers: list[list[dict[str, Any]]] = json.loads(done.stdout.rpartition(MARK)[2])
    return answers


def _serve(request: dict[str, Any]) -> list[dict[str, Any]]:
    import xllamacpp  # noqa: PLC0415 -- only in the process of its own

    params = xllamacpp.CommonParams()
    params.model.path = request["model"]
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.speculative.types = [
        getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{request['kind']}")
    ]
    drafts = params.speculative.draft
    drafts.cpuparams.n_threads = drafts.cpuparams_batch.n_threads = 1
    for name in ("n_max", "n_min", "p_min", "backend_sampling"):
        if name in request:
            setattr(drafts, name, request[name])
    if request["draft"]:
        drafts.mparams.path = request["draft"]
    else:
        params.load_mtp = True
    server = xllamacpp.Server(params)
    answers = []
    for prompt in request["prompts"]:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": request["max_tokens"],
                "temperature": 0,
                "seed": 1,
                "cache_prompt": False,
                "return_tokens": True,
            }
        )
        answers.append(json.loads(answer) if isinstance(answer, str) else answer)
    return answers


if __name__ == "__main__":
    sys.stdout.write(MARK + json.dumps([_serve(request) for request in json.loads(sys.argv[1])]))
