"""Training and evaluation envs may differ in wrappers, id and arguments, as long as their spaces fit one network."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from typing_extensions import override

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.datamodules.run_envs import said_if_slow
from lightning_ding.policy import DQNPolicy, PPOPolicy
from tests.conftest import MakeTrainer
from tests.toys.envs import ChainEnv

SMALL_PPO: dict[str, Any] = {
    "collect": {"n_sample": 16},
    "learn": {"batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2}},
}


class Scaled(gym.RewardWrapper[Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    @override
    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


class Added(gym.RewardWrapper[Any, Any]):
    @override
    def reward(self, reward: Any) -> float:
        return float(reward) + 1.0


class EndsEarly(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episode after the first step, as the loss of a life does."""

    @override
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, True, truncated, info


def make_chain(factor: float = 1.0) -> gym.Env[Any, Any]:
    return Scaled(ChainEnv(), factor)


def scaled(factor: float) -> Callable[[Any], Any]:
    return functools.partial(Scaled, factor=factor)


def fit(make_trainer: MakeTrainer, small: dict[str, Any], made: type[RunDataModule], **kwargs: Any) -> Any:
    """Return the mean return of training episodes and that of the evaluation after a short run."""
    datamodule = made(**{"env_id": make_chain, "num_envs": 2, "max_env_step": 40, **kwargs})
    policy: Any = DQNPolicy(small) if made is ReplayDataModule else PPOPolicy(SMALL_PPO)
    returns: list[float] = []
    original = datamodule.pop_episodes

    def pop_episodes() -> tuple[list[float], list[int]]:
        found = original()
        returns.extend(found[0])
        return found

    datamodule.pop_episodes = pop_episodes  # type: ignore[method-assign]
    trainer = make_trainer()
    trainer.fit(policy, datamodule)
    returns.extend(original()[0])
    return float(np.mean(returns)), float(trainer.callback_metrics["eval/return_mean"])


@pytest.mark.parametrize("made", [ReplayDataModule, RolloutDataModule])
@pytest.mark.parametrize(
    ("kwargs", "collected", "evaluated"),
    [
        ({"train_wrappers": [scaled(2.0)]}, 2.0, 1.0),
        ({"eval_wrappers": [scaled(2.0)]}, 1.0, 2.0),
        ({"train_wrappers": [EndsEarly]}, 0.0, 1.0),
        ({"env_kwargs": {"factor": 2.0}}, 2.0, 2.0),
        ({"env_kwargs": {"factor": 2.0}, "eval_env_kwargs": {}}, 2.0, 1.0),
        ({"eval_env_id": functools.partial(make_chain, 3.0)}, 1.0, 3.0),
        # the returns that are logged are those of the raw rewards
        ({"env_kwargs": {"factor": 2.0}, "wrappers": ["clip_reward"]}, 2.0, 2.0),
        # shared wrappers are innermost: (1 + 3 * 1) * 2 with four steps of which each adds 1
        ({"wrappers": [Added], "train_wrappers": [scaled(2.0)], "eval_wrappers": [scaled(3.0)]}, 10.0, 15.0),
    ],
)
def test_wrappers_and_arguments_reach_the_envs_they_are_for(
    make_trainer: MakeTrainer, small: dict[str, Any], made: type, kwargs: Any, collected: float, evaluated: float
) -> None:
    assert fit(make_trainer, small, made, **kwargs) == (collected, evaluated)


def test_policy_learns_from_clipped_rewards(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    datamodule = ReplayDataModule(make_chain, 2, env_kwargs={"factor": 2.0}, wrappers="clip_reward", max_env_step=40)
    make_trainer().fit(DQNPolicy(small), datamodule)
    assert datamodule.buffer is not None
    rewards = datamodule.buffer.sample(40, 0, n_step=1, discount_factor=0.99)["reward"]
    assert set(rewards.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"eval_env_id": functools.partial(ChainEnv, 5)},
        {"eval_env_id": "MountainCar-v0"},
        {"train_wrappers": [functools.partial(gym.wrappers.FrameStackObservation, stack_size=2)]},
    ],
)
def test_envs_with_other_spaces_than_the_network_are_refused(
    make_trainer: MakeTrainer, small: dict[str, Any], kwargs: Any
) -> None:
    with pytest.raises(ValueError, match="training and evaluation envs must have the same observation space"):
        fit(make_trainer, small, ReplayDataModule, **kwargs)


def test_other_bounds_of_observations_are_the_same_network(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    wide = functools.partial(
        gym.wrappers.TransformObservation, func=lambda obs: obs, observation_space=gym.spaces.Box(-9, 9, (4,))
    )
    fit(make_trainer, small, ReplayDataModule, train_wrappers=[wide])


def test_an_unknown_evaluation_env_is_refused_by_its_argument() -> None:
    with pytest.raises(ValueError, match=r"eval_env_id must be a registered gymnasium id.* got 'No-v0'"):
        ReplayDataModule("CartPole-v1", eval_env_id="No-v0")


class Counted(ChainEnv):
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.made += 1


@pytest.mark.parametrize(
    ("kwargs", "number"),
    [({}, 1 + 2 + 2), ({"train_wrappers": [EndsEarly]}, 2 + 2 + 2), ({"eval_env_id": lambda: Counted()}, 2 + 2 + 2)],
)
def test_an_env_is_made_once_more_to_be_checked(
    make_trainer: MakeTrainer, small: dict[str, Any], kwargs: Any, number: int
) -> None:
    datamodule = ReplayDataModule(Counted, num_envs=2, max_env_step=40, n_evaluator_episode=2, **kwargs)
    trainer = make_trainer()
    before = Counted.made
    trainer.fit(DQNPolicy(small), datamodule)
    assert Counted.made - before == number
    make_trainer().validate(DQNPolicy(small), datamodule)  # the class may have changed, so it is checked again
    assert Counted.made - before == number + 1 + 2


def test_one_line_says_what_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        with said_if_slow("making 2 envs of Slow-v0", seconds=0.01):
            time.sleep(0.2)
            assert "making 2 envs of Slow-v0 takes longer than 0.01 s" in caplog.text
        with said_if_slow("making 2 envs of Fast-v0", seconds=60.0):
            pass
    assert "Fast-v0" not in caplog.text
