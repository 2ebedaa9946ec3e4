"""The workflows of GitHub Actions, the Dockerfile and CITATION.cff: linters accept them, and what they name exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_ding import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CFF_KEYS = {"cff-version", "message", "title", "authors"}
"""Keys that the schema of CFF 1.2.0 requires."""


def lint(program: str, *files: Path) -> None:
    """Run a linter of the environment over files; skip the test where it is not installed."""
    found = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{program} is not installed")
    done = subprocess.run([found, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def commands() -> list[str]:
    """Return the commands of all steps of all workflows."""
    jobs = [job for file in WORKFLOWS for job in yaml.safe_load(file.read_text())["jobs"].values()]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_dockerfile_is_accepted_by_hadolint() -> None:
    lint("hadolint", ROOT / "Dockerfile")


def test_workflows_are_accepted_by_actionlint() -> None:
    lint("actionlint", *WORKFLOWS)


def test_every_job_has_a_time_limit_and_few_rights() -> None:
    assert len(WORKFLOWS) == 3
    for file in WORKFLOWS:
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}
        assert all(job["timeout-minutes"] <= 60 for job in workflow["jobs"].values())


def test_make_targets_test_files_and_extras_of_the_workflows_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)) | {".venv/.ready"}
    project = (ROOT / "pyproject.toml").read_text()
    made = [command.split()[1] for command in commands() if command.startswith("make ")]
    tested = [word for command in commands() for word in command.split() if word.startswith("tests/")]
    named = [
        extra for command in commands() for group in re.findall(r"\.\[(.*?)\]", command) for extra in group.split(",")
    ]
    assert len(made) >= 4
    assert set(made) <= targets
    assert len(tested) >= 5
    assert [path for path in tested if not (ROOT / path).exists()] == []
    assert len(named) >= 5
    assert [extra for extra in named if f"\n{extra} = [" not in project] == []


def test_files_of_the_quick_choice_exist() -> None:
    chosen = [one.partition("::")[0] for one in (ROOT / "tests" / "quick.txt").read_text().split()]
    assert [path for path in chosen if not (ROOT / path).exists()] == []


def test_citation_has_the_required_keys_and_the_version_of_the_package() -> None:
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation.keys() >= CFF_KEYS
    assert citation["cff-version"] == "1.2.0"
    assert all(author.keys() & {"name", "family-names", "given-names", "alias"} for author in citation["authors"])
    assert f'\nversion = "{citation["version"]}"\n' in (ROOT / "pyproject.toml").read_text()
    assert citation["version"] == __version__
    assert f'\nlicense = "{citation["license"]}"\n' in (ROOT / "pyproject.toml").read_text()
