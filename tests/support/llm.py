"""An LLM over a scripted target, with one token per printable character."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.chat import ChatTemplate
from specframe.core.sampling import SamplingParams
from specframe.core.strategy import DraftRequest, Strategy
from specframe.llm import LLM, LLMInfo
from specframe.llm.choosing import StrategyChooser
from specframe.testing import ScriptedTarget, ScriptedVocab

PIECES = tuple(bytes([c]) for c in range(32, 127))
BOS = len(PIECES)
EOS = BOS + 1
VOCAB_PIECES = (*PIECES, b"<s>", b"</s>")


class FakeTokenizer(ScriptedVocab):
    """One token per printable character; ``<s>`` is a control token."""

    def __init__(self, *, add_bos: bool = True) -> None:
        super().__init__(VOCAB_PIECES, eog=[EOS], control=[BOS])
        self.bos: int | None = BOS
        self.add_bos = add_bos

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        ids = [BOS] if add_special and self.add_bos else []
        while text:
            if parse_special and text.startswith("<s>"):
                ids.append(BOS)
                text = text[3:]
            else:
                ids.append(ord(text[0]) - 32)
                text = text[1:]
        return ids

    def tokenize_prompt(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        ids = self.tokenize(text, add_special=add_special, parse_special=parse_special)
        return ids[1:] if ids[:2] == [BOS, BOS] else ids

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        return b"".join(VOCAB_PIECES[t] if unparse_special else self.piece(t) for t in tokens)


class Repeat(Strategy):
    """Proposes the last token again."""

    name = "repeat"

    @attrs.frozen(kw_only=True)
    class Options:
        length: int = 2
        other: int = 0

    def draft(self, request: DraftRequest) -> Sequence[int]:
        return [request.history[-1]] * min(request.budget, self.options.length)


def make(
    *,
    n_seq: int = 1,
    add_bos: bool = True,
    template: str = "{% for m in messages %}[{{ m.content }}]{% endfor %}",
    strategy: Any = None,
    closed: list[str] | None = None,
    logits_fn: Callable[[Sequence[int]], Any] | None = None,
) -> LLM:
    target = ScriptedTarget(
        pieces=VOCAB_PIECES, eog=[EOS], control=[BOS], n_seq=n_seq, n_ctx=512, n_batch=64, seed=3, logits_fn=logits_fn
    )
    info = LLMInfo(
        path=Path("fake.gguf"),
        architecture="scripted",
        description="",
        n_params=0,
        size_bytes=0,
        n_vocab=len(VOCAB_PIECES),
        n_ctx=512,
        n_ctx_train=512,
        n_batch=64,
        n_seq=n_seq,
        type_k="f16",
        type_v="f16",
        rollback="truncate",
        rollback_depth=0,
        checkpoints=None,
        library="",
        chat_templates=(),
        strategy="none",
        strategy_reason="",
    )
    return LLM(
        target=target,
        tokenizer=FakeTokenizer(add_bos=add_bos),
        info=info,
        chooser=StrategyChooser(strategy),
        template=lambda: ChatTemplate(template, bos_token="<s>"),  # noqa: S106 -- a token of text
        sampling=SamplingParams(temperature=0, ignore_eos=True),
        close_model=lambda: None if closed is None else closed.append("model"),
    )
