"""The benchmarks of how cost grows, and of what compiling costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import compiling, scaling
from benchmarks.overhead import LIGHTNING, NOT_OVERHEAD, PARTS, Clock, measure
from benchmarks.workload import W1


@pytest.mark.parametrize("axis", scaling.AXES)
def test_a_point_changes_one_number_of_the_workload(axis: str) -> None:
    value = scaling.AXES[axis][-1]
    w = scaling.workload(axis, value, seconds=1.0)
    numbers = {
        "envs": w.num_envs,
        "batch": w.batch_size,
        "width": w.hidden[0],
        "buffer": w.buffer_size,
        "update_per_collect": w.updates_per_round,
    }
    usual = {"envs": 8, "batch": 64, "width": 128, "buffer": 20_000, "update_per_collect": 5}
    assert numbers == usual | {axis: value}
    assert (w.gamma, w.learning_rate) == (W1.gamma, W1.learning_rate)
    assert w.warm_up >= w.batch_size
    assert (w.env_steps - w.warm_up) // w.num_envs >= 10  # rounds with updates


def test_a_point_measures_both_sides_in_every_turn() -> None:
    seconds = scaling.measure("envs", 1, seconds=0.02, repeats=2)
    assert {name: len(of_it) for name, of_it in seconds.items()} == {"ours": 2, "bare loop": 2}
    assert min(min(of_it) for of_it in seconds.values()) > 0


def test_every_algorithm_that_collects_is_compiled() -> None:
    assert {"dqn", "c51", "qrdqn", "rainbow", "ddpg", "td3", "sac", "ppo", "a2c", "pg"} <= set(compiling.recipes())
    assert not {"bc", "iql", "parallel_dqn"} & set(compiling.recipes())


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


def test_the_parts_of_a_round_add_up_to_its_time() -> None:
    parts = measure("W1", 800, skipped=5)
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total)
    assert set(PARTS) | {LIGHTNING} == set(parts)
    assert set(NOT_OVERHEAD) < set(parts)
    assert parts["updates"] > 100  # microseconds
    assert all(parts.values())  # each function that is timed is called


def test_the_clock_leaves_out_the_first_rounds() -> None:
    clock = Clock(skipped=2)
    learn = clock.timed("learning", lambda: time.sleep(0.01))
    for _ in range(2):
        learn()
    assert (clock.rounds, clock.total, dict(clock.seconds)) == (0, 0.0, {})
    learn()
    assert clock.rounds == 1
    assert clock.total >= clock.seconds["learning"] >= 0.01
