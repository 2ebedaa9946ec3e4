"""Vector envs of other packages in each autoreset mode; their observations name the episode and the step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.envs import EnvStepper, make_vector_env
from lightning_ding.policy import DQNPolicy, PPOPolicy

MODES = list(AutoresetMode)
EACH_MODE = pytest.mark.parametrize("autoreset", MODES, ids=lambda mode: mode.name)


class NumberedVectorEnv(VectorEnv[Any, Any, Any]):
    """Observes (env, episode, step); env i has episodes of i + 2 steps, the odd ones end by truncation.

    It overwrites its observations in each step. ``final`` is the form of final observations, with SAME_STEP: "list" of
    observations, "array" of all envs, or "none".
    """

    def __init__(self, autoreset: AutoresetMode, num_envs: int = 3, final: str = "list", keeps: bool = True) -> None:
        self.num_envs, self.autoreset, self.final, self.keeps = num_envs, autoreset, final, keeps
        self.metadata = {"autoreset_mode": autoreset}
        self.single_observation_space = spaces.Box(0, 1000, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0, 1000, (num_envs, 3), np.float32)
        self.action_space = spaces.MultiDiscrete([2] * num_envs)
        self.obs = np.zeros((num_envs, 3), np.float32)
        self.obs[:, 0] = np.arange(num_envs)
        self.obs[:, 1] = -1
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        everywhere = np.ones(self.num_envs, bool)
        self._begin((options or {}).get("reset_mask", everywhere) if self.keeps else everywhere)
        return self.obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        resets = self.ended if self.autoreset is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        if self.autoreset is AutoresetMode.DISABLED:
            assert not self.ended.any(), "an env that ended was not reset"
        self.obs[~resets, 2] += 1
        reward = np.where(resets, 0.0, 1.0)
        self._begin(resets)
        ended = self.obs[:, 2] == self.obs[:, 0] + 2
        is_odd = self.obs[:, 1] % 2 == 1
        info: dict[str, Any] = {}
        self.ended = ended.copy()
        if self.autoreset is AutoresetMode.SAME_STEP and ended.any():
            rows = np.empty(self.num_envs, object)
            rows[:] = [row.copy() if end else None for row, end in zip(self.obs, ended, strict=True)]
            final = {"list": rows, "array": self.obs.copy()}
            info = {"final_obs": final[self.final]} if self.final in final else {"final_observation": rows}
            self._begin(ended)
        return self.obs, reward, ended & ~is_odd, ended & is_odd, info

    def _begin(self, rows: Any) -> None:
        self.obs[rows, 1] += 1
        self.obs[rows, 2] = 0
        self.ended = self.ended & ~rows


def check(obs: Any, next_obs: Any, terminated: Any, truncated: Any) -> None:
    """Check transitions, arrays with one leading axis: each leads to the next step of the same episode."""
    np.testing.assert_array_equal(next_obs, obs + np.array([0, 0, 1]))
    ended = next_obs[:, 2] == next_obs[:, 0] + 2
    np.testing.assert_array_equal(terminated.astype(bool), ended & (obs[:, 1] % 2 == 0))
    np.testing.assert_array_equal(truncated.astype(bool), ended & (obs[:, 1] % 2 == 1))
    assert ended.any()


@pytest.mark.parametrize("final", ["list", "array"])
@EACH_MODE
def test_stepper_gives_the_final_observation_of_each_episode(autoreset: AutoresetMode, final: str) -> None:
    env = make_vector_env(functools.partial(NumberedVectorEnv, autoreset, final=final), 3, "native")
    stepper = EnvStepper(env)
    stepper.reset()
    steps = []
    for _ in range(20):
        obs = stepper.obs
        step = stepper.step(np.zeros(3, np.int64))
        steps.append([part[step.valid] for part in (obs, step.next_obs, step.terminated, step.truncated)])
    check(*(np.concatenate(parts) for parts in zip(*steps, strict=True)))


@EACH_MODE
def test_replay_and_evaluation_see_whole_episodes(
    autoreset: AutoresetMode, make_trainer: Callable[..., Trainer], small: dict[str, Any]
) -> None:
    env = functools.partial(NumberedVectorEnv, autoreset)
    policy = DQNPolicy({**small, "eval": {"evaluator": {"n_episode": 3}}})
    data = ReplayDataModule(env, 3, "native", max_env_step=60)
    trainer = make_trainer()
    trainer.fit(policy, data)
    assert data.buffer is not None
    batch = data.buffer.sample(data.buffer.count(), 0, n_step=1, discount_factor=0.99)
    check(*(batch[name].numpy() for name in ("obs", "next_obs", "terminated", "truncated")))
    assert float(trainer.callback_metrics["eval/return_mean"]) == 3.0  # episodes of 2, 3 and 4 steps


@EACH_MODE
def test_rollouts_hold_whole_episodes(autoreset: AutoresetMode, make_trainer: Callable[..., Trainer]) -> None:
    rollouts = []

    class Kept(RolloutDataModule):
        def _next_round(self) -> dict[str, Any]:
            rollouts.append(super()._next_round())
            return rollouts[-1]

    config = {"collect": {"n_sample": 30}, "learn": {"batch_size": 10}, "eval": {"evaluator": {"n_episode": 3}}}
    make_trainer().fit(
        PPOPolicy(config), Kept(functools.partial(NumberedVectorEnv, autoreset), 3, "native", max_env_step=60)
    )
    for rollout in rollouts:
        check(*(rollout[name].numpy() for name in ("obs", "next_obs", "terminated", "truncated")))


def test_env_that_resets_more_than_its_mask_is_refused() -> None:
    stepper = EnvStepper(NumberedVectorEnv(AutoresetMode.DISABLED, keeps=False))
    stepper.reset()
    stepper.step(np.zeros(3, np.int64))
    wanted = r"NumberedVectorEnv must reset the envs of options\['reset_mask'\], reset all"
    with pytest.raises(RuntimeError, match=wanted):
        stepper.step(np.zeros(3, np.int64))


def test_missing_final_observations_are_named() -> None:
    stepper = EnvStepper(NumberedVectorEnv(AutoresetMode.SAME_STEP, final="none"))
    stepper.reset()
    stepper.step(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"info\['final_obs'\] must hold .* got only \['final_observation'\]"):
        stepper.step(np.zeros(3, np.int64))


class WideVectorEnv(NumberedVectorEnv):
    """Returns 64-bit integers for a space of bytes; the third step of env 1 gives 300."""

    def __init__(self, autoreset: AutoresetMode) -> None:
        super().__init__(autoreset)
        self.single_observation_space = spaces.Box(0, 255, (3,), np.uint8)
        self.observation_space = spaces.Box(0, 255, (self.num_envs, 3), np.uint8)
        self.count = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0].astype(np.int64), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, *rest = super().step(actions)
        self.count += 1
        obs = obs.astype(np.int64)
        obs[1, 2] = 300 if self.count == 3 else obs[1, 2]
        return obs, *rest


def test_integer_that_does_not_fit_into_the_type_of_its_space_is_refused() -> None:
    stepper = EnvStepper(WideVectorEnv(AutoresetMode.NEXT_STEP))
    assert stepper.reset().dtype == np.uint8
    obs = [stepper.step(np.zeros(3, np.int64)).next_obs for _ in range(2)]
    assert [one.dtype for one in obs] == [np.uint8] * 2
    assert obs[1].tolist()[2] == [2, 0, 2]

    with pytest.raises(ValueError, match=r"env 1 gave an observation that must fit into uint8, .*: \[ +1 +0 +300\]"):
        stepper.step(np.zeros(3, np.int64))


def test_final_observation_that_does_not_fit_is_refused() -> None:
    env = NumberedVectorEnv(AutoresetMode.SAME_STEP)
    env.single_observation_space = spaces.Box(0, 255, (3,), np.uint8)
    env.obs = env.obs.astype(np.uint8)
    stepper, step = EnvStepper(env), env.step
    stepper.reset()

    def wide(actions: Any) -> Any:
        *rest, info = step(actions)
        for row, one in enumerate(info.get("final_obs", ())):
            info["final_obs"][row] = None if one is None else one.astype(np.int64) + 300
        return *rest, info

    env.step = wide  # type: ignore[method-assign]
    stepper.step(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="env 0 gave a first or final observation that must fit into uint8"):
        stepper.step(np.zeros(3, np.int64))
