"""The pages of docs/contributing are carried out: their files are created, their lines inserted, their command run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "contributing"
FLAGS = re.MULTILINE | re.DOTALL
STEP = re.compile(r"^(?:Create|In) `([^`]+)`(?:, after `([^\n]+)`)?:\n\n(`{3,})\w*\n(.*?)^\3$", FLAGS)
COMMAND = re.compile(r"^## Check\n\n```bash\n(.*?)^```$", FLAGS)
NOT_COPIED = (".*", "build", "runs", "*.egg-info", "results", "*.pyc.*")  # the last ones are being written


class Step(NamedTuple):
    """One file to create, or lines to insert after the line that contains the anchor."""

    file: str
    anchor: str
    text: str


def steps_of(page: Path) -> list[Step]:
    return [Step(file, anchor, text) for file, anchor, _, text in STEP.findall(page.read_text())]


def carry_out(step: Step, root: Path) -> None:
    file = root / step.file
    if not step.anchor:
        assert not file.exists(), f"{step.file} exists already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(step.text)
        return
    lines = file.read_text().splitlines(keepends=True)
    (place,) = (number for number, line in enumerate(lines) if step.anchor.strip("`") in line)
    file.write_text("".join([*lines[: place + 1], step.text, *lines[place + 1 :]]))


def test_every_page_has_steps_and_a_command() -> None:
    pages = sorted(PAGES.glob("*.md"))
    assert [page.stem for page in pages] == ["algorithm", "buffer", "callback", "transport"]
    for page in pages:
        assert len(steps_of(page)) == len(re.findall(r"^(?:Create|In) `", page.read_text(), flags=re.MULTILINE)) >= 2
        assert len(COMMAND.findall(page.read_text())) == 1


@pytest.mark.parametrize("name", ["algorithm", "buffer", "callback", "transport"])
def test_the_steps_of_a_page_add_what_it_promises(name: str, tmp_path: Path) -> None:
    page, root = PAGES / f"{name}.md", tmp_path / "copy"
    shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for step in steps_of(page):
        carry_out(step, root)
    (command,) = COMMAND.findall(page.read_text())
    python, *arguments = shlex.split(command)
    assert python == "python"
    environment = {"PYTHONPATH": str(root), "PYTEST_ADDOPTS": "-p no:cacheprovider -q"}
    run(*arguments, folder=root, environment=environment, timeout=250)
