"""``specframe generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specframe.cli.command import EXIT_INTERRUPTED, JsonFlag, command
from specframe.cli.model import ModelFlags
from specframe.cli.output import completion_document, decisions, print_json, summary
from specframe.cli.sampling import SamplingFlags
from specframe.cli.sessions import load_session, save_session
from specframe.core.errors import ConfigError

StatsFlag = Annotated[
    bool | None,
    typer.Option("--stats/--no-stats", show_default="on a terminal", help="Summary of each answer on stderr."),
]


def register(app: typer.Typer) -> None:
    """Add ``generate``."""

    @command(app, "generate")
    def generate(
        model: ModelFlags,
        sampling: SamplingFlags,
        *,
        prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Text to continue.")] = None,
        prompt_file: Annotated[
            Path | None, typer.Option("--prompt-file", metavar="FILE", help="Take the text from a file; -: stdin.")
        ] = None,
        parse_special: Annotated[
            bool, typer.Option("--parse-special", help="Read control tokens such as <|im_start|> in the prompt.")
        ] = False,
        stats: StatsFlag = None,
        as_json: JsonFlag = False,
        verbose: int = 0,
    ) -> None:
        """Continue a text: from --prompt, --prompt-file or stdin (one line end at its end is dropped)."""
        text = read_prompt(prompt, prompt_file)
        with model.load() as llm:
            notes = load_session(llm, model.session)
            with llm.stream(text, **model.answer(sampling.params), parse_special=parse_special) as stream:
                interrupted = False
                try:
                    for chunk in stream:
                        if not as_json:
                            print(chunk.text, end="", flush=True)
                except KeyboardInterrupt:
                    # What was generated is worth as much as before; say what it is, then exit as interrupted.
                    interrupted = True
                    stream.close()
                completion = stream.result()
            save_session(llm, model.session, notes)
        if as_json:
            print_json({"model": model.model, **completion_document(completion)})
        elif not completion.text.endswith("\n"):
            print(flush=True)
        if wants_stats(stats, verbose):
            print(summary(completion), file=sys.stderr)
            if verbose and (line := decisions(completion)):
                print(line, file=sys.stderr)
        if interrupted:
            raise typer.Exit(EXIT_INTERRUPTED)


def wants_stats(flag: bool | None, verbose: int) -> bool:
    """Whether to print the summary: as asked, else with ``-v`` or on a terminal."""
    return flag if flag is not None else bool(verbose) or sys.stderr.isatty()


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the one place it was given. Raises ConfigError."""
    if prompt is not None and file is not None:
        msg = "give --prompt or --prompt-file, not both"
        raise ConfigError(msg)
    if prompt is not None:
        return prompt
    try:
        if file is not None and str(file) != "-":
            text = file.read_bytes().decode("utf-8")
        elif file is None and sys.stdin.isatty():
            msg = "no prompt: give --prompt TEXT, --prompt-file FILE, or pipe one in"
            raise ConfigError(msg)
        else:
            text = sys.stdin.buffer.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read the prompt: {error}"
        raise ConfigError(msg) from error
    # Editors and echo end files with a line end that nobody means as part of the prompt; models answer to it.
    return text.removesuffix("\n").removesuffix("\r")
