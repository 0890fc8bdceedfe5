"""Does a backend keep the contract of :class:`specframe.core.ports.Target`?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import attrs
import numpy as np

from specframe.core.errors import BackendError, ConfigError, RollbackError
from specframe.core.ports import BatchEntry, Decoded, Logits, Need, Rollback, Target
from specframe.core.sampling import SamplingParams
from specframe.testing.errors import ContractError


@attrs.frozen
class BackendReport:
    """What :func:`check_backend` looked at."""

    checks: tuple[str, ...]
    """Names of the rules that were checked, all of which hold."""


def check_backend(
    make_target: Callable[[], Target], *, tokens: Sequence[int] = (1, 2, 3, 4, 5, 6), atol: float = 0.0
) -> BackendReport:
    """Run every rule of the contract against targets made by ``make_target``.

    Args:
        make_target: Opens a target with empty memory; called once per rule. It needs ``n_batch`` of at least 6 and
            room for at least 12 tokens.
        tokens: At least six ordinary token ids to evaluate.
        atol: How far logits of the same context may differ when it was evaluated in batches of another shape.

    Raises:
        ContractError: A rule is broken; the message names it.
    """
    done: list[str] = []
    for rule in _RULES:
        name = rule.__name__.strip("_").replace("_", " ")
        target = make_target()
        try:
            rule(_Bench(target, tuple(tokens), atol))
        except ContractError as error:
            raise ContractError(f"{name}: {error}") from error
        except Exception as error:
            raise ContractError(f"{name}: the target raised {type(error).__name__}: {error}") from error
        finally:
            target.close()
        done.append(name)
    return BackendReport(tuple(done))


@attrs.frozen
class _Bench:
    """A target under test, with the small operations all rules are made of."""

    target: Target
    tokens: tuple[int, ...]
    atol: float

    def run(self, tokens: Sequence[int], *, seq: int = 0, n_outputs: int | None = None) -> Logits:
        """Evaluate ``tokens`` after what ``seq`` holds; returns a copy of the rows."""
        n_outputs = len(tokens) if n_outputs is None else n_outputs
        self.target.decode([BatchEntry(seq, self.target.n_past(seq), tokens, n_outputs)])
        return np.array(self.target.logits())

    def fresh(self, tokens: Sequence[int], *, seq: int = 0) -> Logits:
        """The last row of ``tokens`` on cleared memory."""
        self.target.clear(seq)
        row: Logits = self.run(tokens, seq=seq, n_outputs=1)[0]
        return row

    def same(self, a: Logits, b: Logits, what: str) -> None:
        gap = float(np.max(np.abs(a - b))) if a.size else 0.0
        require(a.shape == b.shape and gap <= self.atol, f"{what}: logits differ by {gap:g}")

    def holds(self, n_past: int, what: str, *, seq: int = 0) -> None:
        held = self.target.n_past(seq)
        require(held == n_past, f"{what}: n_past is {held} instead of {n_past}")


def require(holds: bool, message: str) -> None:
    """Raise ContractError with ``message`` unless ``holds``."""
    if not holds:
        raise ContractError(message)


@contextmanager
def refuses(error: type[Exception], what: str) -> Iterator[None]:
    """The block must raise ``error``."""
    try:
        yield
    except error:
        return
    except Exception as other:
        raise ContractError(f"{what} raised {type(other).__name__} instead of {error.__name__}: {other}") from other
    raise ContractError(f"{what} must raise {error.__name__}")


def _facts_agree(b: _Bench) -> None:
    info, vocab = b.target.info, b.target.vocab
    require(isinstance(b.target, Target), "the object lacks methods of Target")
    require(info.n_vocab == vocab.n_tokens, f"info.n_vocab {info.n_vocab} is not vocab.n_tokens {vocab.n_tokens}")
    require(min(info.n_ctx, info.n_batch, info.n_seq, info.max_outputs) >= 1, f"a size in {info} is below 1")
    require(all(0 <= t < info.n_vocab for t in vocab.eog), "an end-of-generation token is outside the vocabulary")
    for token in islice(range(info.n_vocab), 512):
        require(isinstance(vocab.piece(token), bytes), f"piece({token}) is not bytes")


def _rows_are_float32_and_stay_read_only(b: _Bench) -> None:
    b.target.decode([BatchEntry(0, 0, b.tokens[:3], 2)])
    rows = b.target.logits()
    require(rows.shape == (2, b.target.info.n_vocab), f"shape is {rows.shape}")
    require(rows.dtype == np.float32, f"dtype is {rows.dtype}")
    require(not rows.flags.writeable, "rows can be written")
    with refuses(ValueError, "making the rows writable"):
        rows.setflags(write=True)
    b.same(rows.copy(), b.target.logits().copy(), "asking twice")


def _memory_counts_what_was_decoded(b: _Bench) -> None:
    b.holds(0, "new target")
    b.run(b.tokens[:3])
    b.holds(3, "after three tokens")
    b.run(b.tokens[3:4])
    b.holds(4, "after one more")


def _chunks_do_not_matter(b: _Bench) -> None:
    whole = b.run(b.tokens[:5])
    b.target.clear(0)
    one_by_one = np.concatenate([b.run(b.tokens[i : i + 1]) for i in range(5)])
    b.same(whole, one_by_one, "five tokens at once and one by one")
    b.target.clear(0)
    b.run(b.tokens[:2], n_outputs=0)
    b.same(whole[3:], b.run(b.tokens[2:5], n_outputs=2), "the last two rows of the second chunk")


def _context_matters(b: _Bench) -> None:
    mine, other = b.fresh(b.tokens[:3]), b.fresh((b.tokens[1], b.tokens[1], b.tokens[2]))
    require(not np.array_equal(mine, other), "another first token gives the same logits")


def _sequences_are_independent(b: _Bench) -> None:
    n_seq = min(b.target.info.n_seq, b.target.info.n_batch // 2, b.target.info.max_outputs, 3)
    texts = [tuple(islice(cycle(b.tokens[i:]), 2)) for i in range(n_seq)]
    lonely = [b.fresh(text) for text in texts]
    b.target.clear(0)
    b.target.decode([BatchEntry(seq, 0, text, 1) for seq, text in enumerate(texts)])
    rows = b.target.logits().copy()
    require(len(rows) == n_seq, f"{len(rows)} rows for {n_seq} sequences with one output each")
    for seq in range(n_seq):
        b.same(lonely[seq], rows[seq], f"sequence {seq} of {n_seq} in one batch")
    b.target.clear(0)
    for seq in range(1, n_seq):
        b.holds(2, "clearing another sequence", seq=seq)


def _bad_batches_are_refused_and_change_nothing(b: _Bench) -> None:
    info, ok = b.target.info, b.tokens[0]
    b.run(b.tokens[:2])
    many = list(islice(cycle(b.tokens), info.n_batch + 1))
    bad = {
        "an empty batch": [],
        "an entry without tokens": [BatchEntry(0, 2, (), 0)],
        "a gap in positions": [BatchEntry(0, 3, (ok,), 1)],
        "a position twice": [BatchEntry(0, 1, (ok,), 1)],
        "a negative token": [BatchEntry(0, 2, (-1,), 1)],
        "a token beyond the vocabulary": [BatchEntry(0, 2, (info.n_vocab,), 1)],
        "an unknown sequence": [BatchEntry(info.n_seq, 0, (ok,), 1)],
        "a negative sequence": [BatchEntry(-1, 0, (ok,), 1)],
        "a sequence twice": [BatchEntry(0, 2, (ok,), 1), BatchEntry(0, 3, (ok,), 1)],
        "more than n_batch tokens": [BatchEntry(0, 2, many, 1)],
        "more rows than tokens": [BatchEntry(0, 2, (ok,), 2)],
        "a negative number of rows": [BatchEntry(0, 2, (ok,), -1)],
    }
    if info.max_outputs < info.n_batch:
        bad["too many rows"] = [BatchEntry(0, 2, many[: info.max_outputs + 1], info.max_outputs + 1)]
    for what, batch in bad.items():
        with refuses(ConfigError, what):
            b.target.decode(batch)
        b.holds(2, f"after {what} was refused")
    expected = b.run(b.tokens[2:3])[0]
    b.same(expected, b.fresh(b.tokens[:3]), "the next decode")


def _a_full_context_is_refused(b: _Bench) -> None:
    info = b.target.info
    left = info.n_ctx
    while left:
        n = min(left, info.n_batch)
        b.run(list(islice(cycle(b.tokens), n)), n_outputs=1)
        left -= n
    with refuses(ConfigError, "a token beyond n_ctx"):
        b.target.decode([BatchEntry(0, info.n_ctx, b.tokens[:1], 1)])
    b.holds(info.n_ctx, "after it was refused")


def _impossible_cuts_change_nothing(b: _Bench) -> None:
    b.run(b.tokens[:3])
    with refuses(RollbackError, "truncating to more than memory holds"):
        b.target.truncate(0, 4)
    b.holds(3, "after it was refused")
    b.target.truncate(0, 3)
    b.holds(3, "cutting nothing")
    kind = b.target.info.rollback
    if kind is Rollback.SNAPSHOT:
        with refuses(RollbackError, "cutting memory that can only be restored"):
            b.target.truncate(0, 2)
    elif kind is Rollback.BOUNDED:
        # The rows of one-token decodes are no snapshots of each other, however deep the rollback is.
        for token in b.tokens[3:5]:
            b.run([token])
        with refuses(RollbackError, "cutting a token of a one-token decode"):
            b.target.truncate(0, 4)
    held = b.target.n_past(0)
    b.same(b.run(b.tokens[5:6])[0], b.fresh((*b.tokens[:held], b.tokens[5])), "the decode after refused cuts")


def _possible_cuts_leave_the_prefix(b: _Bench) -> None:
    info = b.target.info
    if info.rollback is Rollback.SNAPSHOT:
        return
    deepest = 3 if info.rollback is Rollback.TRUNCATE else min(3, info.rollback_depth)
    for n_cut in range(1, deepest + 1):
        b.target.clear(0)
        b.run(b.tokens[:1])
        b.run(b.tokens[1:5], n_outputs=1)
        b.target.truncate(0, 5 - n_cut)
        b.holds(5 - n_cut, f"cutting {n_cut}")
        if info.rollback is Rollback.BOUNDED:
            with refuses(RollbackError, "a second cut without a decode between"):
                b.target.truncate(0, 5 - n_cut - 1)
        after = b.run(b.tokens[5:6])[0]
        b.same(after, b.fresh((*b.tokens[: 5 - n_cut], b.tokens[5])), f"the decode after cutting {n_cut}")


def _a_checkpoint_brings_memory_back(b: _Bench) -> None:
    if not b.target.info.checkpoints:
        require(b.target.info.rollback is not Rollback.SNAPSHOT, "memory that only restores must have checkpoints")
        return
    b.run(b.tokens[:2])
    saved = b.target.checkpoint(0)
    require((saved.seq, saved.n_past) == (0, 2) and saved.n_bytes >= 0, f"the checkpoint says {saved!r}")
    b.run(b.tokens[2:5])
    b.target.restore(saved)
    b.holds(2, "after restoring")
    after = b.run(b.tokens[5:6])[0]
    b.same(after, b.fresh((*b.tokens[:2], b.tokens[5])), "the decode after restoring")


def _lasting_checkpoints_outlive_others(b: _Bench) -> None:
    """Of two lasting ones, the second does not replace the first, and neither does one that need not last."""
    if not b.target.info.checkpoints:
        return
    b.run(b.tokens[:2])
    first = b.target.checkpoint(0, lasting=True)
    b.run(b.tokens[2:4])
    second = b.target.checkpoint(0, lasting=True)
    b.run(b.tokens[4:5])
    b.target.checkpoint(0)
    rows = []
    for saved in (second, second, first):
        b.target.restore(saved)
        b.holds(saved.n_past, "after restoring a lasting checkpoint")
        rows.append(b.run(b.tokens[5:6])[0])
    b.same(rows[0], rows[1], "the decodes after restoring a lasting checkpoint twice")
    for row, n_past in ((rows[0], 4), (rows[2], 2)):
        fresh = b.fresh((*b.tokens[:n_past], b.tokens[5]))
        b.same(row, fresh, "the decode after restoring a lasting checkpoint")


def _what_was_decoded_can_be_looked_at(b: _Bench) -> None:
    info, n_seq = b.target.info, min(b.target.info.n_seq, 2)
    for need in Need:
        if need in info.provides:
            b.target.enable(need, (0,) if need is Need.LAYER_INPUTS else ())
        else:
            with refuses(ConfigError, f"enabling {need.name}, which info.provides lacks,"):
                b.target.enable(need, (0,))
    batch = [BatchEntry(seq, 0, b.tokens[: 2 + seq], seq) for seq in range(n_seq)]
    b.target.decode(batch)
    seen = b.target.decoded()
    require(len(seen) == len(batch), f"decoded() has {len(seen)} entries for {len(batch)} sequences")
    for entry, got in zip(batch, seen, strict=True):
        require((got.seq, got.pos, tuple(got.tokens)) == (entry.seq, 0, tuple(entry.tokens)), f"decoded() says {got!r}")
        _features_are_complete(info.provides, got)


def _features_are_complete(provides: Need, got: Decoded) -> None:
    wanted = {"hidden": (Need.HIDDEN in provides, got.hidden)}
    wanted["input of layer 0"] = (Need.LAYER_INPUTS in provides, got.layer_inputs.get(0))
    for what, (provided, rows) in wanted.items():
        require((rows is not None) == provided, f"{what} is {'missing' if provided else 'there although not provided'}")
        if rows is not None:
            require(rows.shape[0] == len(got.tokens), f"{what} has {rows.shape[0]} rows for {len(got.tokens)} tokens")
            require(rows.dtype == np.float32, f"{what} is {rows.dtype}")
            require(not rows.flags.writeable, f"{what} can be written")


def _shifting_moves_the_rest_down(b: _Bench) -> None:
    if not b.target.info.can_shift:
        return
    require(b.target.info.rollback is Rollback.TRUNCATE, "memory that cannot be cut must not claim to shift")
    rows = []
    for _ in range(2):
        b.target.clear(0)
        b.run(b.tokens[:5])
        b.target.shift(0, 1, 2)
        b.holds(3, "after dropping two of five tokens")
        rows.append(b.run(b.tokens[5:6])[0])
        b.holds(4, "after one more")
    b.same(rows[0], rows[1], "the decodes after the same shift")
    with refuses(BackendError, "dropping more than memory holds"):
        b.target.shift(0, 1, 4)


def _a_saved_state_is_the_memory(b: _Bench) -> None:
    b.run(b.tokens[:3])
    state, seq = b.target.save_state(0), b.target.info.n_seq - 1
    expected = b.run(b.tokens[3:5])
    b.run(b.tokens[:1], seq=seq)
    b.target.load_state(seq, state, 3)
    b.holds(3, "after loading a state", seq=seq)
    b.same(expected, b.run(b.tokens[3:5], seq=seq), "the decode after loading a state")
    with refuses(RollbackError, "loading a state as one of another length"):
        b.target.load_state(seq, state, 2)
    b.target.clear(seq)
    require(json.dumps(dict(b.target.identity)) != "{}", "the identity says nothing")


def _clear_forgets_everything(b: _Bench) -> None:
    first = b.run(b.tokens[:3])
    b.target.clear(0)
    b.holds(0, "after clear")
    b.same(first, b.run(b.tokens[:3]), "the same tokens after clear")


def _samplers_choose_as_asked(b: _Bench) -> None:
    target, row = b.target, b.run(b.tokens[:3], n_outputs=1)[0]
    row.setflags(write=False)
    best = int(np.argmax(row))

    def draws(params: SamplingParams, n: int = 1) -> list[int]:
        sampler = target.make_sampler(params, b.tokens[:3])
        drawn = []
        for _ in range(n):
            require(sampler.allowed(best) and not sampler.finished(), "a sampler without a grammar constrains tokens")
            drawn.append(sampler.sample(row))
            sampler.accept(drawn[-1])
        sampler.close()
        return drawn

    require(draws(SamplingParams(temperature=0.0)) == [best], "temperature 0 is not the argmax")
    banned = draws(SamplingParams(temperature=0.0, logit_bias={best: -math.inf}))
    require(banned != [best], "a bias of -inf does not ban a token")
    flat = {"temperature": 50.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    one = draws(SamplingParams(seed=1, **flat), 20)  # type: ignore[arg-type]
    require(one == draws(SamplingParams(seed=1, **flat), 20), "the same seed gives other tokens")  # type: ignore[arg-type]
    require(one != draws(SamplingParams(seed=2, **flat), 20), "another seed gives the same tokens")  # type: ignore[arg-type]
    pushed = draws(SamplingParams(temperature=0.0, presence_penalty=1e6), 4)
    require(len({*pushed, *b.tokens[:3]}) == len(pushed) + 3, "penalties do not see prompt and tokens")
    for eog in islice(target.vocab.eog, 1):
        lifted = {eog: 1e6}
        least = draws(SamplingParams(temperature=0.0, logit_bias=lifted, min_tokens=2), 3)
        require(not target.vocab.eog & set(least[:2]), "min_tokens does not hold back the end of generation")
        require(least[2] == eog, "min_tokens holds back the end of generation for too long")
        ignored = draws(SamplingParams(temperature=0.0, logit_bias=lifted, ignore_eos=True), 2)
        require(not target.vocab.eog & set(ignored), "ignore_eos does not hold back the end of generation")
    with refuses(ConfigError, "a grammar that cannot be parsed"):
        target.make_sampler(SamplingParams(grammar="no grammar at all ((("), b.tokens[:3])


_RULES: tuple[Callable[[_Bench], None], ...] = (
    _facts_agree,
    _rows_are_float32_and_stay_read_only,
    _memory_counts_what_was_decoded,
    _chunks_do_not_matter,
    _context_matters,
    _sequences_are_independent,
    _bad_batches_are_refused_and_change_nothing,
    _a_full_context_is_refused,
    _impossible_cuts_change_nothing,
    _possible_cuts_leave_the_prefix,
    _a_checkpoint_brings_memory_back,
    _lasting_checkpoints_outlive_others,
    _what_was_decoded_can_be_looked_at,
    _a_saved_state_is_the_memory,
    _shifting_moves_the_rest_down,
    _clear_forgets_everything,
    _samplers_choose_as_asked,
)
