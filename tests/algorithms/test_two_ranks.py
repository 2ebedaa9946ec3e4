"""Every algorithm under a stock Trainer with DDP on two processes: what is the same on both ranks, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.algorithms.table import ALGORITHMS, TEAMS, VARIANTS
from tests.algorithms.two_ranks_script import NORMALISED, ROUNDS, WHOLE_EPISODES
from tests.processes import run_ranks_of_lightning

Reports = list[dict[str, Any]]

FIXED = "model.novelty.target."  # random features that a predictor learns
EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS, *VARIANTS])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Run the script to its end, once for all algorithms, and return what each rank wrote."""
    folder = tmp_path_factory.mktemp("two_ranks")
    run_ranks_of_lightning("-m", "tests.algorithms.two_ranks_script", folder, timeout=280)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@EVERY
def test_ranks_end_with_bit_identical_states(name: str, reports: Reports) -> None:
    one, other = (report[name]["weights"] for report in reports)
    assert set(one) == set(other)
    for key, tensor in one.items():
        assert torch.equal(tensor, other[key]), key


@EVERY
def test_training_moves_every_weight_that_learns(name: str, reports: Reports) -> None:
    first, last = reports[0][name]["first_weights"], reports[0][name]["weights"]
    parts = ("model.", "dynamics.layers.")  # the latter of a model of the env
    learned = [key for key in last if key.startswith(parts) and not key.startswith(FIXED)]
    assert len(learned) >= 4
    assert not [key for key in learned if torch.equal(first[key], last[key])]


@EVERY
def test_ranks_collect_different_data(name: str, reports: Reports) -> None:
    one, other = (report[name] for report in reports)
    for key in ("obs", "action"):
        size = min(len(one[key]), len(other[key]))
        assert size >= ROUNDS * 8
        assert not torch.equal(one[key][:size], other[key][:size]), key
    assert not torch.equal(one["exploration"], other["exploration"])


@EVERY
def test_env_steps_are_counted_over_both_ranks(name: str, reports: Reports) -> None:
    one, other = (report[name] for report in reports)
    assert one["rounds"] == other["rounds"] == ROUNDS
    assert one["progress"] == other["progress"]
    assert one["progress"]["env_step"] == one["env_step_of_rank"] + other["env_step_of_rank"]


@pytest.mark.parametrize("name", ["pg", *WHOLE_EPISODES])
def test_ranks_whose_episodes_are_of_uneven_lengths_wait_for_each_other(name: str, reports: Reports) -> None:
    one, other = (report[name] for report in reports)
    assert one["env_step_of_rank"] != other["env_step_of_rank"]
    assert one["progress"]["episode"] == 2 * 2 * ROUNDS


def test_ranks_normalise_by_the_statistics_of_both(reports: Reports) -> None:
    for name in NORMALISED:
        one, other = (report[name]["normaliser"] for report in reports)
        assert set(one) == {f"{kind}.{key}" for kind in ("obs", "reward") for key in ("count", "mean", "m2")}
        for key, value in one.items():
            assert torch.equal(value, other[key]), key
        for kind in ("obs", "reward"):
            assert float(one[f"{kind}.count"]) == reports[0][name]["progress"]["env_step"]
