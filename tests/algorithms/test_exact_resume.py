"""A run that was killed and resumed from its last checkpoint ends with exactly the weights of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import processes
from tests.algorithms.exact_resume_script import CASES, EPOCHS, KILLED, MODES, ROUNDS
from tests.algorithms.table import ALGORITHMS, TEAMS, plain

Report = dict[str, Any]
Reports = Callable[[int], dict[str, list[tuple[Report, Report]]]]

EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
RANKS = pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Return a function that runs the script, once for each number of ranks, and returns what each rank wrote."""
    made: dict[int, dict[str, list[tuple[Report, Report]]]] = {}
    started = {1: False, 2: False}

    def run(ranks: int) -> dict[str, list[tuple[Report, Report]]]:
        if ranks not in made:
            assert not started[ranks], "the runs failed in a test before this one"
            started[ranks] = True
            folder = tmp_path_factory.mktemp(f"exact_{ranks}")
            processes.run("-m", "tests.algorithms.exact_resume_script", folder, ranks, timeout=280)
            made[ranks] = {name: _read(folder / name, ranks) for name in (*ALGORITHMS, *TEAMS)}
        return made[ranks]

    return run


def _read(folder: Path, ranks: int) -> list[tuple[Report, Report]]:
    files = [[folder / f"{run}_{rank}.pt" for run in ("straight", "resumed")] for rank in range(ranks)]
    return [(torch.load(one, weights_only=True), torch.load(other, weights_only=True)) for one, other in files]


def test_cases_are_those_of_algorithms() -> None:
    assert set(CASES) <= set(ALGORITHMS)


@RANKS
@EVERY
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(name: str, ranks: int, reports: Reports) -> None:
    for straight, resumed in reports(ranks)[name]:
        for part in straight:
            if part != "series":
                assert plain(resumed[part]) == plain(straight[part]), part


@RANKS
@EVERY
def test_a_resumed_run_logs_what_was_left_to_log(name: str, ranks: int, reports: Reports) -> None:
    straight, resumed = reports(ranks)[name][0]
    left = straight["series"][-len(resumed["series"]) :]
    assert left == resumed["series"]
    assert EPOCHS - KILLED < len(left) < len(straight["series"])
    assert any("eval/return_mean" in metrics for _, metrics in left)
    assert any("learn/total_loss" in metrics or "learn/critic_loss" in metrics for _, metrics in left)


@EVERY
def test_runs_trained_after_the_kill_too(name: str, reports: Reports) -> None:
    ((straight, _),) = reports(1)[name]
    assert straight["epochs"] == EPOCHS
    assert straight["counters"]["train_iter"] >= EPOCHS * ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODES)
def test_a_run_killed_twice_ends_with_the_same_bits_with_other_modes_of_envs(name: str, tmp_path: Path) -> None:
    processes.run("-m", "tests.algorithms.exact_resume_script", tmp_path, 1, name, timeout=280)
    ((straight, resumed),) = _read(tmp_path / name, 1)
    for part in straight:
        if part != "series":
            assert plain(resumed[part]) == plain(straight[part]), part
    assert straight["series"][-len(resumed["series"]) :] == resumed["series"]
    assert straight["counters"]["train_iter"] >= EPOCHS * ROUNDS
