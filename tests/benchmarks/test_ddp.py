"""Averaging gradients: both methods do equal work on two ranks; only the weights of separate runs differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ddp import CONTESTANTS, costs_of

ROOT = Path(__file__).parents[2]


def measured(tmp_path: Path, *only: str) -> dict[str, Any]:
    """Run some contestants for a few updates, and return what was recorded."""
    out = tmp_path / "ddp.json"
    command = [sys.executable, "-m", "benchmarks.ddp", "--env-steps", "520", "--repeats", "1", "--out", str(out)]
    done = subprocess.run([*command, "--only", *only], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "averaging ms" in done.stdout
    record: dict[str, Any] = json.loads(out.read_text())
    return record


@pytest.mark.slow
def test_stock_way_of_averaging_works_for_losses_of_several_networks(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, "W3 DDP")["medians"].values()

    assert (row["env_steps"], row["updates"]) == (1040, 20)  # of both ranks; each has a warm-up of 500
    assert 0 < row["step_seconds"] < row["seconds"]
    assert row["ranks_agree"]


@pytest.mark.slow
def test_both_methods_do_equal_work_and_only_separate_runs_differ(tmp_path: Path) -> None:
    record = measured(tmp_path, *CONTESTANTS)

    for name, row in record["medians"].items():
        work = (1040, 20) if name.startswith("W3") else (1040, 5)  # a warm-up of 500, of 512
        assert (row["env_steps"], row["updates"]) == work, name
        assert row["ranks_agree"] == ("apart" not in name), name
    parts = {"W1 ours, in parts", "W3 ours, in parts"}
    assert record["costs"].keys() == {"W1 ours", "W1 DDP", "W3 ours", "W3 DDP", *parts}


def test_cost_of_averaging_is_the_additional_time_of_a_step() -> None:
    row = {"seconds": 10.0, "step_seconds": 4.0, "updates": 1000.0}

    costs = costs_of({"W1 ours": row, "W1 ours, apart": {**row, "seconds": 8.0, "step_seconds": 3.0}})

    assert costs == {"W1 ours": pytest.approx({"ms_per_update": 1.0, "share": 0.1, "slower": 0.25})}


def test_the_wait_for_the_other_rank_is_listed_apart_from_the_average() -> None:
    row = {"seconds": 10.0, "step_seconds": 4.0, "updates": 1000.0, "waiting_seconds": 0.5, "averaging_seconds": 0.25}

    assert costs_of({"W1 ours, in parts": row}) == {"W1 ours, in parts": {"waiting_ms": 0.5, "averaging_ms": 0.25}}
