"""DI-engine's ``simple_spread``: its observations, rewards and ends are those that DI-engine's env returned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ding.di_engine.env_types import translate_envs
from lightning_ding.di_engine.serial import serial_pipeline
from lightning_ding.envs import make_vector_env

RECORDED = json.loads(Path(__file__).with_name("ding_simple_spread.json").read_text())


def made(section: dict[str, Any], **arguments: Any) -> Any:
    pytest.importorskip("mpe2")
    from lightning_ding.di_engine.team_envs import SimpleSpread

    entries = {name: one for name, one in section.items() if name not in ("n_landmark", "act_scale")}
    return SimpleSpread(**entries, **arguments)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda one: str(sorted(one["section"])))
def test_numbers_are_those_of_di_engine(recorded: dict[str, Any]) -> None:
    section = recorded["section"]
    env = made(section)
    is_box = section.get("continuous_actions", False)
    seen, rewards, ends = [env.reset(seed=recorded["seed"])[0]], [], []
    for action in recorded["action"]:
        given = np.array(action)
        obs, reward, terminated, truncated, _ = env.step((given + 1) / 2 if is_box else given[:, 0])
        seen.append(obs)
        rewards.append(reward)
        ends.append(terminated or truncated)
    assert rewards == pytest.approx(recorded["reward"], rel=1e-6)
    assert ends == recorded["done"]
    for own, then in zip(seen, recorded["obs"], strict=True):
        assert env.observation_space.contains(own)
        names = (
            {"agent_state"} if section.get("agent_obs_only") else set(then) - {"action_mask"}
        )  # of ones, in a Box too
        assert set(own) == names
        for name in names:
            theirs = np.array(then[name] if isinstance(then, dict) else then, np.float32)
            assert np.allclose(own[name], theirs, rtol=1e-6, atol=1e-7), name
            assert own[name].shape == theirs.shape


def test_rewards_of_agents_add_up() -> None:
    env = made({"n_agent": 3, "max_cycles": 2}, individual_rewards=True)
    env.reset(seed=0)
    obs, reward, *_ = env.step(np.zeros(3, np.int64))
    assert obs["agent_reward"].sum() == pytest.approx(reward)
    first = reward
    _, reward, terminated, truncated, info = env.step(np.zeros(3, np.int64))
    assert (terminated, truncated) == (False, True)
    assert sum(info[f"return_agent_{one}"] for one in range(3)) == pytest.approx(first + reward)


def test_agents_of_mujoco_see_what_they_see_in_di_engine() -> None:
    pytest.importorskip("gymnasium_robotics")
    numbers = {"collector_env_num": 1, "evaluator_env_num": 1, "n_evaluator_episode": 1, "stop_value": 1}
    for scenario, parts, size in (("Ant-v2", "2x4d", 54), ("HalfCheetah-v2", "2x3", 8)):
        section = {"scenario": scenario, "agent_conf": parts, "agent_obsk": 2, **numbers}
        envs = translate_envs(section, {"type": "mujoco_multi"}, {"type": "base"}, None)
        env = make_vector_env(envs.env, 1, env_kwargs=envs.datamodule["env_kwargs"])
        seen: Any = env.single_observation_space
        assert seen["agent_state"].shape == (2, size)  # the shapes of dizoo's configs
        env.close()


def test_pistonball_of_dizoo_runs_with_its_images() -> None:
    """The config is dizoo's ``ptz_pistonball_qmix_config.py`` with fewer pistons, steps and channels."""
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pymunk")
    main = {
        "env": {
            **{"env_family": "butterfly", "env_id": "pistonball_v6", "n_pistons": 2, "max_cycles": 6},
            **{"agent_obs_only": False, "continuous_actions": False, "manager": {"shared_memory": False}},
            **{"collector_env_num": 2, "evaluator_env_num": 1, "n_evaluator_episode": 1, "stop_value": 1e6},
        },
        "policy": {
            "cuda": False,
            "model": {
                **{"agent_num": 2, "obs_shape": (3, 457, 120), "global_obs_shape": (3, 560, 160), "action_shape": 3},
                **{"hidden_size_list": [4, 4, 4, 16], "mixer": True},
            },
            "learn": {
                **{"update_per_collect": 1, "batch_size": 2, "learning_rate": 0.0001, "clip_value": 5},
                **{"target_update_theta": 0.001, "discount_factor": 0.99, "double_q": True},
            },
            "collect": {"n_sample": 2, "unroll_len": 5, "env_num": 2},
            "eval": {"env_num": 1},
            "other": {
                "eps": {"type": "exp", "start": 1.0, "end": 0.05, "decay": 100000},
                "replay_buffer": {"replay_buffer_size": 8},
            },
        },
    }
    create = {"env": {"type": "petting_zoo_pistonball"}, "env_manager": {"type": "base"}, "policy": {"type": "qmix"}}
    policy: Any = serial_pipeline((main, create), seed=0, max_env_step=30)
    assert policy.model.agents.images.layers is not None
    assert policy.model.mixer.first_bias.in_features == 16  # features of the image of the whole game
