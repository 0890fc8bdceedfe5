"""The sampler chain: every parameter does what it says, on rows made for the purpose."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specframe.backends.llama import sampler as sampler_module
from specframe.backends.llama.model import Model
from specframe.backends.llama.sampler import LlamaSampler
from specframe.core.errors import BackendError, ClosedError, ConfigError
from specframe.core.sampling import SamplingParams
from tests.support.llama import Zoo, tokens

N_VOCAB = 288
N_CTX = 64
EIGHT = range(40, 48)
Row = npt.NDArray[np.float32]

#: Nothing is cut off and nothing is scaled.
OPEN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> Iterator[Model]:
    with Model(zoo("llama")) as opened:
        yield opened


def sampler(model: Model, prompt: Sequence[int] = (), **params: Any) -> LlamaSampler:
    return LlamaSampler(model, SamplingParams(**params), prompt, n_ctx=N_CTX)


def a_row(seed: int = 0, scale: float = 2.0) -> Row:
    return (np.random.default_rng(seed).standard_normal(N_VOCAB) * scale).astype(np.float32)


def draws(chosen: LlamaSampler, row: Row, n: int) -> list[int]:
    """``n`` tokens, none of them committed."""
    return [chosen.sample(row) for _ in range(n)]


def generate(chosen: LlamaSampler, rows: Sequence[Row]) -> list[int]:
    ids = []
    for row in rows:
        ids.append(chosen.sample(row))
        chosen.accept(ids[-1])
    return ids


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(shifted / shifted.sum())


# -- greedy -----------------------------------------------------------------------------------------------------------


def test_greedy_is_the_argmax_without_a_candidate_array(model: Model) -> None:
    chosen = sampler(model, temperature=0.0)
    for seed in range(20):
        assert chosen.sample(a_row(seed)) == int(a_row(seed).argmax())
    assert chosen._candidates is None
    assert chosen._scratch is None


def test_large_row_that_cannot_be_written_is_searched_where_it_is(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_COPIED", N_VOCAB)
    chosen = sampler(model, temperature=0.0)
    for seed in range(3):
        row = a_row(seed)
        row.flags.writeable = False
        assert chosen.sample(row) == int(row.argmax())
    row = np.repeat(a_row(), 2)[::2]
    row.flags.writeable = False
    assert chosen.sample(row) == int(row.argmax())


@pytest.mark.parametrize("temperature", [0.0, -1.0])
@pytest.mark.parametrize("extra", [{"repeat_penalty": 1.0001}, {"dry_multiplier": 1e-6}, {"typical_p": 0.9}])
def test_greedy_through_the_chain_is_deterministic(model: Model, temperature: float, extra: dict[str, Any]) -> None:
    rows = [a_row(seed) for seed in range(20)]
    first = generate(sampler(model, temperature=temperature, dynatemp_range=1.0, **extra), rows)
    assert generate(sampler(model, temperature=temperature, dynatemp_range=1.0, **extra), rows) == first
    if "typical_p" not in extra:
        assert first == [int(row.argmax()) for row in rows]


def test_ties_go_to_the_lowest_id_on_both_greedy_paths(model: Model) -> None:
    row = np.zeros(N_VOCAB, np.float32)
    row[[50, 90, 200]] = 3.0
    assert sampler(model, temperature=0.0).sample(row) == 50
    assert sampler(model, temperature=0.0, repeat_penalty=1.5).sample(row) == 50


# -- the draw ---------------------------------------------------------------------------------------------------------


def test_draws_follow_the_distribution(model: Model) -> None:
    """Eight tokens are left, 20,000 draws, chi-square."""
    bias = {token: -math.inf for token in range(N_VOCAB) if token not in EIGHT}
    row = a_row(3, scale=1.0)
    n = 20_000
    counted = Counter(draws(sampler(model, seed=11, logit_bias=bias, **OPEN), row, n))
    assert set(counted) == set(EIGHT)
    expected = softmax(row[list(EIGHT)]) * n
    statistic = sum((counted[token] - e) ** 2 / e for token, e in zip(EIGHT, expected, strict=True))
    assert statistic < 24.3  # 7 degrees of freedom: exceeded once in a thousand times


def test_same_seed_same_draws(model: Model) -> None:
    rows = [a_row(seed) for seed in range(40)]
    runs = {seed: generate(sampler(model, seed=seed, **OPEN), rows) for seed in range(10)}
    assert all(generate(sampler(model, seed=seed, **OPEN), rows) == ids for seed, ids in runs.items())
    assert len({tuple(ids) for ids in runs.values()}) == 10


def test_fresh_seed_is_told_and_repeats(model: Model) -> None:
    rows = [a_row(seed) for seed in range(40)]
    first, second = sampler(model, **OPEN), sampler(model, **OPEN)
    assert first.seed != second.seed
    assert generate(sampler(model, seed=first.seed, **OPEN), rows) == generate(first, rows)


def test_seed_that_llama_reads_as_random_is_a_seed(model: Model) -> None:
    rows = [a_row(seed) for seed in range(40)]
    runs = [generate(sampler(model, seed=2**32 - 1, xtc_probability=0.5, **OPEN), rows) for _ in range(2)]
    assert runs[0] == runs[1]
    assert sampler(model, seed=2**32 - 1).seed == 2**32 - 1


def test_one_draw_per_token(model: Model) -> None:
    """A row with one candidate takes its draw as well, so later tokens do not depend on the rows before."""
    sure = np.full(N_VOCAB, -50.0, np.float32)
    sure[9] = 50.0
    row = a_row(1)
    straight = generate(sampler(model, seed=5, **OPEN), [row, row, row])
    with_sure = generate(sampler(model, seed=5, **OPEN), [row, sure, row])
    assert with_sure[1] == 9
    assert with_sure[::2] == straight[::2]


# -- what cuts candidates off -----------------------------------------------------------------------------------------


def support(model: Model, row: Row, **params: Any) -> set[int]:
    return set(draws(sampler(model, seed=1, **{**OPEN, **params}), row, 3000))


def test_top_k(model: Model) -> None:
    row = a_row()
    assert support(model, row, top_k=5) == {int(i) for i in np.argsort(-row)[:5]}
    assert sampler(model, seed=1, **{**OPEN, "top_k": 2**40}).sample(row) in range(N_VOCAB)
    assert sampler(model, seed=1, **{**OPEN, "top_k": -(2**40)}).sample(row) in range(N_VOCAB)


def test_top_p(model: Model) -> None:
    row = a_row()
    order = np.argsort(-row)
    n = int((np.cumsum(softmax(row)[order]) < 0.3).sum()) + 1
    assert support(model, row, top_p=0.3) == {int(i) for i in order[:n]}
    assert support(model, row, top_p=0.0) == {int(order[0])}


def test_min_p(model: Model) -> None:
    row, p = a_row(), softmax(a_row())
    assert support(model, row, min_p=0.3) == {int(i) for i in np.flatnonzero(p >= 0.3 * p.max())}


def test_top_n_sigma(model: Model) -> None:
    row = a_row()
    expected = {int(i) for i in np.flatnonzero(row >= row.max() - 0.5 * row.std())}
    assert support(model, row, top_n_sigma=0.5) == expected


def test_typical_p(model: Model) -> None:
    row = np.full(N_VOCAB, -30.0, np.float32)
    row[:4] = np.log([0.5, 0.2, 0.2, 0.1])
    # Entropy 1.22: -log p is 0.69, 1.61, 1.61, 2.3; the most typical ones are the two of 0.2.
    assert support(model, row, typical_p=0.3) == {1, 2}


@pytest.mark.parametrize(
    ("ruled_out", "params"),
    [
        ((-np.inf,), {}),  # by a logits processor
        ((-200.0, -1e30), {}),  # their probability is rounded to 0
        ((-30.0,), {"top_n_sigma": 0.9}),
    ],
)
def test_typical_p_goes_by_what_is_possible(model: Model, ruled_out: Sequence[float], params: dict[str, Any]) -> None:
    row = np.resize(np.array(ruled_out, np.float32), N_VOCAB)
    row[:4] = np.log([0.5, 0.2, 0.2, 0.1])
    assert support(model, row, typical_p=0.3, **params) == {1, 2}


@pytest.mark.parametrize(
    "params", [{"typical_p": 0.5}, {"mirostat": 1}, {"mirostat": 2}, {"xtc_probability": 0.5}, {"top_n_sigma": 1.0}]
)
def test_a_token_that_a_processor_bans_is_as_if_it_were_biased_away(model: Model, params: dict[str, Any]) -> None:
    row, banned = a_row(3, scale=6.0), np.arange(0, N_VOCAB - 20)
    by_bias = sampler(model, seed=4, logit_bias=dict.fromkeys(banned.tolist(), -math.inf), temperature=1.0, **params)
    expected = generate(by_bias, [row] * 50)
    row[banned] = -np.inf
    assert generate(sampler(model, seed=4, temperature=1.0, **params), [row] * 50) == expected


def test_xtc_takes_the_most_probable_away(model: Model) -> None:
    row = np.full(N_VOCAB, -30.0, np.float32)
    row[:4] = np.log([0.4, 0.3, 0.2, 0.1])
    # Of those above the threshold only the least probable stays.
    assert support(model, row, xtc_probability=1.0, xtc_threshold=0.15) == {2, 3}
    share = Counter(draws(sampler(model, seed=2, xtc_probability=0.5, xtc_threshold=0.15, **OPEN), row, 4000))[0] / 4000
    assert abs(share - 0.2) < 0.03


def test_temperature_flattens(model: Model) -> None:
    row = np.full(N_VOCAB, -200.0, np.float32)
    row[[3, 4]] = [2.0, 0.0]
    share = Counter(draws(sampler(model, seed=3, **{**OPEN, "temperature": 2.0}), row, 6000))[3] / 6000
    assert abs(share - 1 / (1 + math.exp(-1))) < 0.02


def test_dynamic_temperature_depends_on_entropy(model: Model) -> None:
    """Two equal candidates have the highest entropy there is, so the temperature is the upper end of the range."""
    row = np.zeros(N_VOCAB, np.float32)
    row[5] = 2.0
    params = {**OPEN, "temperature": 1.0, "dynatemp_range": 0.9}
    entropy = float(-(softmax(row) * np.log(softmax(row))).sum()) / math.log(N_VOCAB)
    expected = softmax(row / (0.1 + 1.8 * entropy))[5]
    share = Counter(draws(sampler(model, seed=4, **params), row, 20_000))[5] / 20_000
    assert abs(share - expected) < 0.01


# -- biases and bans --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0.0}, OPEN, {"temperature": 0.0, "repeat_penalty": 1.1}])
def test_logit_bias(model: Model, params: dict[str, Any]) -> None:
    row = a_row()
    best = int(row.argmax())
    assert sampler(model, seed=1, logit_bias={77: 100.0}, **params).sample(row) == 77
    assert best not in draws(sampler(model, seed=1, logit_bias={best: -math.inf}, **params), row, 200)
    assert row[best] == row.max()


def test_ignore_eos_bans_every_end_of_generation_token(model: Model) -> None:
    row = a_row()
    row[sorted(model.vocab.eog)] = 60.0
    for params in ({"temperature": 0.0}, OPEN, {"mirostat": 2}):
        assert sampler(model, seed=1, **params).sample(row) in model.vocab.eog
        assert sampler(model, seed=1, ignore_eos=True, **params).sample(row) not in model.vocab.eog
        bias = dict.fromkeys(model.vocab.eog, 200.0)
        assert sampler(model, seed=1, ignore_eos=True, logit_bias=bias, **params).sample(row) not in model.vocab.eog


def test_min_tokens_counts_accepted_tokens(model: Model) -> None:
    row = a_row()
    row[sorted(model.vocab.eog)] = 60.0
    for params in ({"temperature": 0.0}, OPEN):
        chosen = sampler(model, tokens(9), seed=1, min_tokens=3, **params)
        ids = generate(chosen, [row] * 5)
        assert [token in model.vocab.eog for token in ids] == [False, False, False, True, True]
        # Asking again without accepting does not count.
        assert not set(draws(sampler(model, seed=1, min_tokens=1, **params), row, 5)) & model.vocab.eog


# -- penalties --------------------------------------------------------------------------------------------------------


def penalised(row: Row, seen: Sequence[int], *, last_n: int, repeat: float, frequency: float, presence: float) -> Row:
    """The penalties as their papers and the documentation define them."""
    out = row.astype(np.float64)
    for token, count in Counter(seen[max(0, len(seen) - last_n) :]).items():
        out[token] = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] -= count * frequency + presence
    return out.astype(np.float32)


@pytest.mark.parametrize("last_n", [-1, 0, 1, 7, 64, 10_000])
@pytest.mark.parametrize(
    ("repeat", "frequency", "presence"), [(1.3, 0.0, 0.0), (1.0, 0.4, 0.0), (1.0, 0.0, 0.7), (0.8, -0.2, 0.3)]
)
def test_penalties_equal_their_definition(
    model: Model, last_n: int, repeat: float, frequency: float, presence: float
) -> None:
    seen = tokens(40, below=12)
    chosen = sampler(
        model, seen, temperature=0.0, penalty_last_n=last_n, repeat_penalty=repeat, frequency_penalty=frequency,
        presence_penalty=presence,
    )  # fmt: skip
    span = N_CTX if last_n < 0 else min(last_n, N_CTX)
    for step in range(30):
        row = np.full(N_VOCAB, -9.0, np.float32)
        row[:12] = a_row(step)[:12]
        expected = penalised(row, seen, last_n=span, repeat=repeat, frequency=frequency, presence=presence)
        token = chosen.sample(row)
        assert expected[token] == pytest.approx(float(expected.max()), abs=1e-5)
        chosen.accept(token)
        seen.append(token)


def test_dry_penalises_what_would_go_on_repeating(model: Model) -> None:
    phrase = [20, 21, 22, 23, 24]
    row = np.zeros(N_VOCAB, np.float32)
    row[24] = 5.0
    params: dict[str, Any] = {"temperature": 0.0, "dry_multiplier": 4.0, "dry_sequence_breakers": ()}
    said = [*phrase, 9, *phrase[:4]]
    assert sampler(model, said, **params).sample(row) != 24
    assert sampler(model, [*phrase[:4], 9, *phrase[:4]], **params).sample(row) == 24
    assert sampler(model, said, **{**params, "dry_penalty_last_n": 0}).sample(row) == 24
    assert sampler(model, said, **{**params, "dry_allowed_length": 5}).sample(row) == 24
    assert sampler(model, said, **{**params, "dry_base": 0.0}).sample(row) == 24
    # The penalty is multiplier * base ** (length - allowed length): here 4 * 1.75 ** 2.
    for logit in (12.2, 12.3):
        row[24] = logit
        assert (sampler(model, said, **params).sample(row) == 24) is (logit > 4 * 1.75**2)


def test_dry_window_and_breakers(model: Model) -> None:
    phrase = [20, 21, 22, 23, 24]
    row = np.zeros(N_VOCAB, np.float32)
    row[24] = 1.0
    far = [*phrase, *range(100, 120), *phrase[:4]]
    params: dict[str, Any] = {"temperature": 0.0, "dry_multiplier": 4.0}
    assert sampler(model, far, **params, dry_penalty_last_n=-1).sample(row) != 24
    assert sampler(model, far, **params, dry_penalty_last_n=10).sample(row) == 24
    breaker = model.vocab.piece(23).decode("latin-1")
    assert sampler(model, far, **params, dry_sequence_breakers=[breaker]).sample(row) == 24
    assert sampler(model, far, **params, dry_sequence_breakers=["é", "🦜"]).sample(row) != 24


# -- mirostat ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_the_surprise(model: Model, version: int) -> None:
    row = a_row(5, scale=3.0)
    surprise = -np.log2(softmax(row))
    means = []
    for tau in (1.0, 2.0, 4.0):
        ids = generate(sampler(model, seed=6, temperature=1.0, mirostat=version, mirostat_tau=tau), [row] * 600)
        means.append(float(surprise[ids[100:]].mean()))
    assert means[0] + 0.3 < means[1] < means[2] - 0.3
    rows = [a_row(seed) for seed in range(30)]
    runs = [generate(sampler(model, seed=7, mirostat=version), rows) for _ in range(2)]
    assert runs[0] == runs[1]


def test_mirostat_2_keeps_to_its_bound(model: Model) -> None:
    """Basu et al. 2021, algorithm 2: cut at ``mu`` bits of surprise, then move ``mu`` by the error."""
    tau, eta = 3.0, 0.2
    chosen = sampler(model, seed=8, temperature=1.0, mirostat=2, mirostat_tau=tau, mirostat_eta=eta)
    mu, observed = 2 * tau, []
    for step in range(400):
        p = softmax(a_row(step))
        kept = np.flatnonzero(-np.log2(p) <= mu + 1e-4)
        token = chosen.sample(a_row(step))
        chosen.accept(token)
        assert token in kept
        observed.append(-math.log2(p[token] / p[-np.log2(p) <= mu].sum()))
        mu -= eta * (observed[-1] - tau)
    assert abs(float(np.mean(observed)) - tau) < 0.1


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {N_VOCAB: 1.0}}, f"token {N_VOCAB}"),
    ({"logit_bias": {-1: 1.0}}, "token -1"),
    ({"logit_bias": {3: math.nan}}, "token 3"),
    ({"logit_bias": {3: math.inf}}, "token 3"),
    ({"logit_bias": {3: 1e39}}, "token 3"),
    ({"repeat_penalty": 1e-40}, "repeat_penalty"),
    ({"frequency_penalty": 1e39}, "frequency_penalty"),
    ({"presence_penalty": -1e300}, "presence_penalty"),
    ({"temperature": 1e-31}, "temperature"),
    ({"temperature": 1e39}, "temperature"),
    ({"dry_multiplier": 1.0, "dry_base": 0.5}, "dry_base"),
    ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": ["a\0b"]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": ["\ud800"]}, "dry_sequence_breakers"),
    ({"dry_sequence_breakers": [5]}, "dry_sequence_breakers"),
    ({"mirostat": 2, "top_k": 10}, "top_k"),
    ({"mirostat": 1, "repeat_penalty": 1.1}, "repeat_penalty"),
    ({"mirostat": 1, "dynatemp_range": 0.5}, "dynatemp_range"),
    ({"grammar": "root ::= ("}, "grammar"),
]


@pytest.mark.parametrize(("params", "named"), REFUSED)
def test_bad_parameter_is_named(model: Model, params: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        sampler(model, **params)
    assert sampler(model, temperature=0.0).sample(a_row()) == int(a_row().argmax())


EVERY_PATH: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.1},
    {"temperature": 0.0, "logit_bias": {3: 1.0}},
    OPEN,
    {"mirostat": 1},
    {"mirostat": 2},
    {"temperature": 0.0, "grammar": "root ::= [a-z]+"},
    {"grammar": "root ::= [a-z]+"},
]


@pytest.mark.parametrize("params", EVERY_PATH)
def test_unusable_rows_are_named(model: Model, params: dict[str, Any]) -> None:
    nan, inf = a_row(), a_row()
    nan[7], inf[7] = math.nan, math.inf
    for row, said in (
        (nan, "1 of 288 logits are NaN"),
        (inf, r"\+inf"),
        (np.full(N_VOCAB, -np.inf, np.float32), "every token of the vocabulary is banned"),
    ):
        with pytest.raises(BackendError, match=said):
            sampler(model, seed=1, **params).sample(row)
    with pytest.raises(ConfigError, match="row of 288 logits"):
        sampler(model, seed=1, **params).sample(a_row()[:5])


def test_everything_banned_is_an_error(model: Model) -> None:
    bans = dict.fromkeys(range(N_VOCAB), -math.inf)
    for params in EVERY_PATH:
        merged = {**params, "logit_bias": bans}
        with pytest.raises(BackendError, match="banned"):
            sampler(model, seed=1, **merged).sample(a_row())
    only_eog = {token: -math.inf for token in range(N_VOCAB) if token not in model.vocab.eog}
    chosen = sampler(model, temperature=0.0, logit_bias=only_eog, min_tokens=1)
    with pytest.raises(BackendError, match="banned"):
        chosen.sample(a_row())


def test_overflowing_penalty_is_an_error(model: Model) -> None:
    row = a_row()
    for params in ({"temperature": 0.0}, OPEN):
        chosen = sampler(model, [5] * 60, seed=1, frequency_penalty=-3e38, **params)
        with pytest.raises(BackendError, match="NaN or infinity"):
            chosen.sample(row)


def test_row_is_left_as_it_was(model: Model) -> None:
    row = a_row()
    row.flags.writeable = False
    for params in EVERY_PATH:
        sampler(model, [1, 2], seed=1, min_tokens=2, **params).sample(row)
    np.testing.assert_array_equal(row, a_row())


def test_closed_sampler_says_so(model: Model) -> None:
    for params in EVERY_PATH:
        chosen = sampler(model, seed=1, **params)
        chosen.close()
        chosen.close()
        for call in (
            lambda c=chosen: c.sample(a_row()),
            lambda c=chosen: c.accept(1),
            lambda c=chosen: c.allowed(1),
            lambda c=chosen: c.finished(),
        ):
            with pytest.raises(ClosedError):
                call()  # type: ignore[no-untyped-call]


def test_accept_checks_the_token(model: Model) -> None:
    chosen = sampler(model, repeat_penalty=1.1)
    for token in (-1, N_VOCAB):
        with pytest.raises(ConfigError, match=f"token {token}"):
            chosen.accept(token)
