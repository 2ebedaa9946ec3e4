from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_benchmark_compares_a_bare_loop_and_this_project_on_equal_work(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    command = [sys.executable, "-m", "benchmarks.dqn", "--env-steps", "800", "--repeats", "1", "--out", str(out)]
    done = subprocess.run([*command, "--only", "bare loop", "ours"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    medians = json.loads(out.read_text())["medians"]
    assert {name: (row["env_steps"], row["updates"]) for name, row in medians.items()} == {
        "bare loop": (800, 180),  # (800 - 512) / 8 * 5
        "ours": (800, 180),
    }
    assert "ratio" in done.stdout
