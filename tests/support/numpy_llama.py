"""The plain transformers of the zoo once more, in a page of numpy: what llama.cpp computes is compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specframe.testing.zoo.writer import gguf_package

Array = npt.NDArray[np.float64]


def tensors_of(path: Path) -> dict[str, Array]:
    """Every floating-point tensor of a GGUF file, matrices as ``(rows, columns)``."""
    return {tensor.name: np.array(tensor.data, np.float64) for tensor in gguf_package().GGUFReader(path).tensors}


def layer_inputs(path: Path, tokens: Sequence[int], *, pairs: str, n_head: int = 4) -> list[Array]:
    """Inputs of every layer of a ``llama`` or ``qwen3`` model, and what leaves the last one: ``(n, width)`` each.

    Args:
        path: of the model.
        tokens: from position 0 on.
        pairs: which dimensions of a head are rotated together: ``neighbours``, or ``halves`` (NeoX).
        n_head: number of attention heads.
    """
    weights = tensors_of(path)
    x = weights["token_embd.weight"][list(tokens)]
    inputs, layer = [x], 0
    while f"blk.{layer}.attn_norm.weight" in weights:
        prefix = f"blk.{layer}."
        own = {name[len(prefix) : -len(".weight")]: array for name, array in weights.items() if name.startswith(prefix)}
        x = x + _attention(own, _norm(x, own["attn_norm"]), n_head, pairs)
        y = _norm(x, own["ffn_norm"])
        gate = y @ own["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ own["ffn_up"].T)) @ own["ffn_down"].T
        inputs.append(x)
        layer += 1
    return inputs


def _norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * weight)


def _attention(own: Mapping[str, Array], x: Array, n_head: int, pairs: str) -> Array:
    n = len(x)
    head = own["attn_q"].shape[0] // n_head
    q, k, v = ((x @ own[name].T).reshape(n, -1, head).transpose(1, 0, 2) for name in ("attn_q", "attn_k", "attn_v"))
    if "attn_q_norm" in own:
        q, k = _norm(q, own["attn_q_norm"]), _norm(k, own["attn_k_norm"])
    k, v = (np.repeat(array, n_head // len(array), axis=0) for array in (k, v))
    scores = _rotate(q, pairs) @ _rotate(k, pairs).transpose(0, 2, 1) / np.sqrt(head)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (shares / shares.sum(axis=-1, keepdims=True)) @ v
    return np.asarray(mixed.transpose(1, 0, 2).reshape(n, -1) @ own["attn_output"].T)


def _rotate(x: Array, pairs: str) -> Array:
    _, n, head = x.shape
    half = head // 2
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(half) / half)
    first, second = (
        (slice(0, None, 2), slice(1, None, 2)) if pairs == "neighbours" else (slice(0, half), slice(half, None))
    )
    a, b, result = x[..., first], x[..., second], np.empty_like(x)
    result[..., first] = a * np.cos(angle) - b * np.sin(angle)
    result[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return result
