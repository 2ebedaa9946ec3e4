"""Demonstrations, and random data, under the names of DI-engine's entries."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from easydict import EasyDict

from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine import entry, policy, worker
from lightning_ding.di_engine.envs import BaseEnvManager

MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}
PAIR = (
    {
        "env": {"collector_env_num": 2, "evaluator_env_num": 1, "n_evaluator_episode": 1},
        "policy": {"model": MODEL, "collect": {"n_sample": 8, "save_path": "demos/expert.pkl"}},
    },
    {"env": {"type": "cartpole"}, "env_manager": {"type": "base"}, "policy": {"type": "dqn"}},
)


def test_names_are_those_of_the_entries() -> None:
    from lightning_ding.entry import serial_pipeline

    assert entry.serial_pipeline is serial_pipeline
    assert "serial_pipeline_offline" in entry.__all__
    with pytest.raises(AttributeError, match="serial_pipelin"):
        _ = entry.serial_pipelin


def test_demonstrations_are_whole_greedy_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    expert = policy.DQNPolicy(EasyDict(type="dqn", cuda=False, model=MODEL))
    state = expert.learn_mode.state_dict()
    path = entry.collect_demo_data(PAIR, 0, 30, state_dict=state)
    assert Path(path) == Path("demos/expert.npz")
    assert "demos/expert.pkl is written as demos/expert.npz" in caplog.text
    found = load_dataset(path)
    columns = found.columns
    assert len(columns["reward"]) >= 30
    assert columns["terminated"][-1] or columns["truncated"][-1]
    greedy = expert.eval_mode.forward(torch.as_tensor(np.asarray(columns["obs"])))["action"]
    assert greedy.tolist() == np.asarray(columns["action"]).tolist()
    torch.save(state, "expert.pth.tar")
    path = entry.collect_episodic_demo_data(PAIR, 0, 3, "three.npz", state_dict_path="expert.pth.tar")
    assert load_dataset(path).statistics().episodes == 3
    with pytest.raises(ValueError, match="state_dict_path must be given without a state_dict"):
        entry.collect_demo_data(PAIR, 0, 30, "more.npz")


def test_random_data_are_stored() -> None:
    made = policy.DQNPolicy(EasyDict(type="dqn", cuda=False, model=MODEL))
    collector = worker.SampleSerialCollector({}, BaseEnvManager([lambda: gym.make("CartPole-v1")]), made.collect_mode)
    buffer = worker.NaiveReplayBuffer(EasyDict(replay_buffer_size=100))
    entry.random_collect(EasyDict(random_collect_size=20), made, collector, None, None, buffer)
    assert buffer.count() == 20

    class Commander:
        def step(self) -> dict[str, float]:
            return {"eps": 0.0}

    section = EasyDict(random_collect_size=30, transition_with_policy_data=True)
    entry.random_collect(section, made, collector, None, Commander(), buffer)
    rows = buffer.sample(50)
    obs = torch.stack([torch.as_tensor(one["obs"]) for one in rows])
    greedy = made.eval_mode.forward(obs)["action"].reshape(-1)
    assert sum(int(one["action"]) == int(best) for one, best in zip(rows, greedy, strict=True)) >= 30
    with pytest.raises(ValueError, match="random_collect_size must be >= 1, got 0"):
        entry.random_collect({}, made, collector, None, None, buffer)
