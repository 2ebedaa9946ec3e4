"""The tasks of a first hour run as a reader would run them, and the table has all of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.first_hour import Outcome, Place, commands_of, listed, page, row, run_task, script_of, what_runs
from benchmarks.first_hour_tasks import DOCS, TASKS, Task, sections_of
from tests.docs.pages import Block, blocks_of

HERE = Place(Path(__file__).parents[2])
PAGE = """# A page
```python
x = 1
```
## First
```python
## no heading
```
## Second
```bash
lightning-ding fit
```
"""


def page_with(*blocks: str) -> Task:
    """Return a task whose Markdown has these blocks, each a language and code."""
    return Task("try", "guides/index.md", text="".join(f"```{one.replace(': ', chr(10), 1)}\n```\n" for one in blocks))


def test_sections_of_a_page_follow_what_is_above_its_first_heading() -> None:
    found = blocks_of(sections_of(PAGE, ("Second",)))
    assert [block.code for block in found] == ["x = 1\n", "lightning-ding fit\n"]
    assert [block.code for block in blocks_of(sections_of(PAGE, ()))] == ["x = 1\n"]


def test_section_that_a_page_does_not_have_raises() -> None:
    with pytest.raises(ValueError, match=r"must be of \['First', 'Second'\], got \['Third'\]"):
        sections_of(PAGE, ("Third",))


def test_task_writes_files_and_runs_code_and_commands_in_their_order(tmp_path: Path) -> None:
    file = "python: # file: named.py\nvalue = 3"
    task = page_with(file, "python: import named\nx = named.value", "bash: python named.py", "python: assert x == 3")
    assert run_task(task, tmp_path / "task", HERE).state == "works"


@pytest.mark.parametrize("block", ["python: assert False", "bash: python missing.py"])
def test_task_whose_code_or_command_fails_has_failed(block: str, tmp_path: Path) -> None:
    assert run_task(page_with(block), tmp_path / "task", HERE).state == "failed"


def test_task_that_needs_a_missing_package_says_so(tmp_path: Path) -> None:
    task = Task("try", "guides/index.md", text=PAGE, package="no_such_package")
    outcome = run_task(task, tmp_path / "task", HERE)
    assert outcome.state == "needs the package no_such_package"
    assert row("x", task, outcome).endswith("| needs the package no_such_package |")


def test_commands_are_in_one_line_and_leave_out_what_only_prepares() -> None:
    code = "pip install x\nlightning-ding fit \\\n    --config 'a b.yaml'  # a comment\n"
    assert commands_of(Block("bash", code, 1)) == ["lightning-ding fit --config 'a b.yaml'"]
    assert commands_of(Block("bash", "# Not tested: it takes a minute\nlightning-ding fit\n", 1)) == []


def test_row_shows_the_numbers_of_commands_and_of_lines_of_python() -> None:
    task = page_with("python: a = 1\nb = 2", "bash: lightning-ding fit\nlightning-ding evaluate x.ckpt")
    assert what_runs(blocks_of(task.text)) == "2 lines of Python and 2 commands"
    assert listed(task) == "`lightning-ding fit`, `lightning-ding evaluate x.ckpt`"
    assert row("x", task, Outcome(12.4, "works")).endswith("| 12 |")


@pytest.mark.parametrize("name", TASKS)
def test_code_of_a_task_is_there_and_compiles(name: str) -> None:
    blocks = blocks_of(TASKS[name].markdown())
    assert what_runs(blocks)
    ast.parse(script_of(blocks))
    assert (DOCS / TASKS[name].page.partition("#")[0]).is_file()


def test_page_has_every_task_and_how_it_was_measured() -> None:
    text = page({name: Outcome(1.0, "works") for name in TASKS}, [0.5, 0.75], installed=99.6)
    assert f"{len(TASKS)} of {len(TASKS)} tasks of a new user work from a clean clone, in {len(TASKS)} seconds." in text
    assert "took 100 seconds" in text
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == list(TASKS)
    assert "load of the machine before and after: 0.5 and 0.8." in text
    assert len(TASKS) >= 25


def test_task_uses_the_installed_package_or_the_clone(tmp_path: Path) -> None:
    assert Place(tmp_path).environment()["PYTHONPATH"] == str(tmp_path)
    assert "PYTHONPATH" not in Place(tmp_path, is_installed=True).environment()
