"""Every notebook runs from its first cell to its last, and is stored without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.test_docs import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def read(notebook: Path) -> Any:
    return nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]


def test_every_notebook_is_run_here() -> None:
    assert [one.stem for one in NOTEBOOKS] == ["first_steps", "offline", "own_algorithm", "teams"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MPLBACKEND", "agg")
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(read(notebook), timeout=120, kernel_name="python3", resources=folder).execute()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda one: one.stem)
def test_notebook_is_stored_without_outputs(notebook: Path) -> None:
    cells = [cell for cell in read(notebook).cells if cell.cell_type == "code"]
    assert len(cells) >= 4
    assert [cell.outputs for cell in cells] == [[]] * len(cells)
    assert {cell.execution_count for cell in cells} == {None}
