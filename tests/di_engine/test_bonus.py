"""DI-engine's agents of ``ding.bonus``: its calls, its arguments and its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.datamodules import load_dataset
from lightning_ding.di_engine import bonus
from lightning_ding.di_engine.bonus import PPOF, DQNAgent, EvalReturn, PGAgent, SACAgent, TrainingReturn
from lightning_ding.di_engine.envs import DingEnvWrapper
from lightning_ding.entry.evaluate import evaluate

CFG: dict[str, Any] = {
    "exp_name": "cartpole",
    "env": {
        **{"env_id": "CartPole-v1", "stop_value": 195, "n_evaluator_episode": 2},
        **{"collector_env_num": 2, "evaluator_env_num": 2},
    },
    "policy": {
        **{"cuda": False, "nstep": 3, "discount_factor": 0.97},
        "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 0.01},
        "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]},
        "collect": {"n_sample": 16},
        "other": {"eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 50}},
    },
    "wandb_logger": {"gradient_logger": True},
}


def weights(agent: Any) -> torch.Tensor:
    return torch.cat([one.flatten() for one in agent.policy.state_dict().values()])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_calls_of_the_reference() -> None:
    agent = DQNAgent(cfg=CFG, seed=1)
    assert (agent.exp_name, agent.checkpoint_save_dir) == ("cartpole", str(Path("cartpole/ckpt")))
    config: Any = agent.policy.config
    assert (config.nstep, config.discount_factor, config.learn.batch_size) == (3, 0.97, 8)
    assert agent.train(step=160, debug=True) == TrainingReturn(wandb_url="")
    assert agent.policy.progress.env_step == 160
    assert agent.train(step=64, collector_env_num=2).wandb_url == ""
    assert agent.policy.progress.env_step == 224
    found = agent.batch_evaluate(env_num=2, n_evaluator_episode=3)
    expected = evaluate("cartpole/ckpt/last.ckpt", 3, num_envs=2, seed=1)
    assert found == EvalReturn(np.float32(expected["mean"]), np.float32(expected["std"]))
    one, other = agent.deploy(seed=4).eval_value, agent.deploy(seed=5).eval_value
    both = agent.deploy(seed=[4, 5])
    assert both == EvalReturn(np.float32((one + other) / 2), np.float32(abs(one - other) / 2))
    agent.collect_data(env_num=2, n_sample=50)
    assert load_dataset("cartpole/demo_data.npz").statistics().transitions >= 50
    agent.collect_data(env_num=2, n_episode=3, save_data_path="data/three")
    assert load_dataset("data/three.npz").statistics().episodes == 3
    assert agent.best is agent
    saved = torch.load("cartpole/ckpt/best.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(weights(agent), torch.cat([one.flatten() for one in saved.values()]))


def test_state_to_start_from_is_a_file_or_a_dict() -> None:
    first = DQNAgent(cfg=CFG)
    first.train(step=80, debug=True)
    state = first.policy.learn_mode.state_dict()
    from_dict = DQNAgent(cfg=CFG, exp_name="b", policy_state_dict=state)
    from_file = DQNAgent(cfg=CFG, exp_name="c", policy_state_dict="cartpole/ckpt/last.ckpt")
    assert torch.equal(weights(from_dict), weights(first))
    assert torch.equal(weights(from_file), weights(first))
    assert first.batch_evaluate(2, 2) == from_dict.batch_evaluate(2, 2) == from_file.batch_evaluate(2, 2)
    from_file.train(step=16, debug=True)  # with counters from the beginning
    assert from_file.policy.progress.env_step == 16


def test_env_may_be_given() -> None:
    env = DingEnvWrapper(gym.make("CartPole-v1"), cfg={"env_wrapper": "default"})
    agent = DQNAgent(cfg=CFG, env=env)
    agent.train(step=32)
    assert agent.agent.datamodule.mode == "sync"
    assert agent.batch_evaluate(2, 2).eval_value >= 8


@pytest.mark.parametrize("name", bonus.supported_algo_list)
def test_each_agent_has_a_policy_without_a_config(name: str) -> None:
    is_discrete = name in ("C51", "DQN", "SQL", "A2C", "PPOF", "PPOOffPolicy")
    env_id = "CartPole-v1" if is_discrete else "Pendulum-v1"
    agent = bonus.supported_algo[name](env_id, exp_name="x")
    expected = {"PPOF": "PPOPolicy", "PPOOffPolicy": "PPOOffPolicy"}.get(name, f"{name}Policy")
    assert type(agent.policy).__name__ == expected
    assert (agent.env, agent.exp_name, agent.agent.datamodule.env_id) == (None, "x", env_id)
    assert agent.agent.datamodule.num_envs == (4 if name == "PPOF" else 8)


def test_flat_config_of_ppof_is_that_of_ppo() -> None:
    agent = PPOF(cfg={"env_id": "CartPole-v1", "n_sample": 64, "value_norm": "popart", "batch_size": 32, "cuda": False})
    config: Any = agent.policy.config
    assert (config.collect.n_sample, config.learn.value_norm, config.learn.batch_size) == (64, "popart", 32)
    assert (config.learn.epoch_per_collect, config.learn.grad_clip_norm, config.learn.entropy_weight) == (10, 0.5, 0.01)
    assert agent.exp_name == "CartPole-v1-PPO"
    agent.train(step=64, debug=True)
    assert agent.policy.progress.train_iter == 20
    with pytest.raises(
        ValueError, match=r"^cfg.value_norm must be one of \['baseline', 'popart', 'symlog'\], got 'value"
    ):
        PPOF("CartPole-v1", cfg={"value_norm": "value_rescale"})
    with pytest.raises(ValueError, match=r"^cfg must be a config of PPOF, .*got \{'nsample': 3\}"):
        PPOF("CartPole-v1", cfg={"nsample": 3})


def test_any_env_of_gymnasium_is_taken() -> None:
    assert DQNAgent("Acrobot-v1").agent.datamodule.env_id == "Acrobot-v1"
    assert DQNAgent("Blackjack-v1").agent.datamodule.env_id == "Blackjack-v1"
    assert SACAgent("Pendulum-v1").agent.datamodule.env_id == "Pendulum-v1"


def test_mistakes_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"^env_id must be given, or env_id in the config of the env, got None"):
        DQNAgent()
    with pytest.raises(ValueError, match=r"^env_id must be that of cfg \('CartPole-v1'\), got 'Acrobot-v1'"):
        DQNAgent("Acrobot-v1", cfg=CFG)
    with pytest.raises(ValueError, match=r"^env_id must be an env of gymnasium, or an env is given, got 'CartPol-v1'"):
        DQNAgent("CartPol-v1")
    agent = PGAgent("Pendulum-v1")
    with pytest.raises(RuntimeError, match=r"^deploy needs a trained policy"):
        agent.deploy()
    with pytest.raises(ValueError, match=r"^wandb_sweep must be False"):
        agent.train(wandb_sweep=True)
    with pytest.raises(ValueError, match=r"^n_sample must be given, or n_episode, and not both"):
        agent.collect_data()


def test_what_is_supported() -> None:
    assert bonus.is_supported("lunarlander-v2", "dqn")
    assert not bonus.is_supported("LunarLander-v2", "td3")
    assert not bonus.is_supported(algo="x")
    assert bonus.algo_supported("Pendulum-v1") == ["DDPG", "PG", "SAC", "TD3"]
    assert bonus.env_supported("pg") == ["Pendulum-v1"]
    assert set(bonus.supported_env) >= {"LunarLander-v2", "Hopper-v3"}
    with pytest.raises(ValueError, match="algo must be one of"):
        bonus.env_supported("qmix")
