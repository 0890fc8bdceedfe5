"""One loaded model with an engine, as an application uses it."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import attrs
from typing_extensions import Self, Unpack

from specframe.chat import ChatTemplate, Message
from specframe.core.engine import Engine
from specframe.core.errors import ClosedError, ConfigError
from specframe.core.generation import Generation
from specframe.core.observer import Observer
from specframe.core.ports import Target, Vocab
from specframe.core.request import Completion, token_ids
from specframe.core.sampling import SamplingParams
from specframe.core.scheduler import DraftScheduler
from specframe.core.session import Session
from specframe.core.slot import PromptCheckpoints
from specframe.core.validators import check_flag
from specframe.llm.choosing import StrategyChooser
from specframe.llm.info import LLMInfo
from specframe.llm.options import (
    ChatOptions,
    GenerateOptions,
    PromptOptions,
    build_request,
    check_names,
)
from specframe.llm.streams import AsyncStream, Stream

log = logging.getLogger(__name__)


class Tokenizer(Vocab, Protocol):
    """A vocabulary that can also read text."""

    @property
    def bos(self) -> int | None:
        """Token that begins a text, if there is one."""
        ...

    @property
    def add_bos(self) -> bool:
        """True when ``tokenize`` puts ``bos`` in front by itself."""
        ...

    def tokenize(self, text: str, *, add_special: bool = ..., parse_special: bool = ...) -> list[int]:
        """Token ids of ``text``."""
        ...

    def tokenize_prompt(self, text: str, *, add_special: bool = ..., parse_special: bool = ...) -> list[int]:
        """Token ids of a whole prompt, with exactly one ``bos`` where the model wants one."""
        ...

    def detokenize(self, tokens: Sequence[int], *, remove_special: bool = ..., unparse_special: bool = ...) -> bytes:
        """Bytes of a whole text."""
        ...


@attrs.define(eq=False)
class _Parts:
    """What has to be closed, in this order; kept apart so that a finalizer can hold it."""

    engine: Engine
    target: Target
    close_model: Callable[[], None]
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    closed: bool = False

    def close(self) -> None:
        with self.lock:
            if self.closed:
                return
            self.closed = True
        try:
            self.engine.close()
        finally:
            try:
                self.target.close()
            finally:
                self.close_model()


_open: weakref.WeakSet[_Parts] = weakref.WeakSet()


@atexit.register
def _halt_all() -> None:
    for parts in list(_open):
        if not parts.closed:
            parts.engine.halt()


class LLM:
    """A loaded model. Made by :func:`specframe.load`; thread-safe; close it, or use it in a ``with`` block.

    Requests of several threads or tasks run together in the batches of one engine, as many as there are sequences
    (``parallel``); others wait for their turn. Each one's text is what it would be alone.

    A prompt that starts like an earlier one is evaluated from the first difference on. In a chat that means a new turn
    costs only what is new, as long as the template renders earlier turns unchanged and the text of the answer is split
    into the same tokens again; both hold for nearly all models, and where they don't the cost is time, not correctness.
    """

    def __init__(
        self,
        *,
        target: Target,
        tokenizer: Tokenizer,
        info: LLMInfo,
        chooser: StrategyChooser | None = None,
        template: Callable[[], ChatTemplate],
        sampling: SamplingParams | None = None,
        observers: Sequence[Observer] = (),
        checkpoints: PromptCheckpoints | None = None,
        scheduler: Callable[[], DraftScheduler] | None = None,
        close_model: Callable[[], None] = lambda: None,
    ) -> None:
        """Take ownership of ``target`` and of what ``close_model`` closes, and set up the strategy of all requests.

        One that was not asked for by name or with a draft file waits until a request uses it.

        Raises:
            ConfigError: the strategy cannot be set up with its options and files.
            StrategyError: its set-up failed.
        """
        self._engine = Engine(target, observers=observers, checkpoints=checkpoints, scheduler=scheduler)
        self._tokenizer = tokenizer
        self._info = info
        self._chooser = chooser or StrategyChooser()
        self._make_template = template
        self._template: ChatTemplate | None = None
        self._sampling = sampling
        self._told_bos = False
        self._parts = _Parts(self._engine, target, close_model)
        self._finalizer = weakref.finalize(self, self._parts.close)
        # At interpreter exit nothing is freed (the operating system does that), but everything comes to rest.
        self._finalizer.atexit = False
        _open.add(self._parts)
        default = self._chooser.default_choice
        if default.spec is not None and default.required:
            try:
                self._engine.prepare(default.spec)
            except BaseException:
                self.close()
                raise

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> LLMInfo:
        """What was loaded, and how it runs."""
        return self._info

    @property
    def engine(self) -> Engine:
        """The engine, for requests built by hand. Raises ClosedError after :meth:`close`."""
        self._check_open()
        return self._engine

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises ConfigError when the model has none and none was given."""
        if self._template is None:
            self._check_open()
            self._template = self._make_template()
        return self._template

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._parts.closed

    # -- text and tokens ----------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``.

        Args:
            text: Any text.
            add_special: Add the tokens the model wants around a prompt (BOS).
            parse_special: Read control tokens such as ``<|im_start|>`` as tokens instead of as text.
        """
        self._check_open()
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of ``tokens``; incomplete UTF-8 becomes U+FFFD. ``special`` spells control tokens out."""
        self._check_open()
        return self._tokenizer.detokenize(tokens, unparse_special=special).decode("utf-8", "replace")

    def render(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> str:
        """The prompt :meth:`chat` would use."""
        check_names("render", options, ChatOptions)
        return self.template.render(
            messages,
            add_generation_prompt=options.get("add_generation_prompt", True),
            tools=options.get("tools"),
            variables=options.get("template_variables"),
        )

    def encode_chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> list[int]:
        """Token ids of :meth:`render`, with exactly one BOS where the model wants one."""
        text = self.render(messages, **options)
        own_bos = bool(self.template.bos_token) and text.startswith(self.template.bos_token)
        if own_bos and self._tokenizer.add_bos and not self._told_bos:
            self._told_bos = True
            log.warning(
                "the chat template writes %s, so the one the tokenizer would add is dropped", self.template.bos_token
            )
        return self._tokenizer.tokenize_prompt(text, add_special=not own_bos, parse_special=True)

    # -- generating ---------------------------------------------------------------------------------------------------

    def generate(self, prompt: str | Sequence[int], **options: Unpack[PromptOptions]) -> Completion:
        """Continue a text (or token ids) and wait for all of it.

        Raises:
            TypeError: An unknown keyword.
            ConfigError: A value that cannot be honoured.
        """
        check_names("generate", options, PromptOptions)
        return _finish(self._start_prompt(prompt, options))

    def stream(self, prompt: str | Sequence[int], **options: Unpack[PromptOptions]) -> Stream:
        """As :meth:`generate`, handing out text as it becomes certain."""
        check_names("stream", options, PromptOptions)
        return Stream(self._start_prompt(prompt, options), self)

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Completion:
        """Answer a conversation ``[{"role": "user", "content": "..."}, ...]`` and wait for all of it."""
        check_names("chat", options, ChatOptions)
        return _finish(self._start_chat(messages, options))

    def stream_chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Stream:
        """As :meth:`chat`, handing out text as it becomes certain."""
        check_names("stream_chat", options, ChatOptions)
        return Stream(self._start_chat(messages, options), self)

    # -- asyncio ------------------------------------------------------------------------------------------------------

    async def agenerate(self, prompt: str | Sequence[int], **options: Unpack[PromptOptions]) -> Completion:
        """:meth:`generate` for asyncio. Cancelling the task cancels the request."""
        check_names("agenerate", options, PromptOptions)
        async with self.astream(prompt, **options) as stream:
            return await stream.result()

    def astream(self, prompt: str | Sequence[int], **options: Unpack[PromptOptions]) -> AsyncStream:
        """:meth:`stream` for ``async for``; the request is submitted when the first chunk is awaited."""
        check_names("astream", options, PromptOptions)
        self._check_open()
        return AsyncStream(lambda: self._start_prompt(prompt, options))

    async def achat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Completion:
        """:meth:`chat` for asyncio. Cancelling the task cancels the request."""
        check_names("achat", options, ChatOptions)
        async with self.astream_chat(messages, **options) as stream:
            return await stream.result()

    def astream_chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> AsyncStream:
        """:meth:`stream_chat` for ``async for``; the request is submitted when the first chunk is awaited."""
        check_names("astream_chat", options, ChatOptions)
        self._check_open()
        return AsyncStream(lambda: self._start_chat(messages, options))

    # -- sessions -----------------------------------------------------------------------------------------------------

    def save_session(
        self, path: str | os.PathLike[str], prompt: str | Sequence[int] | None = None, **options: Unpack[PromptOptions]
    ) -> int:
        """Write what memory holds to a file, so that another process need not evaluate it again.

        Args:
            path: The file; one that is there is replaced.
            prompt: Save this, evaluated now as far as it is not in memory yet. None: what the latest finished request
                left, its answer included.
            **options: As for :meth:`generate`; a strategy that keeps a memory of its own saves that too.

        Returns:
            The number of tokens saved.

        Raises:
            ConfigError: There is nothing to save, or no directory for the file.
            OSError: It cannot be written.
        """
        check_names("save_session", options, PromptOptions)
        self._check_open()
        ids: Sequence[int] = ()
        if prompt is not None:
            # Without its last token, whose logits are wanted next time: then also memory that cannot be cut will do.
            ids = self._ids(prompt, options)
            ids = ids[:-1] or ids
            given: Mapping[str, Any] = {**options, "max_tokens": 1}
            _finish(self._engine.submit(build_request(ids, given, self._chooser, self._sampling)))
        session = self._engine.save_session(ids)
        session.write(path)
        return len(session.tokens)

    def load_session(self, path: str | os.PathLike[str]) -> int:
        """Read a file written by :meth:`save_session`: a prompt that begins with its tokens starts from there.

        Returns:
            The number of tokens that need not be evaluated again.

        Raises:
            ConfigError: It is of another model, made with other settings, damaged, or of an unknown version.
            OSError: It cannot be read.
        """
        self._check_open()
        return self._engine.load_session(Session.read(path))

    # -- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every running request (their consumers get ClosedError) and free the model. Idempotent."""
        self._parts.close()
        self._finalizer.detach()

    async def aclose(self) -> None:
        """:meth:`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<LLM {self._info.path.name} ({'closed' if self.closed else 'open'})>"

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._parts.closed:
            msg = f"the model {self._info.path.name} is closed"
            raise ClosedError(msg)

    def _start_prompt(self, prompt: str | Sequence[int], options: PromptOptions) -> Generation:
        self._check_open()
        return self._submit(self._ids(prompt, options), options)

    def _ids(self, prompt: str | Sequence[int], options: PromptOptions) -> Sequence[int]:
        if isinstance(prompt, str):
            parse_special = options.get("parse_special", False)
            check_flag("parse_special", parse_special)
            return self._tokenizer.tokenize_prompt(prompt, parse_special=parse_special)
        if "parse_special" in options:
            msg = "parse_special has no meaning for a prompt given as token ids"
            raise ConfigError(msg)
        return token_ids(prompt)

    def _start_chat(self, messages: Sequence[Message], options: ChatOptions) -> Generation:
        self._check_open()
        return self._submit(self.encode_chat(messages, **options), options)

    def _submit(self, ids: Sequence[int], options: GenerateOptions) -> Generation:
        given: Mapping[str, Any] = {**options}
        return self._engine.submit(build_request(ids, given, self._chooser, self._sampling))


def _finish(generation: Generation) -> Completion:
    # KeyboardInterrupt included: whatever ends the wait ends the request.
    with generation:
        return generation.result()
