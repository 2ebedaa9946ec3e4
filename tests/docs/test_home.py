"""The home page: its example runs, and its numbers are those of the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import as_before, code_of, run_page
from tests.test_docs import DOCS

HOME = (DOCS / "index.md").read_text()


def test_example_of_the_home_page_has_twelve_lines_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = code_of("python", HOME)
    assert len(example.splitlines()) == 12
    page = tmp_path / "index.md"
    page.write_text(HOME.replace("50_000", "1_000"))
    with as_before(tmp_path, monkeypatch):
        module = run_page(page)
    assert vars(module)["result"]["test/return_mean"] > 0


def test_every_number_of_the_home_page_is_one_of_the_results() -> None:
    rows = re.findall(
        r"^\| (.*?) \| ([\d.,]+) \| [\w -]+: ([\d.,]+) \| \[commands?\]\((\S+?)#\S+\) \|$", HOME, re.MULTILINE
    )
    assert len(rows) == 9
    for measured, ours, peer, page in rows:
        text = (DOCS / page).read_text()
        compiled = re.findall(r"compiled: ([\d.]+)", measured)
        assert [one for one in [ours, peer, *compiled] if f" {one} |" not in text] == [], measured


def test_numbers_of_the_readme_are_those_of_the_home_page() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    rows = re.findall(r"^\| .* \| \[commands?\]\(.*\) \|$", readme, re.MULTILINE)
    assert len(rows) == 6
    assert [row for row in rows if row.replace("](docs/", "](") not in HOME.splitlines()] == []
