"""``specframe chat``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specframe.cli.command import command, complain
from specframe.cli.generating import StatsFlag, wants_stats
from specframe.cli.model import ModelFlags
from specframe.cli.output import decisions, summary
from specframe.cli.sampling import SamplingFlags
from specframe.cli.sessions import load_session, save_session
from specframe.core.errors import ConfigError, RequestTooLongError

if TYPE_CHECKING:
    from specframe.core.request import Completion
    from specframe.core.sampling import SamplingParams
    from specframe.llm import LLM

_HELP = (
    "/reset  forget the conversation\n/exit   leave (as the end of input does)\n/help   this\nCtrl-C stops an answer."
)


def register(app: typer.Typer) -> None:
    """Add ``chat``."""

    @command(app, "chat")
    def chat(
        model: ModelFlags,
        sampling: SamplingFlags,
        system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
        template: Annotated[
            Path | None, typer.Option("--template", metavar="FILE", help="jinja2 chat template instead of the model's.")
        ] = None,
        stats: StatsFlag = None,
        verbose: int = 0,
    ) -> None:
        """Talk to a model. Commands: /reset, /exit, /help; Ctrl-C stops an answer. Reads lines from a pipe as well."""
        with model.load(template=template) as llm:
            conversation = Conversation(llm, sampling.params, model, system)
            conversation.resume(load_session(llm, model.session))
            llm.template  # noqa: B018 -- a missing or broken one is better known before the first message
            if sys.stdin.isatty():
                print(f"{llm.info.path.name}: {_HELP.replace(chr(10), '; ')}", file=sys.stderr)
            while (line := _read_line()) is not None:
                if not line.strip():
                    continue
                if line.startswith("/"):
                    if line.strip() in {"/exit", "/quit"}:
                        break
                    _obey(line.strip(), conversation)
                    continue
                try:
                    completion = conversation.answer(line)
                except RequestTooLongError as error:
                    complain(f"{error}. /reset starts anew")
                    continue
                if wants_stats(stats, verbose):
                    print(summary(completion), file=sys.stderr)
                    if verbose and (line := decisions(completion)):
                        print(line, file=sys.stderr)
            if conversation.has_answered:
                save_session(llm, model.session, {"messages": conversation.messages})


class Conversation:
    """The messages so far, and how they grow."""

    def __init__(self, llm: LLM, sampling: SamplingParams, flags: ModelFlags, system: str | None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._flags = flags
        self._system = system
        self.messages: list[dict[str, str]] = []
        self.has_answered = False
        self.reset()

    def resume(self, notes: Mapping[str, Any]) -> None:
        """Go on with the messages noted in a session. Raises ConfigError when their system message is another one."""
        messages = notes.get("messages")
        if not messages:
            return
        if self._system is not None and messages[0] != {"role": "system", "content": self._system}:
            msg = "--system differs from what the conversation in the session began with; leave it out"
            raise ConfigError(msg)
        if messages[0]["role"] == "system":
            self._system = messages[0]["content"]
        self.messages = messages

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def answer(self, text: str) -> Completion:
        """Print the answer to one message while it comes. Ctrl-C stops it; what was said until then stays said."""
        asked = [*self.messages, {"role": "user", "content": text}]
        with self._llm.stream_chat(asked, **self._flags.answer(self._sampling)) as stream:
            try:
                for chunk in stream:
                    print(chunk.text, end="", flush=True)
            except KeyboardInterrupt:
                stream.close()
                print(" [stopped]", end="", file=sys.stderr)
            print(flush=True)
            completion = stream.result()
        self.has_answered = True
        self.messages = [*asked, {"role": "assistant", "content": completion.text}]
        return completion


def _obey(line: str, conversation: Conversation) -> None:
    if line == "/reset":
        conversation.reset()
        print("the conversation is forgotten", file=sys.stderr)
    else:
        if line != "/help":
            complain(f"there is no command {line.partition(' ')[0]}")
        print(_HELP, file=sys.stderr)


def _read_line() -> str | None:
    """The next message; None at the end of input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415 -- gives input() a history and line editing, where there is one
    while True:
        try:
            return input("> ")
        except EOFError:
            print(flush=True)
            return None
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D to leave)", file=sys.stderr)
