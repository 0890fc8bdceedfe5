"""Reading GBNF grammars: errors say where, and every construct of the language is understood."""

from __future__ import annotations

import pytest

from specframe.backends.llama.gbnf import MAX_REPETITIONS, check_grammar
from specframe.core.errors import ConfigError

GOOD = [
    'root ::= "a"',
    'root ::= "a" | "b" |',
    'root ::= [^"\\\\] [a-z-] [\\x41-\\u005A] [\\U0001F600] .',
    'root ::= ("a" | ("b" "c")+)* other-rule?\nother-rule ::= "x"{2} "y"{2,} "z"{0,3}',
    '# a comment\n\n  root ::=\n  "a" # and one more\r\n\tlast ::= [0-9]\r\n',
    'root ::= (\n "a"\n | "b"\n)',
    'root ::= "(" root ")" | "()"',
    'root ::= item ("," item)*\nitem ::= [0-9]+ | "-" item',
    f'root ::= "a"{{0,{MAX_REPETITIONS}}}',
    f'root ::= "a"{{1,{MAX_REPETITIONS + 1}}}',
    'root ::= list\nlist ::= "x" list | ""',
]

BAD = [
    ('root ::= ("a"', r"line 1, column 10: \) is missing"),
    ('root ::= "a"\n\nother ::= [a', r"line 3, column 11: \] is missing"),
    ('root ::= "a', 'line 1, column 10: " is missing'),
    ('root ::= "\\q"', "line 1, column 11: a character or a known escape"),
    ('root ::= "\\x4"', "column 11: a character or a known escape"),
    ("root ::= [a-", "the end of a range expected, found 'the end'"),
    ('root "a"', "column 6: '::=' expected, found '\"a\"'"),
    ("::= a", "column 1: the name of a rule expected"),
    ('root ::= "a" )', r"column 14: the end of the rule expected, found '\)'"),
    ('root ::= a b\na ::= "x"', "line 1, column 12: rule 'b' is used but not defined"),
    ('start ::= "a"', "no rule 'root'"),
    ("root ::= *", r"column 10: nothing stands before '\*'"),
    ("root ::= []+", r"nothing stands before '\+'"),
    ('root ::= "a"{}', "a number of repetitions expected, found '}'"),
    ('root ::= "a"{1;2}', "'}' expected, found ';2}'"),
    ('root ::= "a"{3,2}', "the smaller number first"),
    (f'root ::= "a"{{{MAX_REPETITIONS + 1}}}', f"must be in .0, {MAX_REPETITIONS}"),
    ('root ::= "a"{99999999999999999999}', "repetitions must be in"),
    ('root ::= ("a"{0,50}){50}', "make 2550 rules"),
    ("root ::= <think>", "column 10: token references"),
    ("root ::= !<[5]>", "token references"),
    ("root ::= " + "(" * 201 + '"a"' + ")" * 201, "nested more than 200 deep"),
    ('root ::= root "a"', "rule 'root' can begin with itself"),
    ('root ::= a\na ::= b* c\nb ::= "x"\nc ::= a "y" | "z"', "can begin with itself"),
    ('root ::= ("x"? root) "y" | "z"', "rule 'root' can begin with itself"),
    ('root ::= [] root "y" | "z"', "can begin with itself"),
    (
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(2100)) + 'r2100 ::= "a"',
        "begin with one another",
    ),
    ("", "is empty"),
    ("a\0", "NUL"),
    ("\udcff", "lone surrogate"),
    ('root ::= "' + "é" * 2**19 + '"', "bytes"),
]


@pytest.mark.parametrize("text", GOOD)
def test_good_grammar_passes(text: str) -> None:
    check_grammar(text)


@pytest.mark.parametrize(("text", "said"), BAD)
def test_bad_grammar_says_where_and_why(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_grammar(text)
    assert str(caught.value).startswith("grammar")
