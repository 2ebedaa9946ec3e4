"""Statistics over the data of two gloo processes are those of one process that has it all."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.policy.base.rank_statistics import standardise_over_ranks, update_over_ranks
from lightning_ding.rl import RunningMeanStd
from lightning_ding.utils.ranks import mean_over_ranks, min_over_ranks, world_size
from tests.processes import run_two_ranks

SCRIPT = Path(__file__).with_name("rank_statistics_script.py")
Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Return what each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(SCRIPT, folder)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """Return the names of the script."""
    return runpy.run_path(str(SCRIPT))


def test_minibatch_is_standardised_as_the_one_of_all_ranks_together(ranks: Reports, script: dict[str, Any]) -> None:
    rows = [[row for table in script["tables_of"](rank) for row in table] for rank in range(2)]
    found = [[row for table in report["standardised"] for row in table] for report in ranks]
    assert [len(row) for row in rows[0]] == [4, 3, 3]
    assert [len(row) for row in rows[1]] == [3, 3, 3]
    for mine, theirs, found_mine, found_theirs in zip(*rows, *found, strict=True):
        whole = torch.cat([mine, theirs])
        expected = (whole - whole.mean()) / whole.std()
        assert_close(torch.cat([found_mine, found_theirs]), expected, rtol=1e-6, atol=1e-6)


def test_running_statistics_are_those_of_all_data_and_the_same_bits_on_both(
    ranks: Reports, script: dict[str, Any]
) -> None:
    everything = torch.cat([items for rank in range(2) for items in script["items_of"](rank)]).double()
    one, other = (report["running"] for report in ranks)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one["count"] == len(everything) == 10 + 9 + 3 + 4
    assert_close(one["mean"], everything.mean(), rtol=1e-12, atol=0)
    assert_close(one["m2"], (everything - everything.mean()).square().sum(), rtol=1e-9, atol=0)


def test_numbers_of_all_ranks_become_one(ranks: Reports) -> None:
    assert [report["smallest"] for report in ranks] == [6, 6]
    assert [report["mean"] for report in ranks] == [1.5, 1.5]


def test_ranks_with_rollouts_of_unequal_size_make_equally_many_updates(ranks: Reports) -> None:
    one, other = (report["learned"] for report in ranks)
    # 10 and 9 rows in minibatches of about 3 are 3 minibatches each; 2 rounds of 2 passes
    assert one["train_iter"] == other["train_iter"] == 12
    assert all(torch.equal(one["state"][name], other["state"][name]) for name in one["state"])
    assert one["state"]["return_statistics.count"] == 2 * 19


def test_ranks_stop_their_passes_together(ranks: Reports) -> None:
    assert [report["stopped"]["train_iter"] for report in ranks] == [6, 6]  # of each round only the first pass


def test_one_process_is_its_own_mean_and_minimum() -> None:
    assert (world_size(), min_over_ranks(7), mean_over_ranks(0.5)) == (1, 7, 0.5)


def test_one_process_standardises_each_minibatch_alone() -> None:
    # deviations of (1, 2, 3) from 2 over their deviation 1; equal numbers have none, a single one stays as it is
    tables = [torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]), torch.tensor([[4.0]])]
    found = standardise_over_ranks(tables)
    assert_close(found[0], torch.tensor([[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    assert found[1].tolist() == [[4.0]]


def test_one_process_keeps_running_statistics_alone() -> None:
    running = RunningMeanStd()
    update_over_ranks(running, torch.tensor([1.0, 3.0]))
    assert (running.count.item(), running.mean.item(), running.std.item()) == (2.0, 2.0, 1.0)
