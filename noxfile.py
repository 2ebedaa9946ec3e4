"""Tests on each supported Python, in a new environment each.

    python -m nox                       # everything, on every Python that is installed
    python -m nox -s tests-3.12         # installs the package on Python 3.12, and runs a fast choice of tests
    python -m nox -s source             # checks the source for each Python, without installing anything

``tests`` installs torch in the version of constraints.txt. ``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu``
chooses the small build for CPUs. A Python that is not installed is skipped; it fails with
``--error-on-missing-interpreters``.
"""

from __future__ import annotations

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
CHOICE = [
    "@tests/quick.txt",
    "tests/entry/test_evaluate.py",
    "tests/recipes/test_recipes.py::test_yaml_trains_from_the_command_line",
    "tests/test_config.py",
    "tests/test_light_imports.py",
    "tests/test_nested.py",
    "tests/utils/test_schedules.py",
    "tests/worker/buffer",
    "tests/worker/collector",
]
"""A part of each layer; a run of all tests takes most of an hour of CPU time for each Python."""

nox.options.default_venv_backend = "virtualenv"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Install the package, and run a choice of the fast tests."""
    session.install("-c", "constraints.txt", "torch")
    session.install("-c", "constraints.txt", "-e", ".[atari,onnx,pettingzoo,test]")
    session.run("lightning-ding", "--version")
    session.run("python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *CHOICE, *session.posargs)


@nox.session(python=PYTHONS)
def syntax(session: nox.Session) -> None:
    """Compile every file, which needs no packages."""
    folders = ["lightning_ding", "recipes", "benchmarks", "tests", "docs/hooks", "noxfile.py"]
    session.run("python", "-m", "compileall", "-q", *folders, env={"PYTHONPYCACHEPREFIX": session.create_tmp()})


@nox.session(python=False)
@nox.parametrize("version", PYTHONS)
def types(session: nox.Session, version: str) -> None:
    """Check types against the standard library of a Python, in the environment that runs nox."""
    session.run("python", "-m", "mypy", "--python-version", version, "--cache-dir", f".mypy_cache/{version}")
