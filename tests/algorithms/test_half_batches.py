"""Two gloo ranks with half a batch each learn what one rank learns from the whole batch.

That holds where ranks have equally many rows, as in replay, also where the sequences of one rank are shorter than those
of the other. Ranks whose rollouts are of different lengths, as those of
whole episodes, weigh equally in the gradient, whatever the number of their rows; statistics count every row once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ding.policy.on_policy import ActorPolicy
from tests.algorithms import half_batches_script
from tests.algorithms.table import WITHOUT_COLLECTING, names_of
from tests.processes import run_two_ranks

Reports = list[dict[str, Any]]
NAMES = [f"{name}, {clip}" for name in half_batches_script.EVERY for clip in ("free", "clipped")]
EVERY = pytest.mark.parametrize("name", NAMES)
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Return what each of two ranks reports."""
    folder = tmp_path_factory.mktemp("half_batches")
    run_two_ranks("-m", "tests.algorithms.half_batches_script", folder)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return what one process learns from the whole batches."""
    return half_batches_script.report()


@EVERY
def test_gradients_of_half_batches_are_those_of_the_whole_batch(
    name: str, ranks: Reports, alone: dict[str, Any]
) -> None:
    expected = alone[name]["gradients"]
    assert len(expected) >= half_batches_script.BATCHES
    assert all(float(gradient.abs().max()) > 0 for gradients in expected for gradient in gradients[-1:])
    for rank in ranks:
        torch.testing.assert_close(rank[name]["gradients"], expected, **EXACT)


@EVERY
def test_weights_after_half_batches_are_those_after_the_whole_batch(
    name: str, ranks: Reports, alone: dict[str, Any]
) -> None:
    for rank in ranks:
        torch.testing.assert_close(rank[name]["weights"], alone[name]["weights"], rtol=1e-6, atol=1e-6)
        assert all(torch.equal(x, ranks[0][name]["weights"][key]) for key, x in rank[name]["weights"].items())


@EVERY
def test_priorities_of_half_batches_are_those_of_the_whole_batch(
    name: str, ranks: Reports, alone: dict[str, Any]
) -> None:
    expected = alone[name]["priority"]
    without = (
        *names_of(ActorPolicy),
        *half_batches_script.ROLLOUT_TEAMS,
        *WITHOUT_COLLECTING,
        "dreamerv3",
        "tdmpc2",
        "mbpo",
    )
    assert len(expected) == (0 if name.split(",")[0] in without else half_batches_script.BATCHES)
    for number, rank in enumerate(ranks):
        torch.testing.assert_close(rank[name]["priority"], expected[..., number::2], **EXACT)


def test_statistics_of_returns_are_those_of_the_whole_rollout(ranks: Reports, alone: dict[str, Any]) -> None:
    expected = alone["ppo, free"]["return_statistics"]
    assert float(expected["count"]) > half_batches_script.ENVS * half_batches_script.STEPS
    for rank in ranks:
        torch.testing.assert_close(rank["ppo, free"]["return_statistics"], expected, **EXACT)
