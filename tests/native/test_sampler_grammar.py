"""Grammars: nothing illegal is generated, the end is found, and no grammar or token ends the process."""

from __future__ import annotations

import json
import math
import string
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specframe.backends.llama import grammar as grammar_module
from specframe.backends.llama.model import Model
from specframe.backends.llama.sampler import LlamaSampler
from specframe.core.errors import BackendError, ConfigError
from specframe.core.sampling import SamplingParams
from tests.support.llama import Zoo

N_VOCAB = 288
Row = npt.NDArray[np.float32]
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" [^"\\\x00-\x1F\x7F]{0,8} "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,5}) ("." [0-9]{1,3})? ws
ws ::= | " "
"""


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> Iterator[Model]:
    with Model(zoo("llama")) as opened:
        yield opened


def sampler(model: Model, grammar: str, **params: Any) -> LlamaSampler:
    return LlamaSampler(model, SamplingParams(grammar=grammar, **params), (), n_ctx=64)


def a_row(seed: int = 0) -> Row:
    return (np.random.default_rng(seed).standard_normal(N_VOCAB) * 2).astype(np.float32)


def wish(token: int) -> Row:
    row = a_row()
    row[token] = 50.0
    return row


def legal(chosen: LlamaSampler) -> set[int]:
    return {token for token in range(N_VOCAB) if chosen.allowed(token)}


def test_one_letter_then_the_end(model: Model) -> None:
    (a,) = model.vocab.tokenize("a", add_special=False)
    for params in ({"temperature": 0.0}, {"seed": 1}, {"seed": 1, "mirostat": 2}):
        chosen = sampler(model, 'root ::= "a"', **params)
        assert legal(chosen) == {a}
        assert not chosen.finished()
        assert chosen.sample(wish(98)) == a
        chosen.accept(a)
        assert chosen.finished()
        assert legal(chosen) == model.vocab.eog
        assert chosen.sample(wish(a)) in model.vocab.eog


def test_illegal_token_cannot_be_accepted(model: Model) -> None:
    """llama.cpp would throw through C here, or abort when it is an end-of-generation token."""
    chosen = sampler(model, 'root ::= "ab" | "ac"', temperature=0.0)
    (a, b) = model.vocab.tokenize("ab", add_special=False)
    for token in (b, *model.vocab.eog, 259, 0):
        with pytest.raises(BackendError, match=f"token {token} is forbidden by the grammar"):
            chosen.accept(token)
    chosen.accept(a)
    assert not chosen.finished()
    chosen.accept(b)
    assert chosen.finished()
    with pytest.raises(BackendError, match="forbidden"):
        chosen.accept(b)
    chosen.accept(next(iter(model.vocab.eog)))
    assert not chosen.allowed(-1)
    assert not chosen.allowed(N_VOCAB)


def test_asking_changes_nothing(model: Model) -> None:
    chosen = sampler(model, "root ::= [a-f]{3}", temperature=0.0)
    for length in range(3):
        before = legal(chosen)
        assert len(before) == 6, length
        chosen.finished()
        chosen.sample(a_row(length))
        assert legal(chosen) == before
        chosen.accept(chosen.sample(a_row(length)))
    assert chosen.finished()


def test_end_that_is_possible_is_not_the_end(model: Model) -> None:
    chosen = sampler(model, 'root ::= "a"+', temperature=0.0)
    chosen.accept(97)
    assert not chosen.finished()
    assert legal(chosen) == {97} | model.vocab.eog


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, "top_k": 0, "repeat_penalty": 1.2}])
def test_json_grammar_gives_json(model: Model, params: dict[str, Any]) -> None:
    for start in range(5):
        chosen = sampler(model, JSON, **params)
        text = b""
        for step in range(400):
            row = a_row(1000 * start + step)
            # Leaning towards the end, so that it comes.
            row[[ord('"'), ord("}"), ord("]")]] += 4
            token = chosen.sample(row)
            assert chosen.allowed(token)
            chosen.accept(token)
            if token in model.vocab.eog:
                break
            text += model.vocab.piece(token)
        assert isinstance(json.loads(text.decode("utf-8", "replace")), dict)


def test_legal_choice_equals_the_choice_without_grammar(model: Model) -> None:
    """The grammar only steps in where the choice is illegal."""
    free = LlamaSampler(model, SamplingParams(seed=9), (), n_ctx=64)
    held = sampler(model, r"root ::= [^\x00]*", seed=9)
    for step in range(30):
        row = a_row(step)
        row[[token for token in range(N_VOCAB) if not held.allowed(token)]] = -60.0
        token = free.sample(row)
        assert held.sample(row) == token
        held.accept(token)
        free.accept(token)


def test_characters_across_tokens(model: Model) -> None:
    chosen = sampler(model, 'root ::= "é" [\\u03b1-\\u03c9]', temperature=0.0)
    for byte in "éλ".encode():
        assert not chosen.finished()
        assert not any(chosen.allowed(ord(c)) for c in string.printable)
        chosen.accept(byte_token(model, byte))
    assert chosen.finished()


def byte_token(model: Model, byte: int) -> int:
    return next(token for token in range(256) if model.vocab.piece(token) == bytes([byte]))


def test_bans_and_grammar_together(model: Model) -> None:
    chosen = sampler(model, 'root ::= "a" | "b"', temperature=0.0, logit_bias={97: -math.inf})
    assert chosen.sample(wish(97)) == 98
    both = sampler(model, 'root ::= "a"', temperature=0.0, logit_bias={97: -math.inf})
    with pytest.raises(BackendError, match="rule out the whole vocabulary"):
        both.sample(a_row())
    # The grammar is at its end, but the end is not allowed yet.
    early = sampler(model, 'root ::= "a"', temperature=0.0, min_tokens=5)
    early.accept(97)
    with pytest.raises(BackendError, match="rule out the whole vocabulary"):
        early.sample(a_row())


def test_end_is_found_without_byte_tokens(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vocabularies that lack bytes are asked token by token."""
    probes = grammar_module._probes_of(model)
    assert probes.complete
    fewer = grammar_module._Probes(probes.single[:0], complete=False, everything=probes.everything)
    monkeypatch.setitem(grammar_module._probes, model, fewer)
    chosen = sampler(model, 'root ::= "a" "b"?', temperature=0.0)
    chosen.accept(97)
    assert not chosen.finished()
    chosen.accept(98)
    assert chosen.finished()


BAD = {
    "syntax": 'root ::= ("a"',
    "undefined": "root ::= rule",
    "no root": 'start ::= "a"',
    "left recursion": 'root ::= root "a" | "b"',
    "hidden left recursion": 'root ::= s\ns ::= a s "x" | "y"\na ::= b\nb ::= ""',
    "repetition of nothing": 'root ::= ("")*',
    "counts the wrong way": 'root ::= "a"{5,2}',
    "token reference": "root ::= <[97]>",
    "negated token reference": 'root ::= "a" !<[97]>',
    "deep": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "long chain": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(30_000)) + 'r30000 ::= "a"',
    "nul": 'root ::= "a\0"',
    "surrogate": 'root ::= "\ud800"',
    "empty": "  \n",
    "huge": 'root ::= "' + "a" * 2**20 + '"',
}


@pytest.mark.parametrize("name", BAD)
def test_bad_grammar_is_an_error_and_nothing_is_printed(
    model: Model, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="grammar"):
        sampler(model, BAD[name])
    assert capfd.readouterr() == ("", "")


def test_what_the_check_lets_pass_llama_takes(model: Model) -> None:
    for text in (
        'root ::= "a"{3} [b-d]{2,} e? ("f" | "g")*\ne ::= "e" # comment\n',
        'root ::= (\n  [^\\n"\\\\] |\n  "\\x41\\u00e9\\U0001F99C\\t"\n)+\r\n',
        'root ::= ws "x" ws\nws ::= [ \\t]*',
        "root ::= . | [a\\]-] | [-a]",
        'root ::= "a"{0,2000}',
        'root ::= "a"{0} "b"',
        'root ::= ("a"?)*',
        'root ::= ""',
        'root ::= "(" root ")" | "x"',
        'root ::= "a" root | "b"\nunused ::= "c"',
    ):
        sampler(model, text).close()


def test_no_token_ends_the_process(zoo: Zoo) -> None:
    program = textwrap.dedent(
        """
        import sys
        from specframe.backends.llama.model import Model
        from specframe.backends.llama.sampler import LlamaSampler
        from specframe.core.errors import BackendError, ClosedError
        from specframe.core.sampling import SamplingParams
        model = Model(sys.argv[1])
        sampler = LlamaSampler(model, SamplingParams(grammar='root ::= "a"'), (), n_ctx=64)
        for token in range(-3, 291):
            if token != 97:
                try:
                    sampler.accept(token)
                except ValueError:
                    pass
                except BackendError:
                    pass
        model.close()
        try:
            sampler.allowed(97)
        except ClosedError:
            print("alive")
        sampler.close()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(zoo("llama"))], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
