"""Run the code of a page of the docs in this process, as a reader would: one block after another, in a new folder.

* ``python`` blocks share a namespace, that of the module ``__main__``.
* A block whose first line is ``# file: NAME`` is written to that file; other blocks can import it or name it.
* In ``bash`` blocks, lines that begin with ``lightning-ding`` or ``python`` run; those of ``NOT_RUN`` do not.
* ``yaml`` and ``json`` blocks must be valid, and the config of a distributed run complete.
* A block whose first line is ``# Not tested: REASON`` does not run; a reader sees the reason.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
import yaml

from lightning_ding import registry
from lightning_ding.entry.cli import main
from lightning_ding.entry.config_file import read_config

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# file: (\S+)\n")
NOT_TESTED = re.compile(r"# Not tested: \S+")
NOT_RUN = ("pip", "tensorboard", "export", "cd", "make")
"""Programs in ``bash`` blocks that prepare or watch a run."""
LANGUAGES = ("python", "bash", "yaml", "json", "text", "")
TABLES = [table for name, table in vars(registry).items() if name.endswith("_REGISTRY")]


@dataclass(frozen=True)
class Block:
    """A block of code, and the number of its first line in the page."""

    language: str
    code: str
    line: int

    @property
    def file(self) -> str | None:
        """Name of the file to write the block to; None to run it."""
        found = FILE.match(self.code)
        return None if found is None else found[1]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, also those inside lists and tabs, without their indentation."""
    return [
        Block(found["language"], textwrap.dedent(found["code"]), page.count("\n", 0, found.start("code")) + 1)
        for found in FENCE.finditer(page)
    ]


def code_of(language: str, page: str) -> list[str]:
    """Return the code of the blocks of one language."""
    return [block.code for block in blocks_of(page) if block.language == language]


def run_page(page: Path) -> types.ModuleType:
    """Run the blocks of a page in the working directory, and return the module of its Python blocks."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for block in blocks_of(page.read_text()):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: a block must be one of {LANGUAGES}, got {block.language!r}"
        try:
            _run(block, page, vars(module))
        except BaseException as error:
            raise AssertionError(f"{where}: {error!r}") from error
    return module


def _run(block: Block, page: Path, names: dict[str, Any]) -> None:
    if block.language in ("yaml", "json"):
        documents = yaml.safe_load_all(block.code) if block.language == "yaml" else [json.loads(block.code)]
        assert all(document is not None for document in documents)
    if block.file is not None:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.code)
        if block.language == "yaml" and "\nsystem:" in block.code:
            read_config(block.file, [])  # of a distributed run, which no page starts
    elif NOT_TESTED.match(block.code):
        return
    elif block.language == "python":
        code = "\n" * (block.line - 1) + block.code  # so that a traceback has the lines of the page
        exec(compile(code, str(page), "exec"), names)
    elif block.language == "bash":
        for line in block.code.replace("\\\n", " ").splitlines():
            run_command(line)


def run_command(line: str) -> None:
    """Run a line of a ``bash`` block.

    Raises:
        ValueError: If it begins with a program that is neither run nor listed in ``NOT_RUN``.
    """
    words = shlex.split(line, comments=True)
    if not words or words[0] in NOT_RUN:
        return
    program, *options = words
    code: Any = None
    try:
        if program == "lightning-ding":
            sys.argv = [program, *options]
            main()
        elif program == "python" and options and options[0].endswith(".py"):
            sys.argv = options
            runpy.run_path(options[0], run_name="__main__")
        else:
            raise ValueError(f"a command must be lightning-ding, python FILE.py, or one of {NOT_RUN}, got {line!r}")
    except SystemExit as end:
        code = end.code
    assert code in (0, None), f"{line!r} ended with exit code {code}"


@contextmanager
def as_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in ``folder``, and undo afterwards what code has changed in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("WANDB_DATA_DIR", str(folder / "wandb_data"))  # otherwise in the home folder
    environment, envs, threads = dict(os.environ), dict(gym.registry), torch.get_num_threads()
    main_module = sys.modules["__main__"]
    entries = [{name: table.get(name) for name in table} for table in TABLES]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        gym.registry.clear()
        gym.registry.update(envs)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        sys.modules["__main__"] = main_module
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        for table, known in zip(TABLES, entries, strict=True):
            cast(Any, table)._entries = known
