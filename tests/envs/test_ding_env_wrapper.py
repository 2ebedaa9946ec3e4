"""gymnasium envs with DI-engine's interface, as ``DingEnvWrapper`` gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.envs import DingEnvWrapper, make_base_env


class Fall(gym.Env[Any, Any]):
    """Pays -100 in every step; the second one terminates the episode, unless a time limit is first."""

    observation_space = gym.spaces.Box(0, 2, (1,), np.float32)
    action_space = gym.spaces.Box(np.array([0.0, 10.0]), np.array([4.0, 20.0]), dtype=np.float64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.actions: list[Any] = []
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return np.array([len(self.actions)], np.float32), -100.0, len(self.actions) == 2, False, {}


def limited(steps: int) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Fall(), steps)


def test_an_env_has_the_interface_of_di_engine() -> None:
    env = DingEnvWrapper(gym.make("CartPole-v1"))
    assert env.reset().shape == env.observation_space.shape == (4,)
    timestep = env.step(np.array([1]))
    assert (timestep.reward.tolist(), timestep.done) == ([1.0], False)
    assert env.reward_space.shape == (1,)
    env.close()


def test_an_id_makes_the_env_at_the_first_reset() -> None:
    env = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
    assert env.reset().shape == (4,)


@pytest.mark.parametrize(("steps", "truncated"), [(1, True), (2, False), (5, False)])
def test_a_time_limit_is_told_from_an_end(steps: int, truncated: bool) -> None:
    env = DingEnvWrapper(limited(steps))
    env.reset()
    timestep = env.step(np.zeros(2))
    while not timestep.done:
        timestep = env.step(np.zeros(2))
    assert timestep.info["TimeLimit.truncated"] is truncated


def test_clipped_rewards_leave_the_return_as_it_is() -> None:
    env = DingEnvWrapper(Fall(), {"rew_clip": True})
    env.reset()
    assert env.step(np.zeros(2)).reward.tolist() == [-10.0]
    assert env.step(np.zeros(2)).info["eval_episode_return"] == -200.0


def test_actions_are_scaled_to_the_bounds_if_asked() -> None:
    raw = Fall()
    for scale in (False, True):
        env = DingEnvWrapper(raw, {"act_scale": scale})
        env.reset()
        env.step(np.array([-2.0, 0.5]))
        assert raw.actions[-1].tolist() == ([0.0, 17.5] if scale else [-2.0, 0.5])


def test_seeds_are_passed_and_dynamic_seeds_differ() -> None:
    env = DingEnvWrapper(Fall())
    starts = {}
    for dynamic_seed in (True, False):
        np.random.seed(0)
        env.seed(3, dynamic_seed)
        starts[dynamic_seed] = [env.reset().item() for _ in range(3)]
    fresh = Fall().reset(seed=3)[0].item()
    assert starts[False] == [fresh] * 3
    assert len({*starts[True], fresh}) == 4


def test_without_the_seed_api_the_env_gets_no_seed() -> None:
    env = DingEnvWrapper(Fall(), seed_api=False)
    env.seed(3, dynamic_seed=False)
    assert env.reset().item() != env.reset().item()


def test_functions_wrap_the_env_in_order() -> None:
    functions = [lambda env: gym.wrappers.TimeLimit(env, 1), gym.wrappers.FlattenObservation]
    env = DingEnvWrapper(Fall(), {"env_wrapper": functions})
    env.reset()
    assert env.step(np.zeros(2)).done
    assert isinstance(env._env, gym.wrappers.FlattenObservation)


@pytest.mark.parametrize(("caller", "training"), [("collector", True), ("evaluator", False)])
def test_the_atari_wrappers_depend_on_the_caller(caller: Any, training: bool) -> None:
    pytest.importorskip("ale_py", reason="needs the extra atari")
    cfg = {"env_id": "PongNoFrameskip-v4", "env_wrapper": "atari_default"}
    env = DingEnvWrapper(cfg=cfg, caller=caller)
    assert env.reset().shape == (4, 84, 84)
    assert ("ClipToSign" in str(env._env)) is training
    assert env._env.unwrapped.spec.kwargs["repeat_action_probability"] == 0.0
    env.close()


def test_it_works_as_an_env_of_gymnasium() -> None:
    env = make_base_env(lambda cfg: DingEnvWrapper(limited(1), cfg), {"rew_clip": True})
    env.reset(seed=0)
    assert env.step(np.zeros(2))[1:4] == (-10.0, False, True)


def test_videos_are_written_if_asked(tmp_path: Path) -> None:
    pytest.importorskip("moviepy", reason="needs the extra video")
    env = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
    env.enable_save_replay(str(tmp_path))
    env.reset()
    while not env.step(np.array([0])).done:
        pass
    env.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_configs_of_several_envs_say_what_they_are_for() -> None:
    cfg = {"collector_env_num": 2, "evaluator_env_num": 1, "x": 0}
    assert [one["is_train"] for one in DingEnvWrapper.create_collector_env_cfg(cfg)] == [True, True]
    assert [one["is_train"] for one in DingEnvWrapper.create_evaluator_env_cfg(cfg)] == [False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "cfg.env_id must be the id of an env, without env, got None"),
        ({"env": Fall(), "caller": "learner"}, "caller must be 'collector' or 'evaluator', got 'learner'"),
        ({"env": Fall(), "cfg": {"env_wrapper": "gym_hybrid_default"}}, "cfg.env_wrapper must be one of"),
        ({"env": Fall(), "cfg": {"env_wrapper": [{"type": "warp_frame"}]}}, "cfg.env_wrapper must be one of"),
        ({"env": Fall(), "cfg": {"env_wrapper": "atari_default"}}, 'env must be None with env_wrapper "atari_default"'),
    ],
)
def test_arguments_that_are_not_supported_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DingEnvWrapper(**arguments)


def test_an_object_that_is_no_env_of_gymnasium_is_refused() -> None:
    with pytest.raises(TypeError, match=r"env must be a gymnasium.Env, got dict"):
        DingEnvWrapper({})  # type: ignore[arg-type]
