"""``specframe generate``: prompts, options, JSON, exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import specframe
from specframe.cli.sampling import FLAGS, SamplingFlags
from specframe.core.errors import ConfigError
from specframe.core.sampling import SamplingParams
from specframe.core.session import Session

Cli = Callable[..., Any]
GREEDY = ("--temperature", "0", "-n", "12")


def test_text_is_that_of_the_python_api(cli: Cli, model: Path) -> None:
    with specframe.load(model, strategy="none") as llm:
        expected = llm.generate("abc", max_tokens=12, temperature=0).text
    answer = cli("generate", model, "-p", "abc", *GREEDY)
    assert (answer.code, answer.out) == (0, expected if expected.endswith("\n") else expected + "\n")
    assert answer.err == ""


def test_prompts_come_from_one_of_three_places(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("abc\n")
    expected = cli("generate", model, "--prompt", "abc", *GREEDY)
    assert cli("generate", model, "--prompt-file", file, *GREEDY) == expected
    assert cli("generate", model, *GREEDY, stdin="abc\n") == expected
    assert cli("generate", model, "--prompt-file", "-", *GREEDY, stdin="abc\r\n") == expected
    with_line_end, without = (
        cli("generate", model, "--json", "-p", p, *GREEDY).document["prompt_tokens"] for p in ("abc\n", "abc")
    )
    assert with_line_end == without + 1


@pytest.mark.parametrize("strategy", ["none", "ngram-k"])
def test_json_has_everything(cli: Cli, model: Path, strategy: str) -> None:
    answer = cli("generate", model, "-p", "abcabcabc", "-s", strategy, "--json", "--logprobs", "1", *GREEDY)
    assert answer.code == 0
    document = answer.document
    assert set(document) >= {
        "text", "tokens", "finish_reason", "prompt_tokens", "completion_tokens", "strategy", "stats", "model",
        "logprobs",
    }  # fmt: skip
    assert document["strategy"] == strategy
    assert document["finish_reason"] == "length"
    assert document["completion_tokens"] == len(document["tokens"]) == len(document["logprobs"]) == 12
    stats = document["stats"]
    assert set(stats) >= {
        "steps", "drafted", "verified", "accepted", "emitted", "acceptance_rate", "mean_accepted_length",
        "acceptance_per_position", "rollbacks", "seconds", "ttft_s", "tokens_per_second",
        "sustained_tokens_per_second", "inactive_reason",
    }  # fmt: skip
    assert set(stats["seconds"]) >= {
        "prompt", "target_submit", "target_wait", "process", "draft", "accept", "checkpoint",
    }  # fmt: skip
    assert stats["emitted"] == 12


def test_drafting_does_not_change_the_text(cli: Cli, model: Path) -> None:
    prompt = ("generate", model, "-p", "abcdefabcdefabcdef", "--json", "--temperature", "0", "-n", "60")
    plain = cli(*prompt, "-s", "none").document
    drafted = cli(*prompt, "-s", "ngram-k", "-o", "n=2", "-o", "m=8").document
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["stats"]["drafted"] > 0


def test_a_seed_is_repeatable(cli: Cli, model: Path) -> None:
    prompt = ("generate", model, "-p", "abc", "--json", "-n", "20", "--temperature", "1.5")
    first, again = (cli(*prompt, "--seed", "7").document for _ in range(2))
    assert first["tokens"] == again["tokens"]
    assert first["stats"]["seed"] == 7


def test_stop_strings(cli: Cli, model: Path) -> None:
    text = cli("generate", model, "-p", "abc", "--json", *GREEDY).document["text"]
    stop = text[3:5]
    document = cli("generate", model, "-p", "abc", "--json", *GREEDY, "--stop", stop, "--stop", "\x00").document
    assert document["text"] == text[: text.index(stop)]
    assert (document["finish_reason"], document["stop_detail"]) == ("stop", "stop-string")


def test_special_tokens_are_text_unless_asked_for(cli: Cli, model: Path) -> None:
    prompt = ("generate", model, "-p", "<|im_start|>", "--json", "-n", "0")
    assert cli(*prompt, "--parse-special").document["prompt_tokens"] < cli(*prompt).document["prompt_tokens"]


def test_context_is_brought_down_with_a_warning(cli: Cli, model: Path) -> None:
    answer = cli("generate", model, "-p", "abc", "-n", "1", "--ctx", "100000000")
    assert answer.code == 0
    assert "WARNING: n_ctx 100000000 is more than" in answer.err


def test_statistics_on_request(cli: Cli, model: Path) -> None:
    default = cli("generate", model, "-p", "abc", "--stats", *GREEDY).err
    assert "12 generated" in default
    assert "\nstrategy ngram-k: " in default
    assert "\nchosen by auto: ngram-k from the text\n" in default
    plain = cli("generate", model, "-p", "abc", "--stats", "-s", "none", *GREEDY).err
    assert "12 generated" in plain
    assert "strategy" not in plain
    drafted = cli("generate", model, "-p", "abcabcabcabc", "-s", "ngram-k", "-o", "n=2", "-v", *GREEDY)
    assert "strategy ngram-k" in drafted.err
    assert "\nstrategy" not in cli("generate", model, "-p", "abc", "-v", "--no-stats", *GREEDY).err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--top-p", "3"], "top_p"),
        (["-o", "n=3"], "options were given (n), but 'auto' has none; name the strategy they are for"),
        (["-s", "none", "-o", "n=3"], "--option is for a strategy, and --strategy none is plain decoding"),
        (["-s", "none", "-d", "x.gguf"], "--draft is for a strategy"),
        (["-d", "x.gguf"], "the draft: there is no file 'x.gguf'"),
        (["-s", "ngramk"], "'ngram-k'"),
        (["-s", "ngram-k", "-o", "nn=3"], "no option 'nn'"),
        (["-s", "ngram-k", "-o", "n"], "name=value"),
        (["-s", "ngram-k", "-d", "nowhere.gguf"], "nowhere.gguf"),
        (["--prompt-file", "nowhere"], "not both"),
        (["--logit-bias", "x"], "TOKEN=BIAS"),
        (["--grammar", "root ::= ("], "grammar"),
        (["--grammar", "a", "--grammar-file", "b"], "not both"),
        (["--grammar-file", "nowhere"], "cannot read the grammar"),
        (["--library", "nowhere.so"], "nowhere.so"),
        (["--devices", "CUDA9"], "knows CPU"),
        (["--devices", ","], "devices must be names"),
        (["--n-keep", "2"], "add --context-full shift"),
        (["--context-full", "shift"], "max_tokens"),
        (["--context-full", "bend"], "'stop', 'shift'"),
        (["--ctx-checkpoints", "-1"], "--ctx-checkpoints"),
        (["--session", "nowhere/file"], "there is no directory 'nowhere'"),
        (["--session", "."], "cannot read the session"),
        (["--temprature", "1"], "--temperature"),
        (["-n", "-1"], "--max-tokens"),
        (["--stop", ""], "stop"),
    ],
)
def test_what_cannot_work_is_exit_2_and_one_clear_message(
    cli: Cli, model: Path, options: list[str], problem: str
) -> None:
    answer = cli("generate", model, "-p", "x", *options)
    assert answer.code == 2
    assert problem in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""


def test_a_session_goes_on_where_the_last_one_ended(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "kept.session"
    first = cli("generate", model, "-p", "abc", "--json", "--session", file, *GREEDY).document
    assert first["stats"]["cached_tokens"] == 0
    prompt = "abc" + first["text"] + "def"
    second = cli("generate", model, "-p", prompt, "--json", "--session", file, *GREEDY).document
    assert second["stats"]["cached_tokens"] >= first["prompt_tokens"] + 11
    assert second["tokens"] == cli("generate", model, "-p", prompt, "--json", *GREEDY).document["tokens"]


def test_a_session_that_does_not_fit_is_refused(
    cli: Cli, model: Path, zoo: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "kept.session"
    assert cli("generate", model, "-p", "abc", "--session", file, *GREEDY).code == 0
    kept = file.read_bytes()
    other = cli("generate", zoo("qwen35"), "-p", "abc", "--session", file, *GREEDY)
    assert (other.code, other.out) == (2, "")
    assert "this session was made with" in other.err
    file.write_bytes(kept[:-1])
    damaged = cli("generate", model, "-p", "abc", "--session", file, *GREEDY)
    assert (damaged.code, damaged.out) == (2, "")
    assert "is damaged" in damaged.err


def test_a_session_that_cannot_be_written_is_exit_1(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Session, "write", fail)
    answer = cli("generate", model, "-p", "abc", "--session", tmp_path / "x", *GREEDY)
    assert answer.code == 1
    assert answer.err == "specframe: error: cannot write the session: [Errno 28] No space left on device\n"


def test_a_full_context_can_be_shifted(cli: Cli, model: Path) -> None:
    prompt = ("generate", model, "-p", "abc", "--json", "--ctx", "32", "--temperature", "0", "-n", "60")
    assert cli(*prompt).document["stop_detail"] == "context-full"
    shifted = cli(*prompt, "--context-full", "shift", "--n-keep", "2").document
    assert (shifted["completion_tokens"], shifted["stop_detail"]) == (60, "max-tokens")
    assert shifted["stats"]["shifts"] > 0


def test_every_option_of_the_model_reaches_load(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is given a value that is not its default, so that none can be forgotten or swapped for another."""
    given = {
        "--ctx": ("n_ctx", 101), "--threads": ("threads", 2), "--threads-batch": ("threads_batch", 3),
        "--batch": ("n_batch", 102), "--ubatch": ("n_ubatch", 103), "--devices": ("devices", "none"),
        "--gpu-layers": ("n_gpu_layers", 4), "--no-flash-attn": ("flash_attn", False),
        "--cache-type-k": ("type_k", "q8_0"), "--cache-type-v": ("type_v", "bf16"),
        "--no-kv-offload": ("offload_kqv", False), "--no-mmap": ("use_mmap", False),
        "--mlock": ("use_mlock", True), "--check-tensors": ("check_tensors", True), "--numerics": ("numerics", "fast"),
        "--ctx-checkpoints": ("ctx_checkpoints", 5), "--checkpoint-interval": ("checkpoint_interval", 6),
        "--checkpoint-mib": ("checkpoint_mib", 7), "--checkpoint-on-device": ("checkpoint_on_device", True),
        "--library": ("library", Path("x.so")),
        "--draft": ("draft", "zoo:dflash"), "--strategy": ("strategy", "dflash"),
    }  # fmt: skip
    asked: dict[str, Any] = {}

    def load(model: str, **options: Any) -> None:
        asked.update(options, model=model)
        raise specframe.ConfigError("that is enough")

    monkeypatch.setattr("specframe.llm.load", load)
    flags = [x for flag, (_, value) in given.items() for x in ([flag] if isinstance(value, bool) else [flag, value])]
    assert cli("generate", "zoo:llama", "-p", "abc", *flags).err == "specframe: error: that is enough\n"
    assert asked.pop("model") == "zoo:llama"
    assert (asked.pop("options"), asked.pop("template")) == ({}, None)
    assert asked == dict(given.values())


def test_models_and_drafts_are_named_in_the_same_ways(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    options = ("-p", "abcabc", "-s", "dflash", "--draft-length", "4", "--json", *GREEDY)
    assert cli("generate", "zoo:llama", "-d", "zoo:dflash", *options).document["stats"]["verified"] > 0
    assert cli("check", "zoo:llama", "-d", "zoo:dflash", "-s", "dflash").out.endswith("\nusable\n")
    assert cli("info", "zoo:dflash", "--json").document["draft_strategy"] == "dflash"
    assert cli("pull", "zoo:llama").out == f"{tmp_path / 'models' / 'zoo' / 'llama.gguf'}\n"
    for command in ("generate", "check", "bench"):
        answer = cli(command, "zoo:llama", "-d", "smollm2-135n", *(("-p", "abc") if command == "generate" else ()))
        assert (answer.code, answer.out) == (2, "")
        assert (
            "the draft: there is no file and no model called 'smollm2-135n'; did you mean 'smollm2-135m'?" in answer.err
        )


def test_checkpoint_options_reach_the_engine(cli: Cli, zoo: Callable[[str], Path]) -> None:
    """A prompt of 40 tokens on memory that cannot be cut; with an interval of 10 there is room for three."""
    prompt = ("generate", zoo("qwen35"), "-s", "none", "-p", "abcdefghij" * 4, "--json", *GREEDY)
    taken = {
        arguments: cli(*prompt, *arguments).document["stats"]["checkpoints"]
        for arguments in (
            (), ("--checkpoint-interval", "10"), ("--ctx-checkpoints", "0"), ("--checkpoint-mib", "0"),
        )
    }  # fmt: skip
    assert list(taken.values()) == [1, 4, 0, 0]
    means = cli(*prompt, "--checkpoint-on-device").document["stats"]["rollback_means"]
    assert means == "snapshot (device)"


def test_the_summary_says_how_drafts_are_taken_back(cli: Cli, zoo: Callable[[str], Path]) -> None:
    prompt = (
        "generate",
        zoo("qwen35"),
        "-p",
        "abcabcabcabc",
        "-s",
        "ngram-k",
        "-o",
        "n=1",
        "--draft-length",
        "4",
        "--stats",
        *GREEDY[:2],
        "-n",
        "80",
    )
    [line] = [line for line in cli(*prompt).err.splitlines() if line.startswith("rollback by")]
    assert line.startswith("rollback by snapshot (host): ")
    assert re.search(r" \d+ by snapshot, \d+ checkpoints taken in [\d.]+ ms, \d+ restored in [\d.]+ ms$", line)


def test_no_traceback_unless_verbose(cli: Cli) -> None:
    quiet = cli("generate", "nowhere.gguf", "-p", "x")
    assert quiet.err == "specframe: error: there is no file 'nowhere.gguf'\n"
    assert "Traceback" in cli("generate", "nowhere.gguf", "-p", "x", "-v").err


def test_a_prompt_that_is_no_text(cli: Cli, model: Path) -> None:
    answer = cli("generate", model, stdin=b"\xff\xfe")
    assert (answer.code, answer.out) == (2, "")
    assert "cannot read the prompt" in answer.err


def test_failures_while_running_are_exit_1(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise specframe.BackendError("the device is gone")

    monkeypatch.setattr("specframe.llm.load", fail)
    answer = cli("generate", model, "-p", "x")
    assert (answer.code, answer.err) == (1, "specframe: error: the device is gone\n")


def test_an_interrupt_keeps_what_was_said(cli: Cli, model: Path, interrupt_step: Callable[[int], None]) -> None:
    whole = cli("generate", model, "-p", "abc", "--json", *GREEDY).document
    interrupt_step(5)
    answer = cli("generate", model, "-p", "abc", "--json", *GREEDY)
    assert answer.code == 130
    assert answer.document["finish_reason"] == "cancelled"
    assert 0 < len(answer.document["tokens"]) < 12
    assert whole["text"].startswith(answer.document["text"])


# -- sampling options -------------------------------------------------------------------------------------------------


def test_every_sampling_parameter_is_an_option() -> None:
    assert {flag.name for flag in FLAGS} == {field.name for field in attrs.fields(SamplingParams)}


def parsed(**given: Any) -> SamplingParams:
    values = {p.name: p.default for p in SamplingFlags.cli_parameters()} | given
    return SamplingFlags.from_cli(values).params


def test_options_that_are_not_given_keep_their_defaults() -> None:
    assert parsed() == SamplingParams()


def test_options_reach_their_parameters(tmp_path: Path) -> None:
    grammar = tmp_path / "g.gbnf"
    grammar.write_text('root ::= "a"')
    params = parsed(
        top_k=0, logit_bias=["3=-inf", "4=1.5"], dry_sequence_breakers=["x"], ignore_eos=True, grammar_file=grammar
    )
    expected: dict[str, Any] = {"logit_bias": {3: float("-inf"), 4: 1.5}, "dry_sequence_breakers": ("x",)}
    assert params == SamplingParams(top_k=0, ignore_eos=True, grammar='root ::= "a"', **expected)
    with pytest.raises(ConfigError, match="TOKEN=BIAS"):
        parsed(logit_bias=["a=1"])


def test_present_penalty_is_accepted(cli: Cli, model: Path) -> None:
    prompt = ("generate", model, "-p", "abcabc", "--json", *GREEDY)
    both = [cli(*prompt, name, "1.9").document["tokens"] for name in ("--presence-penalty", "--present-penalty")]
    assert both[0] == both[1]
    assert both[0] != cli(*prompt).document["tokens"]


def test_help_shows_defaults(cli: Cli) -> None:
    answer = cli("generate", "--help")
    assert answer.code == 0
    assert cli("generate", "-h") == answer
    assert "unset: 0.8." in answer.out
