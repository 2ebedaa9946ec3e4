"""The comparison with RLlib: equal settings, returns of episodes in parts, the table, and short runs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import rllib_side
from benchmarks.distributed_ppo import in_own_process, summary


def test_settings_of_ppo_are_ours() -> None:
    assert rllib_side.ppo_settings() == {
        "lr": 3e-4,
        "gamma": 0.99,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "use_kl_loss": False,
        "entropy_coeff": 0.0,
        "vf_loss_coeff": 0.25,  # 0.5 of half the squared error
        "vf_clip_param": math.inf,
        "train_batch_size_per_learner": 2048,
        "minibatch_size": 128,
        "num_epochs": 10,
    }


def test_settings_of_impala_are_ours() -> None:
    assert rllib_side.impala_settings(100_000) == {
        "lr": [[0, 1e-3], [100_000, 0.0]],
        "gamma": 0.98,
        "entropy_coeff": 0.5,
        "vf_loss_coeff": 0.1,  # 0.05 of the squared error
        "grad_clip": 0.5,
        "train_batch_size_per_learner": 512,  # 32 unrolls of 16 steps
        "num_epochs": 16,  # four updates for each 128 steps
    }
    schedule = rllib_side.impala_policy(5000)["learn"]["lr_scheduler"]
    assert schedule == {"type": "linear", "unit": "env_step", "decay": 5000}


def test_return_of_an_episode_is_the_sum_of_its_parts() -> None:
    noted: list[Any] = []
    metrics = SimpleNamespace(log_value=lambda *arguments, **named: noted.append((arguments, named)))
    parts = [SimpleNamespace(get_return=lambda value=value: value) for value in (1, 20, 300)]
    rllib_side.note_return(
        episode=parts[2], prev_episode_chunks=parts[:2], metrics_logger=metrics, env_runner=None, env_index=0
    )
    assert noted == [(("returns", 321.0), {"reduce": "item_series"})]


def test_time_of_a_return_is_that_of_the_first_point_that_has_it() -> None:
    curves: Any = [[(100, 1.0, 20.0), (200, 2.5, 210.0), (300, 3.0, 250.0)], [(100, 4.5, 200.0)]]
    assert rllib_side.reached(curves, 200.0) == "3.50 [2.50, 4.50]"
    assert rllib_side.reached(curves, 250.0) == "3.00 (1 of 2)"
    assert rllib_side.reached(curves, 475.0) == "- (0 of 2)"


def test_table_has_a_row_for_each_side() -> None:
    fast, slow = ([(1000 * i, i * seconds, 100.0 * i) for i in range(11)] for seconds in (0.5, 2.0))
    runs = {
        "ppo": {"ours": {"0": summary(fast)}, "rllib": {"0": summary(slow)}},
        "impala": {"ours": {"0": summary(slow), "1": summary(slow)}},
    }
    head = "seeds | env steps/s | seconds until {} | seconds until {} | return over the last tenth |"
    assert rllib_side.table(runs).splitlines() == [
        f"| ppo, Hopper-v5 | {head.format('500', '1,000')}",
        "|---|--:|--:|--:|--:|--:|",
        "| ours | 1 | 2,000.0 | 2.50 | 5.00 | 1,000.0 |",
        "| rllib | 1 | 500.0 | 10.0 | 20.0 | 1,000.0 |",
        "",
        f"| impala, CartPole-v1 | {head.format('200', '475')}",
        "|---|--:|--:|--:|--:|--:|",
        "| ours | 2 | 500.0 [500.0, 500.0] | 4.00 [4.00, 4.00] | 10.0 [10.0, 10.0] | 1,000.0 [1,000.0, 1,000.0] |",
    ]


def test_run_that_fails_has_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_own_process("benchmarks.no_such_module", ["--seeds", 0]) is None
    assert "--seeds 0 failed" in (printed := capsys.readouterr().err)
    assert "no_such_module" in printed


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "side"), [(one, side) for one, of in rllib_side.SIDES.items() for side in of])
def test_each_side_has_a_curve(algorithm: str, side: str) -> None:
    if side != "ours":
        pytest.importorskip("tree", reason="ray[rllib] is not installed")
    flags = ["--only", algorithm, "--sides", side, "--seeds", 0, "--steps", 5000]
    found = in_own_process("benchmarks.rllib_side", flags)
    assert found is not None
    assert found["curve"][-1][0] >= 5000
    assert found["env_steps_per_s"] > 0
