from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from specframe.backends.llama.devices import Device
from specframe.backends.llama.facts import RuntimeFacts
from specframe.bench import feedback, memory
from specframe.bench.comparison import gather
from specframe.bench.redaction import Redactor
from specframe.bench.results import Results
from specframe.bench.sides import Side
from tests.support import bench as made

REDACT = Redactor("ann", "annspc", ("/home/ann smith", "/home/ann smith/my models", r"C:\Users\Ann Smith"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/opt/models/a.gguf", "a.gguf"),
        ("lib (/usr/lib/llama/libllama.so)", "lib (libllama.so)"),
        ("'/home/bob/a.gguf' is no file", "'a.gguf' is no file"),
        ("/home/ann smith/my models/a b.gguf", "a b.gguf"),
        ("/home/ann smith", "~"),
        ("~/models/a.gguf and ~bob/b.gguf", "a.gguf and b.gguf"),
        (r"D:\models\a.gguf", "a.gguf"),
        (r"C:\Users\Ann Smith\a.gguf", "a.gguf"),
        (r"\\server\share\a.gguf", "a.gguf"),
        ("/srv/models/", "models"),
        ("it said:/srv/x", "it said:/srv/x"),
        ("by Ann on ANNSPC, in ann-7b.gguf", "by <user> on <host>, in <user>-7b.gguf"),
        ("planned annual scans", "planned annual scans"),
        ("130 tokens/s, 1/2, a / b", "130 tokens/s, 1/2, a / b"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("Linux-6.1-x86_64", "Linux-6.1-x86_64"),
        ("", ""),
    ],
)
def test_private_things_are_taken_out(text: str, clean: str) -> None:
    assert REDACT.text(text) == clean
    assert REDACT.text(clean) == clean


def test_every_string_of_a_document_is_looked_at() -> None:
    document = {"/a/b": ["/c/d", {"x": ("ann", 3, None, True)}]}
    assert REDACT(document) == {"b": ["d", {"x": ["<user>", 3, None, True]}]}


def test_without_names_paths_go_all_the_same() -> None:
    assert Redactor().text("/home/ann/x") == "x"


def test_this_user_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "some one"))
    monkeypatch.setattr("getpass.getuser", lambda: "some one")
    monkeypatch.setattr("socket.gethostname", lambda: "box.example.org")
    here = Redactor.here(tmp_path / "with space" / "m.gguf")
    text = f"{tmp_path}/with space/m.gguf, {tmp_path}/some one/x y/z.txt, by some one at box"
    assert here.text(text) == "m.gguf, z.txt, by <user> at <host>"


def test_nobody_in_particular(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert Redactor.here().user == ""


# -- the form ---------------------------------------------------------------------------------------------------------

GPU = Device(name="G0", description="Some GPU", kind="gpu", backend="X", memory_free=1, memory_total=8_000_000_000)


def runtime(*devices: Device) -> RuntimeFacts:
    return RuntimeFacts(
        source="wheel", path="/lib.so", version="0.6", ggml_version="0.9", cpu_features=("avx2",), devices=devices,
        gpu_offload=False, mmap=True, mlock=True, rpc=False, system_info="CPU : AVX2 = 1", refused=(),
    )  # fmt: skip


TARGET = {"path": "/home/ann/tiny.gguf", "architecture": "llama", "quantization": "Q4_1"}
DRAFT = {"path": "/home/ann/draft.gguf", "architecture": "qwen35", "quantization": "F16"}


def filled(
    label: str, *, draft: Path | None = None, devices: tuple[Device, ...] = (), **changes: Any
) -> dict[str, Any]:
    cases = [made.case("plain", 100), made.case("plain", 80, 1), made.case(label, 200, **changes)]
    side = Side.parse(label, draft)
    results = Results(
        settings=made.SETTINGS, repeat=2, comparison=gather(cases, lambda _: [[(9, 0.125)]] * 9), load_before=0.0
    )
    members = side.members(draft, None)
    return feedback.form(
        results,
        side,
        members=members,
        runtime=runtime(*devices),
        target=TARGET,
        draft=DRAFT if draft else None,
        observations="hm",
    )


def test_every_field_of_the_form_is_there_in_its_order() -> None:
    assert list(filled("ngram-k")) == [
        "specframe", "llama.cpp", "OS", "Python", "CPU", "GPU", "backend and build options", "target model", "MTP mode",
        "external model", "strategy", "draft_n_max", "draft_p_min", "n_ctx", "n_batch", "GPU layers", "sampling",
        "ordinary speed, tokens/s", "drafted speed, tokens/s", "speed-up", "TTFT, ms", "proposed", "verified",
        "accepted", "acceptance rate", "mean accepted length", "rollbacks", "checkpoint mode and timing", "output",
        "peak RAM, MB", "peak VRAM, MB", "warnings", "observations",
    ]  # fmt: skip


def test_a_memory_in_another_format_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled("ngram-k")["n_ctx"] == 4096
    monkeypatch.setattr(made, "SETTINGS", attrs.evolve(made.SETTINGS, type_k="q8_0"))
    assert filled("ngram-k")["n_ctx"] == "4096, q8_0 keys and f16 values"


def test_what_was_measured_is_filled_in() -> None:
    fields = filled("ngram-k(m=16)")
    assert fields["ordinary speed, tokens/s"] == {"prose": "90.0 (80.0-100.0)"}
    assert fields["drafted speed, tokens/s"] == {"prose": "200.0"}
    assert fields["speed-up"] == {"prose": "2.00"}
    assert (fields["proposed"], fields["verified"], fields["accepted"]) == ({"prose": 5}, {"prose": 4}, {"prose": 3})
    assert fields["rollbacks"] == {"prose": {"truncate": 1}}
    assert fields["checkpoint mode and timing"] == {"prose": "truncate; 2 taken in 2.0 ms"}
    assert fields["output"] == {"prose": "the same"}
    assert fields["draft_n_max"] == 16
    assert fields["draft_p_min"] == "-"
    assert fields["target model"] == "tiny.gguf, llama, Q4_1"
    assert fields["warnings"] == ["none"]
    assert fields["GPU"] == "none"


def test_what_is_missing_is_said_plainly() -> None:
    side = Side.parse("ngram-k")

    def of(*cases: Any, **parts: Any) -> dict[str, Any]:
        comparison = gather(cases, lambda _: [])
        results = Results(settings=made.SETTINGS, repeat=1, comparison=comparison, load_before=0.0, **parts)
        return feedback.form(results, side, members=(), runtime=runtime(), target=TARGET, draft=None)

    nothing = of(made.failed("ngram-k", error="it broke\n  File /home/ann/x.py"), failed_parts=["turns: it broke"])
    assert nothing["drafted speed, tokens/s"] == nothing["rollbacks"] == nothing["output"] == "not measured"
    assert nothing["warnings"] == ["ngram-k on prose: it broke", "turns: it broke"]
    short = of(made.case("ngram-k", 0.0, stats={}, drafted=0, accepted=0), made.failed("plain"))
    assert short["ordinary speed, tokens/s"] == short["speed-up"] == {"prose": "not measured"}
    assert short["drafted speed, tokens/s"] == {"prose": "none, with an answer of one token"}
    assert short["acceptance rate"] == short["mean accepted length"] == {"prose": "nothing was drafted"}
    assert "- **acceptance rate**: nothing was drafted" in feedback.markdown(short)


def test_a_difference_is_reported_with_its_margin() -> None:
    assert filled("ngram-k", tokens=(1, 9))["output"] == {"prose": "diverges at token 1 (margin 0.125)"}


def test_an_external_draft_is_named(tmp_path: Path) -> None:
    file = tmp_path / "draft.gguf"
    fields = filled("mtp(n_max=5,p_min=0.5)", draft=file)
    assert (fields["MTP mode"], fields["external model"]) == ("external", "draft.gguf, qwen35, F16")
    assert (fields["draft_n_max"], fields["draft_p_min"]) == (5, 0.5)
    assert filled("mtp")["MTP mode"] == "built-in"
    assert filled("ngram-k")["MTP mode"] == "not used"


def test_a_combination_is_described_by_what_it_is_made_of() -> None:
    fields = filled("first-of(ngram-k(m=16),mtp(n_max=5))")
    assert (fields["MTP mode"], fields["draft_n_max"], fields["draft_p_min"]) == ("built-in", 5, 0.0)


def test_devices_are_named() -> None:
    assert filled("ngram-k", devices=(GPU,))["GPU"] == "Some GPU (8000 MB)"


def test_why_nothing_was_drafted_is_a_warning() -> None:
    stats = {**made.STATS, "inactive_reason": "nothing-proposed"}
    assert filled("ngram-k", stats=stats)["warnings"] == ["prose: not drafting: nothing-proposed"]


def test_the_form_is_markdown_and_json() -> None:
    fields = filled("ngram-k")
    text = feedback.markdown(fields)
    assert "- **speed-up**: 2.00\n" in text
    assert "- **rollbacks**: 1 by truncate\n" in text
    assert "- **peak VRAM, MB**: unknown\n" in text
    assert text.count("- **") == len(fields)
    several = {"rollbacks": {"prose": {"truncate": 1, "snapshot": 2}, "chat": {}}, "proposed": {}}
    assert feedback.markdown(several).endswith(
        "- **rollbacks**: prose: 1 by truncate, 2 by snapshot; chat: none\n- **proposed**: none\n"
    )
    assert json.loads(json.dumps(fields)) == fields


# -- memory -----------------------------------------------------------------------------------------------------------


def test_peak_memory_is_read_from_the_system(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\n", encoding="ascii")
    assert memory.peak_ram(status) == 2048 * 1024
    elsewhere = memory.peak_ram(tmp_path / "missing")
    assert elsewhere is not None
    assert elsewhere > 1_000_000


def test_gpus_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "load_library", lambda _: None)
    monkeypatch.setattr(memory, "runtime_facts", lambda _: runtime(GPU, GPU))
    assert memory.free_vram(None) == 2
    monkeypatch.setattr(memory, "runtime_facts", lambda _: runtime())
    assert memory.free_vram(None) is None
