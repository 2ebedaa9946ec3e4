from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from gymnasium.vector import VectorEnv

from lightning_ding.envs import (
    EnvStepper,
    FaultBarrier,
    NormaliseReward,
    NotPlainError,
    Pausable,
    env_state,
    load_env_state,
    make_vector_env,
)
from lightning_ding.envs.toy import ChainEnv, CountingEnv
from lightning_ding.envs.toy_bandits import BanditEnv, HybridTargetEnv, TargetEnv
from lightning_ding.envs.vector import AutoresetName

Wrap = Callable[[Any], Any]
MODES: list[AutoresetName] = ["same_step", "next_step", "disabled"]


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """Holds what cannot be read."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.engine = object()


class Asked(Opaque):
    """Gives its state when asked."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._added = 0.0

    def step(self, action: Any) -> Any:
        self._added += 1
        obs, reward, *rest = self.env.step(action)
        return (obs, float(reward) + self._added, *rest)

    def state_dict(self) -> dict[str, Any]:
        return {"added": self._added}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._added = state["added"]


class Composite(CountingEnv):
    """Has another env inside that is no wrapped one."""

    def __init__(self) -> None:
        super().__init__()
        self.env = CountingEnv()


def make(env: Any, wraps: tuple[Wrap, ...] = (), autoreset: AutoresetName = "same_step", seed: int = 1) -> VectorEnv:
    vector = make_vector_env(env, 3, wrappers=wraps, autoreset=autoreset)
    vector.reset(seed=seed)
    vector.action_space.seed(seed)
    return vector


def play(stepper: EnvStepper, steps: int) -> list[Any]:
    """Take random actions; return everything that came of it, and the actions."""
    seen = []
    for _ in range(steps):
        action = stepper.env.action_space.sample()
        timestep = stepper.step(action)
        seen += [action, timestep.next_obs, timestep.reward, timestep.terminated, timestep.truncated, stepper.obs]
    return [np.asarray(one).tolist() if not isinstance(one, dict) else str(one) for one in seen]


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_goes_on(first: VectorEnv, second: VectorEnv, before: int = 23, steps: int = 60) -> None:
    """Play, put the second envs where the first are, and see the same in both."""
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    play(one, before)
    play(other, 5)
    load_env_state(second, through_a_file(env_state(first)))
    other.load_state_dict(one.state_dict())
    assert play(one, steps) == play(other, steps)
    first.close()
    second.close()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "FrozenLake-v1"],
)
def test_gymnasiums_envs_go_on_where_others_were(env: str, autoreset: AutoresetName) -> None:
    check_goes_on(make(env, (), autoreset), make(env, (), autoreset, seed=2))


@pytest.mark.parametrize("env", [ChainEnv, CountingEnv, BanditEnv, TargetEnv, HybridTargetEnv])
def test_toy_envs_go_on_where_others_were(env: Any) -> None:
    check_goes_on(make(env), make(env, seed=2))


@pytest.mark.parametrize(
    "wrap",
    [
        FaultBarrier,
        Pausable,
        Asked,
        wrappers.RecordEpisodeStatistics,
        wrappers.TimeAwareObservation,
        wrappers.NormalizeObservation,
        lambda env: wrappers.FrameStackObservation(env, 3),
        lambda env: wrappers.DelayObservation(env, 2),
        lambda env: wrappers.StickyAction(env, 0.5),
        lambda env: wrappers.TransformReward(env, lambda reward: 2 * float(reward)),
    ],
)
def test_wrappers_go_on_where_others_were(wrap: Wrap) -> None:
    check_goes_on(make("CartPole-v1", (wrap,)), make("CartPole-v1", (wrap,), seed=2))


@pytest.mark.parametrize("autoreset", MODES)
def test_normalised_rewards_go_on_with_the_returns_of_the_episodes_under_way(autoreset: AutoresetName) -> None:
    first, second = (NormaliseReward(make("CartPole-v1", (), autoreset, seed), 0.9) for seed in (1, 2))
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    play(one, 23)
    second.load_state_dict(first.state_dict())
    load_env_state(second, through_a_file(env_state(first)))
    other.load_state_dict(one.state_dict())
    assert play(one, 60) == play(other, 60)


def test_a_state_is_not_moved_by_the_env_that_gave_it() -> None:
    first, second = make("CartPole-v1"), make("CartPole-v1", seed=2)
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    state, where = env_state(first), one.state_dict()
    seen = play(one, 30)
    load_env_state(second, state)
    other.load_state_dict(where)
    assert play(other, 30) == seen


def test_a_reset_of_some_envs_alone_leaves_the_others_where_they_were_put() -> None:
    first, second = make("CartPole-v1", (), "disabled"), make("CartPole-v1", (), "disabled", seed=2)
    first.step(first.action_space.sample())
    load_env_state(second, env_state(first))
    mask = np.array([True, False, False])
    one, other = (env.reset(options={"reset_mask": mask.copy()})[0] for env in (first, second))
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("env", "wraps", "message"),
    [
        ("CartPole-v1", (Opaque,), r"CartPole-v1: Opaque.engine is a builtins.object"),
        (Composite, (), r"Composite: Composite.env is a lightning_ding.envs.toy.CountingEnv"),
    ],
)
def test_an_env_that_cannot_give_its_state_is_named_with_the_attribute(env: Any, wraps: Any, message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        env_state(make(env, wraps))


def test_a_world_of_box2d_cannot_be_written() -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(NotPlainError, match=r"LunarLander-v3: LunarLander.\w+ is a Box2D"):
        env_state(make("LunarLander-v3"))


def test_envs_of_other_kinds_give_no_state() -> None:
    vector = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(NotPlainError, match=r"a CartPoleVectorEnv does not give the state of its envs"):
        env_state(vector)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make("Acrobot-v1"), "was a CartPoleEnv when saved"),
        (lambda: make("CartPole-v1", (FaultBarrier,)), "must be in 3 wrappers, as when saved, got 4"),
        (
            lambda: make_vector_env("CartPole-v1", 2),
            "as many envs as were saved, 3 in 0 vector wrappers, got 2",
        ),
    ],
)
def test_a_state_of_other_envs_is_refused(other: Callable[[], VectorEnv], message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        load_env_state(other(), env_state(make("CartPole-v1")))
