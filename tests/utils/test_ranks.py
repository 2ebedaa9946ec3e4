from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.utils.progress import Progress
from tests.processes import run_two_ranks
from tests.utils.ranks_script import results

SCRIPT = Path(__file__).with_name("ranks_script.py")


def test_two_ranks_get_the_same_results(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path)
    first, second = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2))
    expected: dict[str, Any] = {
        "sum": [2.0, 21.0],
        "mean": 1.5,
        "min": 6,
        "max": 7,
        "any": [True, True, False],
        "rows": [[0, 5], [1, 5]],
        "bytes": ["", "ab"],
    }
    for rank, found in enumerate((first, second)):
        own = {"rank_and_world_size": [rank, 2], "argument": [1.0, 10.0 + rank]}
        assert found == expected | own


def test_a_process_without_a_group_is_the_only_rank() -> None:
    assert not torch.distributed.is_initialized()
    assert results(0) == {
        "rank_and_world_size": (0, 1),
        "sum": [1.0, 10.0],
        "argument": [1.0, 10.0],
        "mean": 1.0,
        "min": 7,
        "max": 7,
        "any": [True, True, False],
        "rows": [[0, 5]],
        "bytes": [""],
    }


def test_progress_starts_at_zero() -> None:
    assert Progress().state_dict() == {"train_iter": 0, "env_step": 0, "episode": 0, "sample": 0}


def test_progress_state_restores_every_counter() -> None:
    restored = Progress()
    restored.load_state_dict(Progress(train_iter=1, env_step=2, episode=3, sample=4).state_dict())
    assert restored == Progress(train_iter=1, env_step=2, episode=3, sample=4)


def test_progress_state_is_a_copy() -> None:
    progress = Progress(env_step=5)
    progress.state_dict()["env_step"] = 6
    assert progress.env_step == 5


def test_progress_takes_counters_as_python_ints() -> None:
    progress = Progress()
    progress.load_state_dict({"train_iter": 1, "env_step": torch.tensor(2), "episode": 3, "sample": 4})  # type: ignore[dict-item]
    assert type(progress.env_step) is int


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"train_iter": 1, "env_step": 2, "episode": 3},
        {"train_iter": 1, "env_step": 2, "episode": 3, "sample": 4, "frame": 5},
    ],
)
def test_progress_refuses_a_state_without_exactly_its_counters(state: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"progress state must hold \['env_step', 'episode', 'sample', 'train_iter'\]"):
        Progress().load_state_dict(state)


def test_a_refused_state_leaves_the_counters() -> None:
    progress = Progress(env_step=7)
    with pytest.raises(ValueError, match="progress state"):
        progress.load_state_dict({"env_step": 1})
    assert progress.env_step == 7


def test_the_budget_is_no_counter() -> None:
    progress = Progress(budget=100)
    progress.load_state_dict(Progress(env_step=5, budget=7).state_dict())
    assert (progress.env_step, progress.budget) == (5, 100)
