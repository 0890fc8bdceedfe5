"""Deliberately broken cores: one small change of one function each, and the tests that must notice it."""

from __future__ import annotations

import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import attrs


@attrs.frozen
class Mutant:
    """``old`` becomes ``new`` in the function ``where`` (module of the core, then qualified name)."""

    fault: str
    where: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    """Names of scenarios (see battery.py) that must fail, among others perhaps."""

    def function(self) -> FunctionType:
        """The one that is broken."""
        module_name, _, qualified = self.where.partition(":")
        module = importlib.import_module(f"specframe.core.{module_name}")
        found = functools.reduce(inspect.getattr_static, qualified.split("."), module)
        if isinstance(found, property):
            found = found.fget
        found = getattr(found, "__func__", found)
        assert isinstance(found, FunctionType), self.where
        return found

    @contextmanager
    def alive(self) -> Iterator[None]:
        """The core is broken in here; everything that holds the function sees it."""
        function = self.function()
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.where}: {self.old!r} must occur once; move the mutant with the code"
        lines = source.replace(self.old, self.new).splitlines()
        while lines[0].startswith("@"):
            del lines[0]
        made: dict[str, Any] = {}
        header = "from __future__ import annotations\n"
        exec(compile(header + "\n".join(lines), f"<mutant of {self.where}>", "exec"), function.__globals__, made)  # noqa: S102
        original, function.__code__ = function.__code__, made[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = original


MUTANTS = (
    Mutant(
        "rollback keeps one rejected token",
        "transaction:Transaction._settle",
        "keep = min(start + len(item.tokens) + item.n_matched, len(slot.tokens) - 1)",
        "keep = min(start + len(item.tokens) + item.n_matched + 1, have)",
        ("poison at every position",),
    ),
    Mutant(
        "rollback cuts one accepted token that is then decoded again",
        "transaction:Transaction._settle",
        "item.n_matched, len(slot.tokens) - 1)",
        "max(0, item.n_matched - 1), len(slot.tokens) - 1)",
        ("no token is decoded twice",),
    ),
    Mutant(
        "no rollback at all",
        "transaction:Transaction._settle",
        "if keep < have:",
        "if False:",
        ("poison at every position", "end token inside a draft"),
    ),
    Mutant(
        "memory is ahead of what is committed when the last token ends the request",
        "transaction:Transaction._settle",
        ", len(slot.tokens) - 1)",
        ", have)",
        ("chat turns after an end inside a draft",),
    ),
    Mutant(
        "pending tokens are kept wrong after a restore",
        "slot:Slot.restore",
        "self.n_past = checkpoint.n_past",
        "self.n_past = checkpoint.n_past + 1",
        ("poison at every position",),
    ),
    Mutant(
        "a bounded memory is cut deeper than it can be",
        "step:Stepper._draft_budget",
        "budget = min(budget, info.rollback_depth)",
        "budget = min(budget, info.rollback_depth + 2)",
        ("bounded memory is never cut too deep",),
    ),
    Mutant(
        "no checkpoint is taken",
        "step:Stepper._checkpoint",
        "if len(w.draft) <= depth:",
        "if True:",
        ("checkpoints only when needed",),
    ),
    Mutant(
        "checkpoints are taken whether or not a rollback could need them",
        "step:Stepper._checkpoint",
        "if len(w.draft) <= depth:",
        "if not w.draft:",
        ("checkpoints only when needed",),
    ),
    Mutant(
        "the bound of the memory is ignored",
        "transaction:Transaction._drop",
        "kind is Rollback.BOUNDED and in_bounds",
        "kind is Rollback.BOUNDED",
        ("bounded memory is never cut too deep",),
    ),
    Mutant(
        "the first token of the last decode is thought to be cuttable",
        "transaction:Transaction._drop",
        "len(item.tokens) + len(item.draft) - 1)",
        "len(item.tokens) + len(item.draft))",
        ("failing criteria on bounded memory",),
    ),
    Mutant(
        "a checkpoint of a prompt is kept after a cut below it",
        "slot:Slot.fall_back",
        "self.checkpoints[-1].n_past > n_past",
        "self.checkpoints[-1].n_past > n_past + 8",
        ("turns that depart from a prompt",),
    ),
    Mutant(
        "checkpoints of prompts are not kept where they are",
        "slot:Slot.save",
        "lasting=True",
        "lasting=False",
        ("turns that depart from a prompt",),
    ),
    Mutant(
        "a strategy that missed tokens is asked again",
        "step:Stepper._conclude",
        "if decoded and not w.processed and",
        "if False and",
        ("interrupted strategies",),
    ),
    Mutant(
        "what a strategy wants to see again is not evaluated again",
        "engine:Engine._begin_drafting",
        "slot.shrink(held)",
        "pass",
        ("strategies with a memory of their own",),
    ),
    Mutant(
        "failed decodes are not undone",
        "transaction:Transaction.__exit__",
        "self._undo(item)",
        "pass",
        ("interrupts anywhere",),
    ),
    Mutant(
        "a partly evaluated batch is taken for an untouched one",
        "transaction:Transaction._undo",
        "if held == slot.n_past and",
        "if",
        ("interrupts anywhere",),
    ),
    Mutant(
        "an interrupted reconciliation is forgotten",
        "slot:Slot.ensure_settled",
        "if self.in_flight:",
        "if False:",
        ("interrupts anywhere", "a second engine on a used target"),
    ),
    Mutant(
        "a failed rollback is ignored",
        "slot:Slot.cut",
        "self.reset()",
        "pass",
        ("refused rollbacks",),
    ),
    Mutant(
        "prefix reuse is one token too long",
        "slot:Slot.common_prefix",
        "len(prompt) - 1)",
        "len(prompt))",
        ("the same prompt again",),
    ),
    Mutant(
        "prefix reuse does not look at the tokens",
        "slot:Slot.start",
        "self.common_prefix(prompt) if",
        "min(self.n_past, len(prompt) - 1) if",
        ("prompts that share a beginning",),
    ),
    Mutant(
        "what memory holds of another prompt is kept",
        "slot:Slot.start",
        "self.shrink(self.common_prefix(prompt) if reuse else 0)",
        "pass",
        ("prompts that share a beginning",),
    ),
    Mutant(
        "reuse that was not asked for",
        "slot:Slot.start",
        "if reuse else 0",
        "if True else 0",
        ("reuse can be declined",),
    ),
    Mutant(
        "the end token does not cut the block",
        "verify:verify",
        "if active.finish is not None or not matched:",
        "if not matched:",
        ("end token inside a draft",),
    ),
    Mutant(
        "a contradicted draft goes on",
        "verify:verify",
        "if active.finish is not None or not matched:",
        "if active.finish is not None:",
        ("poison at every position",),
    ),
    Mutant(
        "the bonus token is dropped",
        "verify:verify",
        "for i in range(item.n_outputs):",
        "for i in range(len(draft) or 1):",
        ("known counters",),
    ),
    Mutant(
        "draft tokens are committed before they are verified",
        "verify:verify",
        "token = active.step(rows[first + i])",
        "token = active.step(rows[first + i]) if i >= len(draft) "
        "else (active._commit(draft[i], rows[first + i]) or draft[i])",
        ("poison at every position", "sampled and drafted"),
    ),
    Mutant(
        "all rows are judged by the last one",
        "verify:verify",
        "token = active.step(rows[first + i])",
        "token = active.step(rows[first + item.n_outputs - 1])",
        ("poison at every position", "processors and criteria"),
    ),
    Mutant(
        "rows of another sequence",
        "step:Stepper._verify",
        "verify(w.active, w, rows, offset)",
        "verify(w.active, w, rows, 0)",
        ("requests in company",),
    ),
    Mutant(
        "the sampler draws twice per token",
        "sequence:ActiveRequest.step",
        "token = sampler.sample(used)",
        "token = sampler._choose(sampler._adjust(used.astype(np.float64))) * 0 + sampler.sample(used)",
        ("sampled and drafted",),
    ),
    Mutant(
        "penalties are told of a whole block at once",
        "sequence:ActiveRequest.step",
        "sampler.accept(token)",
        "sampler._sampled = None",
        ("penalties",),
    ),
    Mutant(
        "processors see the row of another token",
        "sequence:ActiveRequest.step",
        "process(self.history, used)",
        "process(self.history[:-1], used)",
        ("processors and criteria",),
    ),
    Mutant(
        "logprobs of the processed row",
        "sequence:ActiveRequest.step",
        "self._commit(token, row)",
        "self._commit(token, used)",
        ("processors and criteria",),
    ),
    Mutant(
        "the end token is delivered as text",
        "sequence:ActiveRequest._commit",
        "if token in self._eog:",
        "if token in self._eog and self._emitted.append(token) is None:",
        ("end token inside a draft",),
    ),
    Mutant(
        "an end token that was only proposed ends the request",
        "step:Stepper._take",
        "w.parts = proposal.parts",
        "active.finish = active.finish or "
        "((__import__('specframe.core.request', fromlist=['x']).FinishReason.STOP, 'eog') "
        "if set(proposal.ids) & active._eog else None); w.parts = proposal.parts",
        ("end token only proposed",),
    ),
    Mutant(
        "stop strings are looked for after the block",
        "sequence:ActiveRequest._commit",
        "if self._stream.matched is not None:",
        "if self._stream.matched is not None and len(self._emitted) % 5 == 0:",
        ("stop string inside a draft",),
    ),
    Mutant(
        "stop strings are looked for in single tokens",
        "text:TextStream.feed",
        "text = self._held + text",
        "pass",
        ("stop string inside a draft",),
    ),
    Mutant(
        "text that only began like a stop string is lost",
        "text:TextStream.finish",
        'text, self._held = self._held, ""',
        'text, self._held = "", ""',
        ("text that began like a stop string",),
    ),
    Mutant(
        "text is handed out that a stop string takes back",
        "text:TextStream.feed",
        "keep = max(_overlap(text, s) for s in self._stops)",
        "keep = 0",
        ("stop string inside a draft",),
    ),
    Mutant(
        "the budget is checked per block",
        "sequence:ActiveRequest._commit",
        "elif stats.emitted >= self._limit:",
        "elif stats.steps >= self._limit:",
        ("token budget",),
    ),
    Mutant(
        "drafts are not clamped to the room in the context",
        "step:Stepper._draft_budget",
        "w.active.n_left - 1,",
        "10**6,",
        ("full context",),
    ),
    Mutant(
        "drafts are not clamped to the batch",
        "step:Stepper._draft_budget",
        "info.n_batch // n_sharing - len(w.tokens),",
        "10**6,",
        ("small batches",),
    ),
    Mutant(
        "drafts are not clamped to the number of logits rows",
        "step:Stepper._draft_budget",
        "self._max_outputs // n_sharing - 1,",
        "10**6,",
        ("few logits rows",),
    ),
    Mutant(
        "wide verifications round differently",
        "step:Stepper._draft_budget",
        "if info.exact_width is not None:",
        "if False:",
        ("exact width",),
    ),
    Mutant(
        "the prompt is cut elsewhere when there is a strategy",
        "step:Stepper._prefill",
        "width = n_prompt - n_past if",
        "width = n_prompt - n_past - (active.drafter is not None and n_prompt - n_past > 1) if",
        ("exact width",),
    ),
    Mutant(
        "a token outside the vocabulary is passed on",
        "proposal:Proposal.of",
        "if ids and (min(ids) < 0 or max(ids) >= n_vocab):",
        "if False:",
        ("garbage",),
    ),
    Mutant(
        "an over-long draft is not trimmed",
        "proposal:Proposal.of",
        "offered[:budget]",
        "offered",
        ("over-long drafts",),
    ),
    Mutant(
        "an exception of a strategy kills the request",
        "drafting:_guard",
        "except Exception as error:",
        "except ZeroDivisionError as error:",
        ("crashes",),
    ),
    Mutant(
        "an exception of a strategy is swallowed without a word",
        "step:Stepper._draft",
        'w.active.deactivate(f"strategy-error: {result}")',
        "pass",
        ("crashes are reported",),
    ),
    Mutant(
        "state of a strategy leaks from one request to the next",
        "drafting:_RequestDrafter.end",
        "strategy = self._live.pop(seq, None)",
        "strategy = self._live.get(seq)",
        ("strategies are closed with their request",),
    ),
    Mutant(
        "a cancelled request goes on",
        "engine:Engine._reap",
        "if active.cancelled and active.finish is None:",
        "if False:",
        ("closed generators",),
    ),
    Mutant(
        "an interrupted draw is resumed",
        "engine:Engine._settle",
        "if active.mid_token and active.error is None:",
        "if False:",
        ("interrupted draws",),
    ),
    Mutant(
        "an interrupted admission starts with the tokens of another request",
        "slot:Slot.reset",
        "self.in_flight = True",
        "self.in_flight = False",
        ("interrupted admissions",),
    ),
    Mutant(
        "a chunk is delivered twice",
        "sequence:ActiveRequest.deliver",
        "self._delivered, self._delivered_text = len(self._emitted), len(self._text)",
        "self._delivered, self._delivered_text = n, len(self._text)",
        ("streams",),
    ),
    Mutant(
        "logprobs of accepted tokens are left out",
        "sequence:ActiveRequest._commit",
        "if request.sampling.logprobs is not None:",
        "if request.sampling.logprobs is not None and len(self._emitted) % 2:",
        ("logprobs",),
    ),
    Mutant(
        "accepted tokens are counted wrong",
        "verify:verify",
        "active.stats.accepted_emitted += emitted - 1",
        "active.stats.accepted_emitted += item.n_matched",
        ("end token inside a draft",),
    ),
    Mutant(
        "a grammar's end does not end the request",
        "sequence:ActiveRequest._commit",
        "and self._sampler.finished():",
        "and False:",
        ("grammars",),
    ),
)
