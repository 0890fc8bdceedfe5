"""The consumer's end of a running request, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType

from typing_extensions import Self

from specframe.core.errors import ClosedError
from specframe.core.generation import Generation
from specframe.core.request import Chunk, Completion


class Stream(Iterator[Chunk]):
    """Output of one request as it becomes certain. Iterating it drives the model.

    Leaving early (``close()``, the end of a ``with`` block, an exception) cancels the request; nothing is lost, because
    every chunk was committed before it was handed out.
    """

    def __init__(self, generation: Generation, owner: object) -> None:
        """Consume ``generation``; ``owner``, which closes its engine when it is collected, lives as long as this."""
        self._generation = generation
        self._owner = owner

    def __next__(self) -> Chunk:
        return next(self._generation)

    @property
    def completion(self) -> Completion | None:
        """The whole answer; None until the request is over."""
        return self._generation.result() if self._generation.done else None

    def result(self) -> Completion:
        """Run to the end and return the whole answer, chunks already taken included."""
        return self._generation.result()

    def close(self) -> None:
        """Cancel the request unless it is over. Idempotent."""
        self._generation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


class _Pump:
    """Runs one request on a thread of its own and hands its output to an event loop.

    A thread per request, not a pool: a thread waits inside the engine until its own request has output, so a pool that
    is full of waiting requests would starve the ones that have some.
    """

    def __init__(self, start: Callable[[], Generation], loop: asyncio.AbstractEventLoop) -> None:
        self.queue: asyncio.Queue[Chunk | Completion | BaseException] = asyncio.Queue()
        self.generation: Generation | None = None
        self.stopping = False
        self._start = start
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="specframe-stream")
        self._thread.start()

    def _run(self) -> None:
        try:
            generation = self.generation = self._start()
            while not self.stopping and (chunk := next(generation, None)) is not None:
                if not self._post(chunk):
                    break
            generation.cancel()
            self._post(generation.result())
        except BaseException as error:  # noqa: BLE001 -- raised again where the output is awaited
            self._post(error)

    def _post(self, item: Chunk | Completion | BaseException) -> bool:
        try:
            self._loop.call_soon_threadsafe(self.queue.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody is waiting any more
            return False
        return True

    def stop(self) -> None:
        """Ask for the end without waiting for it."""
        self.stopping = True

    async def cancel(self) -> None:
        """End the request and wait until its memory is in order."""
        self.stopping = True
        if self.generation is not None:
            # Not on the event loop: it may have to wait for the step that is running.
            await asyncio.to_thread(self.generation.cancel)
        await asyncio.to_thread(self._thread.join)


class AsyncStream(AsyncIterator[Chunk]):
    """Output of one request for ``async for``. The event loop is never blocked.

    Cancelling the task that waits for output cancels the request. Use ``async with``, or :meth:`aclose`, to leave early
    in good order.
    """

    def __init__(self, start: Callable[[], Generation]) -> None:
        self._start = start
        self._pump: _Pump | None = None
        self._end: Completion | BaseException | None = None

    async def __anext__(self) -> Chunk:
        if self._end is None:
            if self._pump is None:
                self._pump = _Pump(self._start, asyncio.get_running_loop())
            try:
                item = await self._pump.queue.get()
            except asyncio.CancelledError:
                await self.aclose()
                raise
            if isinstance(item, Chunk):
                return item
            self._end = item
            if isinstance(item, BaseException):
                raise item
        raise StopAsyncIteration

    @property
    def completion(self) -> Completion | None:
        """The whole answer; None until all of it was received."""
        return self._end if isinstance(self._end, Completion) else None

    async def result(self) -> Completion:
        """Receive everything that is left and return the whole answer."""
        async for _ in self:
            pass
        if isinstance(self._end, Completion):
            return self._end
        raise self._end or ClosedError("the stream was closed")

    async def aclose(self) -> None:
        """Cancel the request unless it is over, and wait until that is done. Idempotent."""
        pump = self._pump
        if pump is None:
            self._end = self._end or ClosedError("the stream was closed before it began")
            return
        if self._end is None:
            await pump.cancel()
            while not isinstance(item := await pump.queue.get(), Completion | BaseException):
                pass
            self._end = item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        pump = getattr(self, "_pump", None)
        if pump is not None:
            pump.stop()
