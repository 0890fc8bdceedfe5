"""Output as it becomes certain: streams, threads that share an engine, asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from specframe.core.errors import ClosedError, ConfigError
from specframe.core.request import FinishReason
from tests.support.llm import Repeat, make
from tests.support.threads import at_once

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
    with make(n_seq=3) as llm:

        def work(i: int) -> str:
            return llm.generate(prompts[i], max_tokens=20, strategy=Repeat if i % 2 else "none").text

        assert at_once(work) == expected


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
