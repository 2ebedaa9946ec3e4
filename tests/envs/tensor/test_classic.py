"""The batched classic control envs against gymnasium's own, step by step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence

from lightning_ding.envs.tensor import BatchedEnv, CartPole
from lightning_ding.envs.tensor.classic import BUILT_IN

N = 64


def spread_states(env: BatchedEnv, generator: torch.Generator) -> torch.Tensor:
    """Return states all over the state space, some of them near a bound, shape (K, N)."""
    uniform = torch.rand(env.size, N, generator=generator) * 2 - 1
    scale = {"CartPole": [2.5, 3, 0.22, 3], "MountainCar": [0.9, 0.07], "Pendulum": [6.0, 8.0]}[type(env).__name__]
    shift = -0.3 if type(env).__name__ == "MountainCar" else 0.0
    state = uniform * torch.tensor(scale)[:, None]
    state[0] += shift
    return state


def stepped_alone(env_id: str, state: np.ndarray, action: Any) -> tuple[Any, ...]:
    """Return what gymnasium gives for one env that is set to a state."""
    env: Any = gym.make(env_id).unwrapped
    env.reset()
    env.state = tuple(state) if env_id.startswith("Mountain") else np.array(state, dtype=np.float64)
    obs, reward, terminated, _, _ = env.step(action)
    return obs, reward, terminated


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_step_equals_that_of_gymnasium_from_the_same_states(env_id: str) -> None:
    generator = torch.Generator().manual_seed(0)
    env = BUILT_IN[env_id](N)
    env.reset(seed=0)
    for _ in range(4):
        state = spread_states(env, generator)
        env.state = state.clone()
        space = env.single_action_space
        if isinstance(space, gym.spaces.Discrete):
            action = torch.randint(int(space.n), (N,), generator=generator)
        else:
            action = torch.rand(N, 1, generator=generator) * 6 - 3  # also beyond the bounds
        _, reward, terminated, truncated, info = env.step(action)
        assert not truncated.any()
        for row in range(N):
            obs, own_reward, own_terminated = stepped_alone(env_id, state[:, row].double().numpy(), action[row].numpy())
            np.testing.assert_allclose(info["final_obs"][row].numpy(), obs, rtol=2e-5, atol=2e-6)
            np.testing.assert_allclose(reward[row].item(), own_reward, rtol=1e-5, atol=1e-5)
            assert terminated[row].item() == own_terminated
        if env_id != "Pendulum-v1":
            assert 0 < terminated.sum() < N, "the states must show both cases"


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_spaces_and_time_limit_are_those_of_gymnasium(env_id: str) -> None:
    own, spec = gym.make(env_id), gym.spec(env_id)
    env = BUILT_IN[env_id](2)
    assert data_equivalence(env.single_action_space, own.action_space) or env.single_action_space == own.action_space
    assert env.single_observation_space == own.observation_space
    assert env.max_episode_steps == spec.max_episode_steps


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_first_states_have_the_range_of_gymnasium(env_id: str) -> None:
    env, own = BUILT_IN[env_id](4096), gym.make(env_id)
    obs, _ = env.reset(seed=1)
    starts = np.stack([own.reset(seed=seed)[0] for seed in range(300)])
    assert obs.dtype == torch.float32
    np.testing.assert_allclose(obs.numpy().min(0), starts.min(0), atol=0.06)
    np.testing.assert_allclose(obs.numpy().max(0), starts.max(0), atol=0.06)
    np.testing.assert_allclose(obs.numpy().mean(0), starts.mean(0), atol=0.2)


def test_time_limit_truncates_and_hands_over_the_final_observation() -> None:
    env = BUILT_IN["Pendulum-v1"](3, max_episode_steps=2)
    env.reset(seed=0)
    action = torch.zeros(3, 1)
    env.step(action)
    before = env.state.clone()
    obs, _, terminated, truncated, info = env.step(action)
    assert truncated.all()
    assert not terminated.any()
    speed = (before[1] + 15 * before[0].sin() * 0.05).clamp(-8, 8)
    torch.testing.assert_close(info["final_obs"][:, 2], speed)
    torch.testing.assert_close(obs[:, 2], env.state[1])  # the first one of the next episode
    assert env.elapsed.tolist() == [0, 0, 0]
    assert not env.step(action)[3].any()


def test_envs_reset_one_by_one() -> None:
    env = BUILT_IN["CartPole-v1"](2)
    env.reset(seed=0)
    env.state[:, 0] = torch.tensor([2.39, 3.0, 0.0, 0.0])  # leaves the track
    other = env.state[:, 1].clone()
    obs, _, terminated, _, info = env.step(torch.tensor([1, 1]))
    assert terminated.tolist() == [True, False]
    assert info["final_obs"][0, 0] > 2.4
    assert obs[0].abs().max() <= 0.05
    torch.testing.assert_close(obs[1], info["final_obs"][1])
    torch.testing.assert_close(obs[1, 0], other[0] + 0.02 * other[1])
    assert env.elapsed.tolist() == [0, 1]


def test_state_of_a_device_of_another_kind_continues_with_other_random_numbers() -> None:
    env, other = CartPole(3), CartPole(3)
    env.reset(seed=0)
    other.reset(seed=1)
    state = {**env.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)}  # as of a GPU
    other.load_state_dict(state)
    assert torch.equal(other.state, env.state)


def test_state_continues_an_env_exactly() -> None:
    first, second = BUILT_IN["CartPole-v1"](8, max_episode_steps=5), BUILT_IN["CartPole-v1"](8, max_episode_steps=5)
    first.reset(seed=0)
    second.reset(seed=1)
    actions = torch.randint(2, (20, 8))
    for action in actions[:7]:
        first.step(action)
    second.load_state_dict(first.state_dict())
    for action in actions[7:]:
        for one, other in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "arguments"), [("num_envs", {"num_envs": 0}), ("max_episode_steps", {"max_episode_steps": 0})]
)
def test_bad_numbers_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1"):
        BUILT_IN["CartPole-v1"](**arguments)
