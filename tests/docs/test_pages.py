"""What runs of a page, and what ends the run of a page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightning_ding.registry import ENCODER_REGISTRY
from tests.docs.pages import Block, as_before, blocks_of, code_of, run_command, run_page


def page_of(folder: Path, *blocks: str) -> Path:
    """Return a page with blocks, each a language and a line of code."""
    page = folder / "page.md"
    page.write_text("".join(f"```{one.replace(': ', chr(10), 1)}\n```\n" for one in blocks))
    return page


def test_blocks_have_their_line_and_no_indentation() -> None:
    page = "text\n```python\nx = 1\n```\n* item\n\n  ```yaml\n  a: 1\n  ```\n"
    assert blocks_of(page) == [Block("python", "x = 1\n", 3), Block("yaml", "a: 1\n", 8)]
    assert code_of("yaml", page) == ["a: 1\n"]


def test_python_blocks_share_their_names_and_import_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, "python: x = 1", "python: # file: some_module.py\ny = 2", "python: import some_module")
    with as_before(tmp_path, monkeypatch):
        module = run_page(page)
        assert (module.x, module.some_module.y) == (1, 2)
    assert "some_module" not in sys.modules
    assert sys.modules["__main__"] is not module


def test_block_that_raises_ends_the_page_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, "python: x = 1", "python: assert x == 2")
    with as_before(tmp_path, monkeypatch), pytest.raises(AssertionError, match=r"page\.md:5: AssertionError"):
        run_page(page)


def test_block_that_says_why_it_is_not_tested_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, "python: # Not tested: needs two GPUs\nraise OSError", "python: x = 1")
    with as_before(tmp_path, monkeypatch):
        assert run_page(page).x == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("curl example.org", "a command must be"),
        ("python -m somewhere", "a command must be"),
        ("lightning-ding fot", "ended with exit code 2"),
    ],
)
def test_command_that_fails_ends_the_page(
    line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with as_before(tmp_path, monkeypatch), pytest.raises((ValueError, AssertionError), match=reason):
        run_command(line)


@pytest.mark.parametrize("line", ["", "# a comment", "pip install lightning_ding", "lightning-ding --version  # short"])
def test_command_of_a_page_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_before(tmp_path, monkeypatch):
        run_command(line)


def test_page_in_another_language_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_before(tmp_path, monkeypatch), pytest.raises(AssertionError, match="got 'perl'"):
        run_page(page_of(tmp_path, "perl: 1"))


def test_code_of_a_page_registers_nothing_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from lightning_ding.registry import ENCODER_REGISTRY\nENCODER_REGISTRY.register('of_a_page')(dict)"
    with as_before(tmp_path, monkeypatch):
        run_page(page_of(tmp_path, f"python: {code}"))
        assert "of_a_page" in ENCODER_REGISTRY
    assert "of_a_page" not in ENCODER_REGISTRY
