"""The reader of the documentation notices what is wrong with a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.markdown import DocumentationError, Reader, broken_links


def read(folder: Path, text: str, **instead: str) -> int:
    page = folder / "page.md"
    page.write_text(text)
    place = folder / "place"
    place.mkdir()
    return Reader(place, instead=instead).read(page)


def test_blocks_of_a_page_share_their_names(tmp_path: Path) -> None:
    text = '```python\nx = 20\n```\nand\n```python\nprint(x + 1)\n```\n```text title="Output"\n21\n```\n'
    assert read(tmp_path, text) == 2


def test_files_and_commands_work_together(tmp_path: Path) -> None:
    file = '```toml title="a/b.toml"\nx = 1\n```\n'
    console = "```console\n$ cat a/b.toml\nx = 1\n$ test -f a/b.toml \\\n    && echo yes\nyes\n```\n"
    assert read(tmp_path, file + console) == 1


def test_a_command_can_be_replaced(tmp_path: Path) -> None:
    assert read(tmp_path, "```console\n$ false\n```\n", false="true") == 1


def test_numbers_are_masked_and_dots_stand_for_anything(tmp_path: Path) -> None:
    assert read(tmp_path, "```console\n$ echo took 12.5 s for a b c\ntook 1 s   for ... c\n```\n") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nx = 1\n\n1 / 0\n```\n", "page.md:1: ZeroDivisionError"),
        ('```python\nprint(1)\n```\n```text title="Output"\none\n```\n', "page.md:4: the page shows"),
        ('```text title="Output"\none\n```\n', "output without a python block"),
        ("```console\n$ true\n$ echo a; exit 3\n```\n", "page.md:3: exit code 3"),
        ("```console\n$ echo b\na\n```\n", "page.md:2: the page shows"),
        ("```console\necho b\n```\n", "begins with"),
        ("```bash\nfalse\ntrue\n```\n", "page.md:1: exit code 1"),
        ("```py\n1 / 0\n```\n", "'py'"),
        ("```\n1 / 0\n```\n", "'nothing'"),
        ("```text\n$ make\n```\n", "belong in a console block"),
        ("text\n\n    ```python\n    1 / 0\n    ```\n", "page.md:3: a fenced block inside"),
        ("```toml\nx =\n```\n", "page.md:1: "),
    ],
)
def test_what_is_wrong_is_noticed(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DocumentationError) as error:
        read(tmp_path, text)
    assert complaint in str(error.value)


def test_links_into_nothing_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One, two\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#one-two) [b](#here) [c](gone.md) ![d](gone.png) [e](other.md#two) [f](https://x.y)\n"
    )
    complaints = broken_links(page, root=tmp_path)
    assert [complaint.split(": ")[1] for complaint in complaints] == ["gone.md", "gone.png", "other.md#two"]


def test_a_link_out_of_the_project_is_broken(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "outside.md").write_text("# x\n")
    page = tmp_path / "docs" / "page.md"
    page.write_text("[x](../outside.md)\n")
    assert len(broken_links(page, root=tmp_path / "docs")) == 1
