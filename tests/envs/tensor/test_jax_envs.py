"""Envs of JAX, whose memory the tensors share; skipped where JAX or gymnax is not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.envs import env_state, load_env_state, make_vector_env
from lightning_ding.envs.tensor import CartPole, TensorEnv
from lightning_ding.envs.tensor.jax_envs import BraxEnv, GymnaxEnv, JaxEnv, PlaygroundEnv

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
needs_gymnax = pytest.mark.skipif(find_spec("gymnax") is None or find_spec("jax") is None, reason="needs gymnax")
needs_brax = pytest.mark.skipif(find_spec("brax") is None or find_spec("jax") is None, reason="needs brax")
N = 16


class Counter(JaxEnv):
    """The state counts steps from a random start; an episode ends at 5, or after the action 1 at a time limit."""

    single_observation_space = spaces.Box(0, 10, (2,))
    single_action_space = spaces.Discrete(2)

    def _reset_all(self, key: Any) -> Any:
        state = self._jax.random.randint(key, (self.num_envs,), 0, 3).astype("float32")
        return self._obs(state), state

    def _advance(self, key: Any, state: Any, action: Any) -> Any:
        state = state + 1
        return self._obs(state), state, state, state >= 5, (action == 1) & (state >= 4)

    def _obs(self, state: Any) -> Any:
        return self._jax.numpy.stack([state, 2 * state], -1)


@needs_jax
def test_step_shares_memory_and_hands_over_final_observations() -> None:
    env = TensorEnv(Counter(4))
    obs = env.reset(seed=0)
    state = obs[:, 0].clone()
    for _ in range(8):
        step = env.step(torch.tensor([0, 1, 0, 1]))
        state = state + 1
        assert torch.equal(step.reward, state)
        assert torch.equal(step.next_obs, torch.stack([state, 2 * state], -1))
        assert torch.equal(step.terminated, state >= 5)
        assert torch.equal(step.truncated, (state >= 4) & torch.tensor([False, True, False, True]))
        assert torch.equal(step.obs[~step.ended], step.next_obs[~step.ended])
        assert (step.obs[step.ended][:, 0] < 3).all()
        state = step.obs[:, 0].clone()


@needs_jax
def test_arrays_are_not_copied() -> None:
    import jax

    array = jax.numpy.arange(8.0)
    from lightning_ding.envs.tensor.reader import _converter, as_tensor

    tensor = as_tensor(array)
    assert tensor.data_ptr() == array.unsafe_buffer_pointer()
    action = torch.rand(64, 2)  # integers of 64 bits become those of 32 bits, which are a copy
    assert _converter(array)(action).unsafe_buffer_pointer() == action.data_ptr()


@needs_jax
def test_state_continues_exactly() -> None:
    first, second = (make_vector_env(lambda: Counter(4), 4, mode="tensor", seed=seed) for seed in (0, 1))
    action = np.zeros(4, dtype=np.int64)
    first.step(action)
    load_env_state(second, env_state(first))
    for _ in range(9):
        for one, other in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@needs_gymnax
def test_gymnax_makes_the_steps_of_the_torch_env() -> None:
    env, same = TensorEnv(GymnaxEnv("CartPole-v1", N)), CartPole(N)
    obs = env.reset(seed=0)
    same.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        action = torch.randint(2, (N,), generator=generator)
        same.state = obs.t().clone()
        step, (_, reward, terminated, _, info) = env.step(action), same.step(action)
        torch.testing.assert_close(step.next_obs, info["final_obs"], rtol=1e-5, atol=1e-6)
        assert torch.equal(step.reward, reward)
        assert torch.equal(step.terminated, terminated)
        obs = step.obs


TRAINED: dict[str, dict[str, Any]] = {
    "gymnax:CartPole-v1": {"params": {"tau": 0.03}},
    "gymnax:Pendulum-v1": {},
    "brax:fast": {"episode_length": 6},
}


@pytest.mark.parametrize("env", TRAINED)
def test_an_env_trains_by_its_id(env: str) -> None:
    package = env.partition(":")[0]
    if find_spec(package) is None or find_spec("jax") is None:
        pytest.skip(f"needs {package}")
    from lightning.pytorch import Trainer

    from lightning_ding.policy import PPOPolicy

    policy = PPOPolicy({"collect": {"n_sample": 128}, "learn": {"batch_size": 64, "epoch_per_collect": 2}})
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    datamodule = RolloutDataModule(
        env, num_envs=N, mode="tensor", max_env_step=512, n_evaluator_episode=2, env_kwargs=TRAINED[env]
    )
    Trainer(accelerator="cpu", **quiet).fit(policy, datamodule)
    assert policy.progress.env_step == 512


def test_package_that_is_missing_is_named() -> None:
    for name, package in (("brax:ant", "brax"), ("playground:CartpoleBalance", "playground")):
        if find_spec({"playground": "mujoco_playground"}.get(package, package)) is None:
            with pytest.raises(ImportError, match=f"need the package '{package}': pip install {package}"):
                make_vector_env(name, 2, mode="tensor")


@needs_brax
def test_brax_truncates_after_a_number_of_steps() -> None:
    env = TensorEnv(BraxEnv("fast", 3, episode_length=2))
    env.reset(seed=0)
    action = torch.zeros(3, *env.single_action_space.shape)  # type: ignore[misc]
    assert not env.step(action).ended.any()
    step = env.step(action)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert not env.step(action).ended.any()


class OfPlayground:
    """An env with the methods of MuJoCo Playground, which gives several observations."""

    action_size = 1
    observation_size: ClassVar[dict[str, Any]] = {"state": (2,), "privileged_state": (5,)}

    def reset(self, key: Any) -> Any:
        import jax

        obs = {"state": jax.random.uniform(key, (2,)), "privileged_state": jax.numpy.zeros(5)}
        return PlaygroundState(obs, jax.numpy.zeros(()), jax.numpy.zeros(()))

    def step(self, state: Any, action: Any) -> Any:
        obs = {"state": state.obs["state"] + action, "privileged_state": state.obs["privileged_state"]}
        return PlaygroundState(obs, obs["state"][0], state.done)


class PlaygroundState(NamedTuple):
    """The parts of a state that are read."""

    obs: Any
    reward: Any
    done: Any


@needs_jax
def test_playground_shows_the_entry_state(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SimpleNamespace(
        load=lambda name, config_overrides: OfPlayground(),
        get_default_config=lambda name: SimpleNamespace(episode_length=2),
    )
    monkeypatch.setitem(sys.modules, "mujoco_playground", SimpleNamespace(registry=registry))
    env = TensorEnv(PlaygroundEnv("Walk", 3))
    obs = env.reset(seed=0).clone()
    assert obs.shape == (3, 2)
    step = env.step(torch.ones(3, 1))
    torch.testing.assert_close(step.reward, obs[:, 0] + 1)
    assert env.step(torch.ones(3, 1)).truncated.all()
