"""The counters of a run."""

from __future__ import annotations

import pytest
import torch

from lightning_ding.utils.progress import Progress


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
