"""Two ranks, one of which has episodes ten times as long: no rank blocks, and both do the same and end together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import processes
from tests.datamodules.uneven_ranks_script import LENGTHS, RETURN_MEAN, RETURNS

Reports = list[dict[str, Any]]

SCRIPT = Path(__file__).with_name("uneven_ranks_script.py")
LAUNCHERS = {
    "lightning": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}
RUNS = ("sample, max_env_step", "episode, max_env_step", "replay, stop_value", "replay, EarlyStopping")
EVERY = pytest.mark.parametrize("run", RUNS)


def train(launcher: str, folder: Path) -> Reports:
    """Run the script to its end, and return what each rank wrote."""
    processes.run(*LAUNCHERS[launcher], SCRIPT, folder)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return train("lightning", tmp_path_factory.mktemp("lightning"))


@EVERY
def test_ranks_make_the_same_updates_and_end_with_the_same_bits(run: str, reports: Reports) -> None:
    one, other = (report[run] for report in reports)
    assert one["progress"] == other["progress"]
    assert one["progress"]["train_iter"] >= one["rounds"] == other["rounds"] > 0
    assert one["epoch"] == other["epoch"]
    assert set(one["weights"]) == set(other["weights"])
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


@EVERY
def test_every_rank_knows_the_evaluation_of_all_episodes(run: str, reports: Reports) -> None:
    for report in reports:
        metrics = report[run]["metrics"]
        assert metrics["eval/return_mean"] == pytest.approx(RETURN_MEAN)
        assert (metrics["eval/return_min"], metrics["eval/return_max"]) == RETURNS


def test_max_env_step_counts_the_steps_of_all_ranks(reports: Reports) -> None:
    steps = [report["sample, max_env_step"]["env_step_of_rank"] for report in reports]
    assert steps == [112, 112]  # 7 rounds of 16 each, the first number of them with 200 in all
    assert reports[0]["sample, max_env_step"]["progress"]["env_step"] == 224


def test_max_env_step_counts_whole_episodes_of_all_ranks(reports: Reports) -> None:
    runs = [report["episode, max_env_step"] for report in reports]
    rounds = 5  # of 4 episodes each: 176 steps in all, of which 5 rounds make 880
    assert [run["rounds"] for run in runs] == [rounds] * 2
    assert [run["env_step_of_rank"] for run in runs] == [rounds * 4 * length for length in LENGTHS]
    assert runs[0]["progress"]["env_step"] == rounds * 4 * sum(LENGTHS)
    assert runs[0]["progress"]["episode"] == rounds * 4 * 2


def test_stop_value_is_reached_by_all_ranks_together(reports: Reports) -> None:
    assert RETURNS[0] < RETURN_MEAN < RETURNS[1]  # so that neither rank decides alone
    assert [report["replay, stop_value"]["epoch"] for report in reports] == [1, 1]


def test_early_stopping_of_lightning_ends_all_ranks_together(reports: Reports) -> None:
    # the mean return never gets better than in the first epoch, and two more are waited for
    assert [report["replay, EarlyStopping"]["epoch"] for report in reports] == [3, 3]


@pytest.mark.parametrize("run", ["sample, max_env_step", "replay, EarlyStopping"])
def test_observations_are_normalised_by_those_of_all_ranks(run: str, reports: Reports) -> None:
    one, other = (report[run]["normaliser"] for report in reports)
    assert set(one) == set(other)
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    assert float(one["obs.count"]) == reports[0][run]["progress"]["env_step"]


def test_torchrun_trains_the_very_weights_that_lightnings_launcher_trains(reports: Reports, tmp_path: Path) -> None:
    for started, here in zip(train("torchrun", tmp_path), reports, strict=True):
        for run in RUNS:
            assert started[run]["progress"] == here[run]["progress"]
            assert without_rates(started[run]["metrics"]) == without_rates(here[run]["metrics"])
            for name, tensor in here[run]["weights"].items():
                assert torch.equal(started[run]["weights"][name], tensor), (run, name)


def without_rates(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("_per_second")}
