"""Reading tensor envs in the forms of other packages, and as a vector env of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.envs import env_state, load_env_state, make_vector_env
from lightning_ding.envs.tensor import CartPole, TensorEnv, TensorsAsNumpy
from tests.envs.tensor.fakes import ArraysLike, IsaacLike, ManiSkillLike, RslLike

N = 16


def run(env: TensorEnv, steps: int = 40) -> list[Any]:
    env.reset(seed=3)
    generator = torch.Generator().manual_seed(0)
    return [env.step(torch.randint(2, (N,), generator=generator)) for _ in range(steps)]


@pytest.mark.parametrize("form", [ManiSkillLike, ArraysLike])
def test_forms_with_final_observations_give_the_same_steps(form: Any) -> None:
    steps, wanted = run(TensorEnv(form(N))), run(TensorEnv(CartPole(N)))
    assert any(step.ended.any() for step in wanted)
    for step, want in zip(steps, wanted, strict=True):
        for name in ("next_obs", "reward", "terminated", "truncated", "ended", "obs"):
            assert torch.equal(getattr(step, name), getattr(want, name)), name


@pytest.mark.parametrize("form", [IsaacLike, RslLike])
def test_forms_without_final_observations_keep_the_last_one_before(form: Any) -> None:
    env = TensorEnv(form(N))
    steps, wanted = run(env), run(TensorEnv(CartPole(N)))
    assert not env.gives_final_obs
    before = CartPole(N).reset(seed=3)[0]
    for step, want in zip(steps, wanted, strict=True):
        assert torch.equal(step.obs, want.obs)
        assert torch.equal(step.terminated, want.terminated)
        assert torch.equal(step.truncated, want.truncated)
        assert torch.equal(step.next_obs, torch.where(step.ended[:, None], before, want.next_obs))
        before = step.obs


def test_time_limits_left_in_the_info_end_no_later_episode() -> None:
    class Stale(RslLike):
        """An env that renews its time limits only in a step that ends an episode, as legged_gym does."""

        time_outs: Any = None

        def step(self, action: torch.Tensor) -> Any:
            obs, reward, ended, info = super().step(action)
            if self.time_outs is None or ended.any():
                self.time_outs = info["time_outs"]
            return obs, reward, ended, {**info, "time_outs": self.time_outs}

    env = TensorEnv(Stale(N))
    env.env._inner.max_episode_steps = 5
    ended = [(step.ended, step.terminated | step.truncated) for step in run(env, 12)]
    assert sum(int(one.any()) for one, _ in ended) < 12
    assert all(torch.equal(*pair) for pair in ended)


def test_whole_rewards_become_floats() -> None:
    class Whole(CartPole):
        def step(self, actions: torch.Tensor) -> Any:
            obs, reward, *rest = super().step(actions)
            return obs, reward.long()[:, None], *rest

    reward = run(TensorEnv(Whole(N)), 1)[0].reward
    assert (reward.dtype, reward.shape) == (torch.float32, (N,))


def test_results_of_other_shapes_are_refused() -> None:
    class OneFinal(CartPole):
        def step(self, actions: torch.Tensor) -> Any:
            *results, info = super().step(actions)
            return *results, {"final_obs": info["final_obs"][:1]}

    class TwoRewards(CartPole):
        def step(self, actions: torch.Tensor) -> Any:
            obs, reward, *rest = super().step(actions)
            return obs, torch.stack([reward, reward], 1), *rest

    with pytest.raises(ValueError, match=r"final observations of env.step must be of shape \(16, 4\).* got \(1, 4\)"):
        run(TensorEnv(OneFinal(N)), 1)
    with pytest.raises(ValueError, match=r"reward of env.step must be 16 numbers, got 32"):
        run(TensorEnv(TwoRewards(N)), 1)


def test_env_without_seeds_is_reset() -> None:
    class NoSeed(RslLike):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    assert TensorEnv(NoSeed(N)).reset(seed=3).shape == (N, 4)


def test_policy_entry_of_a_dict_is_the_observation() -> None:
    env = TensorEnv(IsaacLike(N))
    assert env.single_observation_space.shape == (4,)
    assert env.reset(seed=0).shape == (N, 4)


def test_arrays_with_dlpack_are_not_copied() -> None:
    inner = ArraysLike(N)
    env = TensorEnv(inner)
    obs = env.reset(seed=0)
    assert obs.data_ptr() == inner.returned.ctypes.data
    action = torch.ones(N, dtype=torch.int64)
    step = env.step(action)
    assert step.obs.data_ptr() == inner.returned.ctypes.data
    assert inner.got.ctypes.data == action.data_ptr()


def test_env_without_a_part_is_refused() -> None:
    class NoSpaces:
        num_envs = 2

        def reset(self) -> None: ...

        def step(self) -> None: ...

    with pytest.raises(TypeError, match="without single_observation_space, single_action_space"):
        TensorEnv(NoSpaces())


def test_lists_of_numbers_are_refused() -> None:
    class Lists(CartPole):
        def reset(self, **kwargs: Any) -> Any:
            return [[0.0] * 4] * self.num_envs, {}

    with pytest.raises(TypeError, match="must give tensors or arrays with __dlpack__, got list"):
        TensorEnv(Lists(2)).reset()


def test_vector_env_of_arrays_makes_the_same_steps() -> None:
    want: Any
    env = make_vector_env("CartPole-v1", N, mode="tensor", seed=3, env_kwargs={"max_episode_steps": 9})
    assert isinstance(env, TensorsAsNumpy)
    same = CartPole(N, max_episode_steps=9)
    same.load_state_dict(env.tensors.env.state_dict())
    generator = np.random.default_rng(0)
    for _ in range(20):
        action = generator.integers(2, size=N)
        obs, reward, terminated, truncated, info = env.step(action)
        want = same.step(torch.from_numpy(action))
        for one, other in zip((obs, reward, terminated, truncated), want, strict=False):
            np.testing.assert_array_equal(one, other.numpy())
        ended = terminated | truncated
        np.testing.assert_array_equal(info["final_obs"][ended], want[4]["final_obs"].numpy()[ended])
    env.close()


class InAttributes(CartPole):
    """An env whose state is in attributes."""

    state_dict = load_state_dict = property()


class BySetState(CartPole):
    """An env with ``get_state`` and ``set_state``."""

    get_state, set_state = CartPole.state_dict, CartPole.load_state_dict
    state_dict = load_state_dict = property()


@pytest.mark.parametrize("form", [CartPole, BySetState])
def test_state_of_the_envs_is_restored_exactly(form: Any) -> None:
    first, second = (make_vector_env(form, 4, mode="tensor", seed=seed) for seed in (0, 1))
    action = np.array([0, 1, 1, 0])
    first.step(action)
    load_env_state(second, env_state(first))
    for _ in range(30):
        for one, other in zip(first.step(action)[:4], second.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"env": "CartPol-v1"}, "no such env|registered gymnasium id"),
        ({"env": "Acrobot-v1"}, "env_id must be one of CartPole-v1, MountainCar-v0, Pendulum-v1"),
        ({"env": "CartPole-v1", "wrappers": "flatten"}, "wrappers must be ()"),
        ({"env": "CartPole-v1", "autoreset": "disabled"}, "autoreset must be"),
        ({"env": lambda: CartPole(3)}, "num_envs must be 3"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_vector_env(num_envs=2, mode="tensor", **arguments)
