"""Every algorithm learns from the toy-text envs of gymnasium and from episodes of one step.

Observations there are integers, and every sequence of a rollout may end with a terminal state, so that nothing is left
to bootstrap from.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from torch import Tensor

from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.model import encoder
from tests.algorithms.table import (
    ALGORITHMS,
    CONTINUOUS_ONLY,
    WITHOUT_COLLECTING,
    make_datamodule,
    make_policy,
    needs_demonstrations,
    random_steps,
)
from tests.conftest import MakeTrainer
from tests.toys.bandits import BanditEnv, TargetEnv

LIMIT = {"max_episode_steps": 8}
TAXI = max(env_id for env_id in gym.registry if env_id.startswith("Taxi-"))
TOY_TEXT = ("FrozenLake-v1", "CliffWalking-v1", TAXI, "Blackjack-v1")
DISCRETE = tuple(name for name in (*ALGORITHMS, *WITHOUT_COLLECTING) if name not in CONTINUOUS_ONLY)
SPACES = {"obs_shape": None, "action_shape": None}


@pytest.fixture(autouse=True)
def _no_network_is_called_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every encoder of vectors refuse a batch without rows, as one with a reshape to (B, -1) does."""
    flattened = encoder.flattened

    def with_rows(obs: Tensor) -> Tensor:
        assert len(obs) > 0
        return flattened(obs)

    monkeypatch.setattr(encoder, "flattened", with_rows)


def learn(make_trainer: MakeTrainer, name: str, env: Any, env_kwargs: dict[str, Any]) -> None:
    """Let an algorithm learn for two rounds and be evaluated."""
    policy = make_policy(name, model=SPACES)
    if name in WITHOUT_COLLECTING:
        datamodule: Any = OfflineDataModule(steps_of(env, env_kwargs), env, env_kwargs=env_kwargs, max_train_iter=4)
    else:
        data = {"demonstrations": steps_of(env, env_kwargs)} if needs_demonstrations(name) else {}
        arguments = {"env": env, "env_kwargs": env_kwargs, "max_env_step": 32, "rounds_per_epoch": 2}
        datamodule = make_datamodule(name, **arguments, **data)
    make_trainer().fit(policy, datamodule)
    assert policy.progress.train_iter > 0
    assert all(bool(tensor.isfinite().all()) for tensor in policy.model.state_dict().values())


def steps_of(env: Any, env_kwargs: dict[str, Any]) -> Any:
    return random_steps(gym.make(env, **env_kwargs) if isinstance(env, str) else env(**env_kwargs))


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize("env_id", TOY_TEXT)
def test_every_algorithm_learns_from_toy_text(make_trainer: MakeTrainer, name: str, env_id: str) -> None:
    learn(make_trainer, name, env_id, LIMIT)


@pytest.mark.parametrize("name", [*ALGORITHMS, *WITHOUT_COLLECTING])
def test_every_algorithm_learns_from_episodes_of_one_step(make_trainer: MakeTrainer, name: str) -> None:
    learn(make_trainer, name, TargetEnv if name in CONTINUOUS_ONLY else BanditEnv, {})
