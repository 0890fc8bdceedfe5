"""A whole run: what is asked for, measuring it, writing it down."""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.audit import Audit
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.library import load_library
from specframe.backends.llama.state import fingerprint
from specframe.bench import answers, drafting, html, orchestration, results, tables
from specframe.bench.comparison import gather
from specframe.bench.opened import context_options
from specframe.bench.results import Results
from specframe.bench.runner import Plan, Progress, Run, Runner
from specframe.bench.settings import Settings
from specframe.bench.sides import OURS, SERVER, Side, why_no_server
from specframe.bench.store import Store
from specframe.bench.worker import run_process
from specframe.bench.workloads import Workload
from specframe.chat import ChatTemplate
from specframe.core.errors import ConfigError, SpecframeError
from specframe.core.sampling import SamplingParams
from specframe.files import json_text, write_whole
from specframe.llm import opening
from specframe.testing import zoo
from specframe.testing.zoo.writer import gguf_package

#: What can be measured.
PARTS = ("compare", "verify", "audit", "turns", "checkpoints", "orchestration", "drafting")


@attrs.frozen(kw_only=True)
class Task:
    """What a run measures, and where it is written."""

    settings: Settings
    sides: tuple[Side, ...]
    workloads: tuple[Workload, ...]
    parts: tuple[str, ...] = ("compare",)
    repeat: int = 3
    screen: int | None = None
    n_steps: int = 400
    """Tokens and drafts that the parts about specframe's own costs measure."""
    directory: Path | None = None
    """Of the report, and of what a resumed run starts from."""
    resume: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.parts:
            raise ConfigError(f"name a part to measure; there are {', '.join(PARTS)}")
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise ConfigError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        if self.repeat < 1 or self.settings.max_tokens < 2:  # noqa: PLR2004 -- speed is measured after the first token
            raise ConfigError("measure at least 1 repetition of at least 2 tokens")
        SamplingParams(
            temperature=self.settings.temperature, seed=self.settings.seed
        )  # or it is said now what is wrong
        if "verify" in self.parts and self.settings.temperature > 0:
            raise ConfigError("only greedy answers can be verified token by token; measure with temperature 0")
        if self.settings.same_text and self.settings.temperature > 0:
            raise ConfigError("only a greedy text can be held to; measure with temperature 0, or without --same-text")
        if self.resume and self.directory is None:
            raise ConfigError("there is nothing to resume without the directory of the report (--out)")


def prepare(task: Task) -> tuple[Task, list[str]]:
    """The task as it can be done here, and remarks on what cannot.

    Without a library to use, both sides load that of the ``xllamacpp`` wheel as soon as the server takes part: anything
    else would compare builds. Without the wheel the server is left out.

    Raises:
        ConfigError: A part needs a package that is missing.
    """
    if "orchestration" in task.parts:
        gguf_package()  # writes its tiny model; better known now than after an hour of measuring
    if not any(side.engine == SERVER for side in task.sides):
        return task, []
    missing = why_no_server()
    if missing is not None:
        ours = tuple(side for side in task.sides if side.engine != SERVER)
        return attrs.evolve(task, sides=ours), [f"the server is left out: {missing}"]
    if task.settings.library is None:
        task = attrs.evolve(task, settings=attrs.evolve(task.settings, library=peer_library()))
    return task, []


def check_files(task: Task) -> None:
    """What every process would find out by itself, an hour later: whether there is a library that loads the files.

    Raises:
        ConfigError: The library, the model, a draft file or a setting cannot be used, or a strategy not with these.
    """
    settings = task.settings
    context_options(settings)
    library, model = opening.load_library(settings.library), Path(settings.model)
    for side in task.sides:
        if side.engine == OURS:
            draft = None if side.draft is None else Path(side.draft)
            opening.choose(library, model, side.strategy, side.options, draft)


def peer_library() -> str:
    """The library inside the ``xllamacpp`` wheel, which its server uses: the extension module itself."""
    files = importlib.metadata.files("xllamacpp") or []
    return next(str(file.locate()) for file in files if file.name.startswith("xllamacpp.") and file.suffix == ".so")


def measure(task: Task, *, run: Run = run_process, progress: Progress = lambda *_: None) -> Results:
    """Measure all of it.

    Raises:
        ConfigError: The directory holds measurements of something else, or a part cannot be measured with this model.
    """
    task, remarks = prepare(task)
    settings = task.settings
    found = Results(settings=settings, repeat=task.repeat, remarks=remarks)
    plan = Plan(settings=settings, sides=task.sides, prompts=_prompts(task), repeat=task.repeat, screen=task.screen)
    runner = Runner(plan, _store(task), run=run, progress=progress)
    if "compare" in task.parts:
        found.comparison = gather(runner.compare(), runner.margins)
    ours = [side for side in task.sides if side.engine == OURS and not side.from_grid]
    if "verify" in task.parts:
        found.verified = answers.verdicts(runner.verified(ours))
    if "turns" in task.parts:
        found.turns = answers.turns(runner.repeated("turns", ours))
    if "audit" in task.parts and (answer := runner.once("audit")) is not None:
        found.audit = Audit.from_dict(answer)
    if "checkpoints" in task.parts and (answer := runner.once("checkpoints")) is not None:
        found.checkpoints = answers.checkpoints(answer)
        if not answer:
            found.remarks.append("checkpoints: the memory of this model can be cut and needs none")
    found.failed_parts += runner.failures
    progress(0, 0, "costs of specframe itself")
    if "orchestration" in task.parts:
        _orchestration(found, task)
    if "drafting" in task.parts:
        found.drafting = [
            drafting.measure(name, length, steps=5 * task.n_steps)
            for name in drafting.STRATEGIES
            for length in drafting.LENGTHS
        ]
    found.load_after = results.load()
    return found


def _prompts(task: Task) -> dict[str, str]:
    """Text of each workload, with the model's own chat template where there are messages."""
    template: ChatTemplate | None = None
    if any(workload.messages for workload in task.workloads):
        try:
            # The tokenizer adds what begins a text, on all sides.
            template = ChatTemplate.from_metadata(
                inspect(Path(task.settings.model)).metadata, bos_token="", eos_token=""
            )
        except ConfigError:
            template = None  # a base model: the chat is a plain transcript
    return {workload.name: workload.text(template) for workload in task.workloads}


def _store(task: Task) -> Store:
    """Raises ConfigError when a model's file is damaged, or the directory holds measurements of something else."""
    if task.directory is None:
        return Store(None, {})
    here = results.machine()
    models = [task.settings.model, *sorted({side.draft for side in task.sides if side.draft is not None})]
    settings: dict[str, Any] = {
        **attrs.asdict(task.settings),
        "library": str(load_library(task.settings.library).path),
        "specframe": here["specframe"],
        "llama.cpp": here["llama.cpp"],
        "machine": [here["cpu"], here["cores"]],
        "files": {name: fingerprint(inspect(Path(name)).parts)[:16] for name in models},
        "screen": task.screen,
        "texts": {workload.name: workload.digest for workload in task.workloads},
    }
    return Store(task.directory / "cases.jsonl", settings, resume=task.resume)


def _orchestration(found: Results, task: Task) -> None:
    """For each of the two models what can be measured with it; after an hour of measuring nothing else may be lost."""
    settings = task.settings
    with tempfile.TemporaryDirectory() as directory:
        tiny = zoo.build("llama-bigram", Path(directory))
        # One thread for the tiny model: waking a second one takes longer than its work.
        for name, path, n_threads, cases in (
            ("tiny model", tiny, 1, orchestration.CASES),
            (Path(settings.model).stem, Path(settings.model), settings.n_threads, orchestration.REAL_CASES),
        ):
            try:
                with orchestration.opened(path, library=settings.library, n_threads=n_threads) as bench:
                    found.orchestration[name] = [
                        bench.cost(case, n_tokens=task.n_steps, repeat=task.repeat, top=12) for case in cases
                    ]
            except SpecframeError as error:
                found.failed_parts.append(f"orchestration, {name}: {error}")


def write(found: Results, directory: Path) -> list[Path]:
    """The results as JSON, CSV, Markdown and one HTML file. Returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {
        "results.json": json_text(found.to_dict()),
        "results.csv": tables.as_csv(found),
        "results.md": tables.markdown(found),
        "report.html": html.report(found),
    }
    for name, text in contents.items():
        # A file may have a name that is no text.
        write_whole(directory / name, [text.encode(errors="backslashreplace")])
    return [directory / name for name in contents]
