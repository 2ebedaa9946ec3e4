"""The benchmarks of how cost grows, and of what compiling costs."""

from __future__ import annotations

import pytest

from benchmarks import compiling, scaling
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
