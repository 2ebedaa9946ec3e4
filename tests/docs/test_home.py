"""The home page: its example runs, and its numbers are those of the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import versus
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
    assert len(rows) == 5
    for measured, ours, peer, page in rows:
        text = (DOCS / page).read_text()
        compiled = re.findall(r"compiled: ([\d.]+)", measured)
        assert [one for one in [ours, peer, *compiled] if f" {one} |" not in text] == [], measured


@pytest.mark.parametrize(("file", "link"), [("docs/index.md", ""), ("README.md", "docs/")])
def test_table_of_returns_is_what_the_script_writes(file: str, link: str) -> None:
    text = (DOCS.parent / file).read_text()
    pairs = [*versus.learning_pairs(DOCS / "results" / "learn")]
    assert versus.with_table(text, versus.home_table(pairs, f"{link}results/versus.md")) == text, (
        "python -m benchmarks.versus"
    )
    assert len(re.findall(r"^\| \[\w+ on .* env steps\]", text, re.MULTILINE)) == len(versus.HOME)


def test_numbers_of_the_readme_are_those_of_the_home_page() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    rows = re.findall(r"^\| .* \| \[commands?\]\(.*\) \|$", readme, re.MULTILINE)
    assert len(rows) == 4
    assert [row for row in rows if row.replace("](docs/", "](") not in HOME.splitlines()] == []
