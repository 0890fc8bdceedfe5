"""The application API over a scripted target: options, streams, threads, asyncio, closing."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import specframe
from specframe.chat import ChatTemplate
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.request import FinishReason
from specframe.core.sampling import SamplingParams
from specframe.core.strategy import DraftRequest, Strategy, StrategySpec
from specframe.llm import LLM, LLMInfo, SamplingOptions, Stream
from specframe.llm.choosing import StrategyChooser
from specframe.llm.loading import context_length
from specframe.llm.options import sampling_params
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


# -- options -----------------------------------------------------------------------------------------------------------


def test_every_sampling_parameter_is_a_keyword() -> None:
    fields = {field.name for field in attrs.fields(SamplingParams)}
    assert set(SamplingOptions.__annotations__) == fields | {"present_penalty"}


def test_sampling_keywords_are_laid_over_a_base() -> None:
    base = SamplingParams(top_k=7, logit_bias={3: 1.0})
    params = sampling_params({"temperature": 0.5, "max_tokens": 3}, base)
    assert params == SamplingParams(top_k=7, temperature=0.5, logit_bias={3: 1.0})


def test_present_penalty_is_presence_penalty() -> None:
    assert sampling_params({"present_penalty": 0.5}).presence_penalty == 0.5
    with pytest.raises(ConfigError, match="another spelling"):
        sampling_params({"present_penalty": 0.5, "presence_penalty": 0.5})


@pytest.mark.parametrize("method", ["generate", "stream", "chat", "stream_chat", "astream", "astream_chat", "render"])
def test_unknown_keywords_are_refused_with_the_nearest(method: str) -> None:
    with make() as llm, pytest.raises(TypeError, match=rf"{method}\(\).*'temprature'.*'temperature'"):
        getattr(llm, method)("x", temprature=1)


@pytest.mark.parametrize("method", ["agenerate", "achat"])
def test_unknown_keywords_are_refused_in_coroutines(method: str) -> None:
    with make() as llm, pytest.raises(TypeError, match="'stopp'"):
        asyncio.run(getattr(llm, method)("x", stopp="a"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"strategy": "no-such"}, "no-such"),
        ({"options": {"n": 1}}, "are for a strategy, but"),
        ({"strategy": "none", "options": {"n": 1}}, "options"),
        ({"strategy": Repeat, "options": {"lenght": 1}}, "lenght"),
        ({"logits_processors": [1]}, "logits_processors"),
        ({"stopping_criteria": [1]}, "stopping_criteria"),
        ({"on_prompt_progress": 1}, "on_prompt_progress"),
        ({"strategy": 7}, "7 is not a subclass of specframe.Strategy"),
        ({"strategy": int}, "is not a subclass of specframe.Strategy"),
        ({"strategy": ["ngram-k", "mtp"]}, r"combined with specframe\.first_of"),
        ({"strategy": Repeat(None, None)}, "give the class Repeat"),  # type: ignore[arg-type]
        ({"reuse_prefix": "x"}, "reuse_prefix must be true or false, not 'x'"),
        ({"strategy": Repeat, "options": "length=1"}, "mapping from their names"),
        ({"strategy": Repeat, "options": {1: 1}}, "mapping from their names"),
        ({"options": []}, "mapping from their names"),
        ({"sampling": "hot"}, "sampling must be a SamplingParams"),
        ({"sampling": {}}, "sampling must be a SamplingParams"),
        ({"grammar": 7}, "grammar must be a text, not 7"),
        ({"stop": 7}, "stop must be a sequence, not 7"),
        ({"dry_sequence_breakers": ":;"}, "dry_sequence_breakers must be a sequence, not ':;'"),
        ({"dry_sequence_breakers": [7]}, "dry_sequence_breakers must be texts, not 7"),
        ({"logits_processors": None}, "logits_processors must be a sequence, not None"),
        ({"stopping_criteria": 7}, "stopping_criteria must be a sequence, not 7"),
        ({"parse_special": "yes"}, "parse_special must be true or false"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], problem: str) -> None:
    with make() as llm, pytest.raises(ConfigError, match=problem):
        llm.generate("x", **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": "search"}, "tools must be a sequence, not 'search'"),
        ({"tools": ["search"]}, "each of tools must be a mapping"),
        ({"template_variables": "thinking"}, "template variables must be a mapping"),
        ({"template_variables": {1: 2}}, "template variables must be a mapping"),
    ],
)
def test_bad_values_for_a_template_are_refused(options: dict[str, Any], problem: str) -> None:
    with make() as llm, pytest.raises(ConfigError, match=problem):
        llm.chat([{"role": "user", "content": "x"}], **options)


def test_prompts_are_text_or_token_ids() -> None:
    with make() as llm:
        by_text = llm.generate("hello", max_tokens=8)
        assert llm.generate(llm.tokenize("hello", add_special=True), max_tokens=8).tokens == by_text.tokens
        assert llm.generate(np.array([BOS, 40, 41]), max_tokens=1).prompt_tokens == 3  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a prompt is a sequence of token ids"):
            llm.generate([1.5], max_tokens=1)  # type: ignore[list-item]
        with pytest.raises(ConfigError, match="a prompt is a sequence of token ids"):
            llm.generate(b"abc", max_tokens=1)
        with pytest.raises(ConfigError, match="outside the vocabulary"):
            llm.generate([10**9], max_tokens=1)
        with pytest.raises(ConfigError, match="parse_special"):
            llm.generate([1], parse_special=True)


def test_special_tokens_in_a_prompt_are_text_unless_asked_for() -> None:
    with make(add_bos=False) as llm:
        assert llm.generate("a<s>", max_tokens=0).prompt_tokens == 4
        assert llm.generate("a<s>", max_tokens=0, parse_special=True).prompt_tokens == 2


def test_tokenize_and_detokenize() -> None:
    with make() as llm:
        assert llm.tokenize("hi", add_special=True) == [BOS, 72, 73]
        assert llm.detokenize([BOS, 72, 73]) == "hi"
        assert llm.detokenize([BOS, 72, 73], special=True) == "<s>hi"


# -- strategies --------------------------------------------------------------------------------------------------------


def test_the_strategy_is_chosen_per_request() -> None:
    with make() as llm:
        plain = llm.generate("hello", max_tokens=20)
        drafted = llm.generate("hello", max_tokens=20, strategy=Repeat, options={"length": 3})
        assert (plain.strategy, drafted.strategy) == ("none", "repeat")
        assert drafted.stats.drafted > 0
        assert plain.stats.drafted == 0
        assert plain.stats.inactive_reason is None
        assert drafted.text == plain.text


def test_request_options_are_laid_over_those_of_load() -> None:
    chooser = StrategyChooser(Repeat, {"length": 5})
    spec = chooser.choose(options={"other": 1}).spec
    assert isinstance(spec, StrategySpec)
    assert (spec.options.length, spec.options.other) == (5, 1)
    fresh = chooser.choose(Repeat, {"other": 1}).spec
    assert isinstance(fresh, StrategySpec)
    assert fresh.options.length == 2
    assert chooser.choose("none").spec is None
    assert chooser.choose(None).spec is None
    assert chooser.choose(spec).spec is spec
    again = chooser.choose(spec, {"length": 9}).spec
    assert isinstance(again, StrategySpec)
    assert (again.options.length, again.options.other) == (9, 1)


# -- chat --------------------------------------------------------------------------------------------------------------


def test_two_turns_evaluate_only_what_is_new() -> None:
    with make(template="{% for m in messages %}{{ m.content }}{% endfor %}") as llm:
        messages = [{"role": "user", "content": "Hello there"}]
        first = llm.chat(messages, max_tokens=12)
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And?"}]
        second = llm.chat(messages, max_tokens=4)
        # The last emitted token was never evaluated, so it is new together with the four of the new turn.
        assert second.stats.cached_tokens == first.prompt_tokens + first.completion_tokens - 1
        assert second.prompt_tokens - second.stats.cached_tokens == 5


@pytest.mark.parametrize(
    ("template", "add_bos"), [("{{ bos_token }}hi", True), ("{{ bos_token }}hi", False), ("hi", True)]
)
def test_exactly_one_bos(template: str, add_bos: bool, caplog: pytest.LogCaptureFixture) -> None:
    with make(template=template, add_bos=add_bos) as llm, caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert llm.encode_chat([{"role": "user", "content": "x"}]) == [BOS, 72, 73]
    dropped = [r for r in caplog.records if "dropped" in r.message]
    assert len(dropped) == (1 if template.startswith("{{") and add_bos else 0)


def test_template_options() -> None:
    template = "{{ tools[0].name }}{{ x }}{{ add_generation_prompt }}"
    with make(template=template) as llm:
        text = llm.render(
            [{"role": "user", "content": "x"}],
            tools=[{"name": "f"}],
            template_variables={"x": 1},
            add_generation_prompt=False,
        )
    assert text == "f1False"


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streamed_text_is_buffered_text() -> None:
    with make() as llm:
        whole = llm.generate("hello", max_tokens=30)
        stream = llm.stream("hello", max_tokens=30)
        assert stream.completion is None
        chunks = list(stream)
        assert "".join(c.text for c in chunks) == whole.text
        assert stream.completion is not None
        assert stream.completion.tokens == whole.tokens
        assert stream.result() == stream.completion


def test_a_closed_stream_leaves_nothing_behind() -> None:
    with make() as fresh:
        expected = fresh.generate("other", max_tokens=10).text
    with make() as llm:
        with llm.stream("hello", max_tokens=400) as stream:
            for _ in range(3):
                next(stream)
        assert stream.completion is not None
        assert stream.completion.finish_reason is FinishReason.CANCELLED
        stream.close()
        assert llm.generate("other", max_tokens=10).text == expected


def test_an_interrupt_ends_the_request_and_the_next_one_is_as_fresh() -> None:
    raised: list[int] = []

    def interrupt(history: object, logits: object) -> bool:
        if not raised:
            raised.append(1)
            raise KeyboardInterrupt
        return False

    with make() as fresh:
        expected = fresh.generate("hello", max_tokens=10).text
    with make() as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate("hello", max_tokens=10, stopping_criteria=[interrupt])
        assert llm.generate("hello", max_tokens=10).text == expected


def test_eight_threads_share_one_engine() -> None:
    prompts = [f"prompt {i}" for i in range(8)]
    with make() as alone:
        expected = [alone.generate(p, max_tokens=20).text for p in prompts]
    got: dict[int, str] = {}
    with make(n_seq=3) as llm:

        def work(i: int) -> None:
            got[i] = llm.generate(prompts[i], max_tokens=20, strategy=Repeat if i % 2 else "none").text

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert [got[i] for i in range(8)] == expected


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_async_calls_give_the_same_text() -> None:
    async def main() -> tuple[str, str, str, list[str]]:
        async with make(n_seq=2) as llm:
            one = await llm.agenerate("hello", max_tokens=20)
            stream = llm.astream("hello", max_tokens=20)
            pieces = [chunk.text async for chunk in stream]
            assert stream.completion is not None
            chat = await llm.achat([{"role": "user", "content": "hello"}], max_tokens=5)
            many = await asyncio.gather(*(llm.agenerate(f"p{i}", max_tokens=10) for i in range(6)))
            return one.text, "".join(pieces), chat.text, [m.text for m in many]

    one, streamed, chat, many = asyncio.run(main())
    with make() as llm:
        assert one == streamed == llm.generate("hello", max_tokens=20).text
        assert chat == llm.chat([{"role": "user", "content": "hello"}], max_tokens=5).text
        assert many == [llm.generate(f"p{i}", max_tokens=10).text for i in range(6)]


def test_cancelling_the_task_cancels_the_request() -> None:
    entered = threading.Event()
    leave = threading.Event()

    def hold(history: object, logits: object) -> bool:
        entered.set()
        leave.wait(300)
        return False

    async def main() -> None:
        async with make() as llm:
            task = asyncio.create_task(llm.agenerate("hello", max_tokens=400, stopping_criteria=[hold]))
            # The loop is free while the engine computes, or this would never come back.
            assert await asyncio.to_thread(entered.wait, 300)
            task.cancel()
            await asyncio.sleep(0.01)
            leave.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not [t for t in threading.enumerate() if t.name == "specframe-stream"]
            assert not llm.engine.step(), "the engine is still running something"
            assert (await llm.agenerate("hello", max_tokens=5)).completion_tokens == 5

    asyncio.run(main())


def test_leaving_an_async_stream_early() -> None:
    async def main() -> None:
        async with make() as llm:
            async with llm.astream_chat([{"role": "user", "content": "x"}], max_tokens=400) as stream:
                async for _ in stream:
                    break
            assert stream.completion is not None
            assert stream.completion.finish_reason is FinishReason.CANCELLED
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()
            unused = llm.astream("x")
            await unused.aclose()
            with pytest.raises(ClosedError):
                await unused.result()

    asyncio.run(main())


def test_an_abandoned_async_stream_stops_by_itself() -> None:
    async def main() -> None:
        async with make() as llm:
            stream = llm.astream("hello", max_tokens=490)
            await stream.__anext__()
            del stream
            gc.collect()
            assert (await llm.agenerate("hello", max_tokens=3)).completion_tokens == 3

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if t.name == "specframe-stream"]


def test_errors_arrive_where_the_output_is_awaited() -> None:
    async def main() -> None:
        async with make() as llm:
            with pytest.raises(ConfigError, match="outside the vocabulary"):
                await llm.agenerate([10**9])

    asyncio.run(main())


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closing_twice_and_using_it_afterwards() -> None:
    closed: list[str] = []
    llm = make(closed=closed)
    stream = llm.stream("hello", max_tokens=100)
    next(stream)
    llm.close()
    llm.close()
    assert closed == ["model"]
    assert llm.closed
    with pytest.raises(ClosedError):
        stream.result()
    for call in (llm.generate, llm.stream, llm.tokenize, llm.astream):
        with pytest.raises(ClosedError):
            call("x")
    with pytest.raises(ClosedError):
        llm.engine  # noqa: B018 -- a property
    with pytest.raises(ClosedError), llm:
        pass


def test_a_forgotten_model_is_closed_when_collected() -> None:
    closed: list[str] = []
    llm = make(closed=closed)
    del llm
    gc.collect()
    assert closed == ["model"]


@pytest.mark.parametrize(
    "start",
    [
        lambda llm: llm.stream("hello", max_tokens=8),
        lambda llm: llm.stream_chat([{"role": "user", "content": "hello"}], max_tokens=8),
    ],
)
def test_a_stream_keeps_its_model_open(start: Callable[[LLM], Stream]) -> None:
    closed: list[str] = []
    stream = start(make(closed=closed))
    gc.collect()
    assert closed == []
    assert "".join(chunk.text for chunk in stream) == stream.result().text != ""
    del stream
    gc.collect()
    assert closed == ["model"]


# -- loading -----------------------------------------------------------------------------------------------------------


def test_context_lengths(caplog: pytest.LogCaptureFixture) -> None:
    assert context_length(None, 2048) == 2048
    assert context_length(None, 32768) == 4096
    assert context_length(None, 0) == 4096
    assert context_length(100, 2048) == 100
    assert not caplog.records
    assert context_length(4096, 2048) == 2048
    assert "more than the 2048 tokens" in caplog.text
    for value in (0, "x", 1.5, True):
        with pytest.raises(ConfigError, match=f"n_ctx must be a whole number .* not {value!r}"):
            context_length(value, 2048)  # type: ignore[arg-type]


def test_load_checks_before_it_opens(tmp_path: Path, zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError):
        specframe.load(tmp_path / "missing.gguf")
    model = zoo("llama")
    for missing in (str(tmp_path / "missing"), ""):
        with pytest.raises(ConfigError, match=f"no draft file '{missing}'"):
            specframe.load(model, draft=missing)
    with pytest.raises(ConfigError, match="is a directory"):
        specframe.load(model, draft=tmp_path)
    with pytest.raises(ConfigError, match="observers must be a sequence, not 3"):
        specframe.load(model, observers=3)  # type: ignore[arg-type]
    draft = tmp_path / "d.gguf"
    draft.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="does not use a draft file"):
        specframe.load(model, strategy="ngram-k", draft=draft)
    with pytest.raises(ConfigError, match="ngram-k"):
        specframe.load(model, strategy="ngramk")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_batch", None),
        ("n_ubatch", 0),
        ("parallel", 0),
        ("parallel", 257),
        ("parallel", True),
        ("threads", 513),
        ("ctx_checkpoints", -1),
        ("checkpoint_interval", 0),
        ("checkpoint_mib", -1),
        ("checkpoint_mib", 1.5),
        ("flash_attn", 1),
        ("checkpoint_on_device", "yes"),
        ("numerics", "best"),
    ],
)
def test_load_names_its_argument_before_it_looks_for_the_model(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be .* not {value!r}"):
        specframe.load(tmp_path / "missing.gguf", **{name: value})


def test_load_wants_a_token_of_a_batch_for_each_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"n_batch \(2\) must be at least parallel \(3\)"):
        specframe.load(tmp_path / "missing.gguf", n_batch=2, parallel=3)


# -- the package -------------------------------------------------------------------------------------------------------


def test_every_public_name_exists() -> None:
    for name in specframe.__all__:
        assert getattr(specframe, name) is not None
    assert set(specframe.__all__) <= set(dir(specframe))
    with pytest.raises(AttributeError):
        specframe.nothing  # noqa: B018 -- an attribute
