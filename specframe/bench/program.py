"""A whole run: what is asked for, measuring it, writing it down."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from specframe.backends.llama.audit import Audit
from specframe.backends.llama.declarations import pin
from specframe.backends.llama.gguf import inspect
from specframe.backends.llama.library import load_library
from specframe.bench import costs, drafting, html, orchestration, results, tables
from specframe.bench.comparison import gather
from specframe.bench.results import Results
from specframe.bench.runner import Plan, Progress, Run, Runner
from specframe.bench.settings import Settings
from specframe.bench.sides import OURS, SERVER, Side, why_no_server
from specframe.bench.store import Store
from specframe.bench.worker import WorkerError, run_process
from specframe.bench.workloads import Workload
from specframe.chat import ChatTemplate
from specframe.core.errors import ConfigError
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
        if unknown := [part for part in self.parts if part not in PARTS]:
            raise ConfigError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        if self.repeat < 1 or self.settings.max_tokens < 2:  # noqa: PLR2004 -- speed is measured after the first token
            raise ConfigError("measure at least 1 repetition of at least 2 tokens")
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
    _try(found, "verify", task, lambda: setattr(found, "verified", costs.verified(runner.verified(ours))))
    _try(found, "turns", task, lambda: setattr(found, "turns", costs.turns(runner.repeated("turns", ours))))
    _try(found, "audit", task, lambda: setattr(found, "audit", Audit.from_dict(runner.once("audit"))))
    _try(found, "checkpoints", task, lambda: _checkpoints(found, runner))
    progress(0, 0, "costs of specframe itself")
    if "orchestration" in task.parts:
        found.orchestration = _orchestration(task)
    if "drafting" in task.parts:
        found.drafting = [
            drafting.measure(name, length, steps=5 * task.n_steps)
            for name in drafting.STRATEGIES
            for length in drafting.LENGTHS
        ]
    found.load_after = results.load()
    return found


def _try(found: Results, part: str, task: Task, do: Callable[[], None]) -> None:
    """One part, if it is asked for; a worker that fails takes nothing else with it."""
    if part not in task.parts:
        return
    try:
        do()
    except WorkerError as error:
        found.remarks.append(f"{part}: {str(error).splitlines()[0]}")


def _checkpoints(found: Results, runner: Runner) -> None:
    found.checkpoints = costs.checkpoints(runner.once("checkpoints"))
    if not found.checkpoints:
        found.remarks.append("checkpoints: the memory of this model can be cut and needs none")


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
    settings: dict[str, Any] = {
        **attrs.asdict(task.settings),
        "library": str(load_library(task.settings.library).path),
        "specframe": importlib.metadata.version("specframe"),
        "llama.cpp": pin().tag,
        "drafts": sorted({side.draft for side in task.sides if side.draft is not None}),
        "screen": task.screen,
        "texts": {workload.name: workload.digest for workload in task.workloads},
    }
    path = None if task.directory is None else task.directory / "cases.jsonl"
    return Store(path, settings, resume=task.resume)


def _orchestration(task: Task) -> dict[str, list[orchestration.Cost]]:
    found, settings = {}, task.settings
    with tempfile.TemporaryDirectory() as directory:
        tiny = zoo.build("llama-bigram", Path(directory))
        # One thread for the tiny model: waking a second one takes longer than its work.
        for name, path, n_threads in (
            ("tiny model", tiny, 1),
            (Path(settings.model).stem, Path(settings.model), settings.n_threads),
        ):
            with orchestration.opened(path, library=settings.library, n_threads=n_threads) as bench:
                cases = orchestration.CASES if path is tiny else orchestration.REAL_CASES
                found[name] = [bench.cost(case, n_tokens=task.n_steps, repeat=task.repeat, top=12) for case in cases]
    return found


def write(found: Results, directory: Path) -> list[Path]:
    """The results as JSON, CSV, Markdown and one HTML file. Returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    contents = {
        "results.json": json.dumps(found.to_dict(), indent=1),
        "results.csv": tables.as_csv(found),
        "results.md": tables.markdown(found),
        "report.html": html.report(found),
    }
    for name, text in contents.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in contents]
