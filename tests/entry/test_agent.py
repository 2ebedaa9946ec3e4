"""``lightning_ding.Agent``: a run in one line each, with the results of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer

from lightning_ding import Agent
from lightning_ding.config import to_dict
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule, load_dataset
from lightning_ding.entry.collect import collect
from lightning_ding.entry.evaluate import evaluate
from lightning_ding.entry.lightning_cli import make_run
from lightning_ding.envs.vector import VectorMode
from lightning_ding.model import DQN
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import NotRegisteredError

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
Config = dict[str, Any]


def make(cfg: Config, name: str | None = "x", **arguments: Any) -> Agent:
    return Agent("dqn", "CartPole-v1", name, cfg, **{"num_envs": 2, "trainer": QUIET, **arguments})


def weights(agent: Agent) -> torch.Tensor:
    return torch.cat([one.flatten() for one in agent.policy.state_dict().values()])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("limits", [{"max_env_step": 96}, {}, {"mode": "async", "max_env_step": 96}])
def test_two_calls_train_what_one_call_with_the_sum_trains(limits: Config, small: Config) -> None:
    small["other"]["eps"] = {} if limits else {"decay": 50.0}  # otherwise it decays by the length of the run
    once = make(small, "once", **limits).train(env_steps=64)
    twice = make(small, "twice", **limits).train(env_steps=40)
    assert (twice.policy.progress.env_step, once.policy.progress.env_step) == (40, 64)
    first = twice.trainer
    assert twice.train(env_steps=24) is twice
    assert twice.policy.progress == once.policy.progress
    assert torch.equal(weights(twice), weights(once))
    assert twice.trainer is not first
    assert twice.datamodule.max_env_step == once.datamodule.max_env_step == limits.get("max_env_step", 64)
    assert twice.checkpoint == Path("runs/twice/version_0/checkpoints/last.ckpt")  # the same run continues
    if limits:
        twice.train()
        assert twice.policy.progress.env_step == 96


def test_updates_limit_a_call_as_well(small: Config) -> None:
    once, twice = make(small, max_train_iter=20), make(small, max_train_iter=20)
    once.train(updates=12)
    twice.train(updates=6).train(updates=6)
    assert once.policy.progress.train_iter == twice.policy.progress.train_iter == 12
    assert torch.equal(weights(once), weights(twice))


def test_run_that_ended_early_continues_from_its_end(small: Config) -> None:
    agent = make({**small, "eval": {"evaluator": {"n_episode": 2, "eval_freq": 4, "stop_value": 1.0}}})
    agent.train(env_steps=10_000)
    ended = agent.policy.progress.env_step
    assert ended < 100
    agent.datamodule.stop_value = 1e9
    assert agent.train(env_steps=16).policy.progress.env_step == ended + 16


def test_config_and_parts_are_those_of_fit(small: Config) -> None:
    agent = make(small, None, max_env_step=100, wrappers=["flatten"])
    data = {"env_id": "CartPole-v1", "num_envs": 2, "max_env_step": 100, "wrappers": ["flatten"]}
    run: Any = make_run({"policy": "dqn", "model": {"cfg": small}, "data": data, "trainer": QUIET})
    assert to_dict(agent.policy.config) == to_dict(run.model.config)
    assert agent.policy.config == DQNPolicy(small).config
    assert dict(agent.datamodule.hparams) == dict(run.datamodule.hparams)
    assert type(agent.trainer) is Trainer
    assert str(agent.trainer.default_root_dir) == str(run.trainer.default_root_dir)
    assert type(agent.trainer.logger) is type(run.trainer.logger)


def test_dotted_keys_and_sections_make_one_config() -> None:
    cfg = {"learn.batch_size": 8, "learn": {"update_per_collect": 3}, "other.replay_buffer.replay_buffer_size": 99}
    config = Agent("dqn", "CartPole-v1", cfg=cfg, trainer=QUIET).policy.config
    assert (config.learn.batch_size, config.learn.update_per_collect) == (8, 3)
    assert config.other.replay_buffer.replay_buffer_size == 99


def test_policy_chooses_the_datamodule(small: Config) -> None:
    agents = [Agent(name, "CartPole-v1", trainer=QUIET) for name in ("dqn", "ppo")]
    assert [type(one.datamodule) for one in agents] == [ReplayDataModule, RolloutDataModule]
    make(small).train(env_steps=16).collect("demos.npz", 2)
    offline = Agent("discrete_cql", dataset="demos.npz", cfg={"learn": {"batch_size": 4}}, trainer=QUIET)
    assert type(offline.datamodule) is OfflineDataModule
    assert offline.train(updates=20).policy.progress.train_iter == 20  # rounds of 10
    with pytest.raises(ValueError, match=r"^env_steps must be None, because DiscreteCQLPolicy takes no env steps: use"):
        offline.train(env_steps=3)


def test_evaluation_and_data_are_those_of_the_commands(small: Config) -> None:
    agent = make(small).train(env_steps=40)
    found, expected = agent.evaluate(3, seed=4, num_envs=2), evaluate(str(agent.checkpoint), 3, seed=4, num_envs=2)
    assert found == expected
    assert len(found["returns"]) == found["episodes"] == 3
    before = weights(agent)
    data = agent.collect("agent.npz", 3, seed=1)
    other = collect(agent.checkpoint, "command.npz", 3, seed=1)
    same = [one.statistics().obs_mean.tolist() for one in (data, other, load_dataset("agent.npz"))]
    assert same[0] == same[1] == same[2]
    assert data.statistics().episodes == 3
    assert torch.equal(before, weights(agent))
    assert agent.policy.training  # as the last call of fit left it


def test_data_of_a_least_number_of_transitions(small: Config) -> None:
    agent = make(small).train(env_steps=16)
    data = agent.collect("data.npz", 2, n_sample=100)
    assert data.statistics().transitions >= 100
    assert data.statistics().episodes % 2 == 0


def test_deploy_writes_a_video_with_the_return_of_its_episode(small: Config) -> None:
    agent = make(small).train(env_steps=16)
    ((value, file),) = agent.deploy("x.gif", seed=3)
    assert file == Path("x.gif")
    assert file.read_bytes()[:3] == b"GIF"
    assert agent.deploy(seed=3, shown=False) == [(value, None)]
    env, total, is_over = gym.make("CartPole-v1"), 0.0, False
    obs, _ = env.reset(seed=3)
    while not is_over:
        obs, reward, terminated, truncated, _ = env.step(agent.policy.predict(obs))
        total, is_over = total + float(reward), terminated or truncated
    assert total == value


def test_best_is_the_policy_of_the_best_evaluation(small: Config) -> None:
    agent = make({**small, "learn": {"update_per_collect": 2, "batch_size": 8, "learning_rate": 0.05}})
    agent.train(env_steps=200)
    best = agent.best
    saved = torch.load(agent.trainer.checkpoint_callback.best_model_path, weights_only=True)  # type: ignore[union-attr]
    expected = torch.cat([one.flatten() for one in saved["state_dict"].values()])
    assert torch.equal(weights(best), expected)
    assert not torch.equal(weights(agent), expected)
    assert best.policy.progress.env_step == saved["progress"]["env_step"] < agent.policy.progress.env_step
    assert best.evaluate(2) == evaluate(best.checkpoint or "", 2)
    assert torch.equal(weights(best.best), expected)


def test_loaded_agent_acts_and_trains_as_the_saved_one(small: Config, folder: Path) -> None:
    agent = make(small, max_env_step=64, norm_obs=True).train(env_steps=40)
    saved = agent.save("saved")
    loaded = Agent.load(saved, trainer=QUIET)
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    assert np.array_equal(loaded.policy.predict(obs), agent.policy.predict(obs))
    assert (loaded.datamodule.num_envs, loaded.datamodule.max_env_step) == (2, 64)
    assert loaded.evaluate(2) == agent.evaluate(2)
    assert torch.equal(weights(loaded.best), weights(agent.best))
    assert torch.equal(weights(loaded.train()), weights(agent.train()))
    assert agent.policy.progress.env_step == 64
    agent.best.save("best")
    assert torch.equal(weights(Agent.load("best", trainer=QUIET)), weights(agent.best))
    with pytest.raises(ValueError, match=r"^path must be a new or an empty folder, got 'saved'"):
        agent.save("saved")
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"^path must be a checkpoint, or a folder that has one, got"):
        Agent.load(folder / "empty", trainer=QUIET)


class Tall(gym.Wrapper[Any, Any, Any, Any]):
    """Gives twice the reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return (obs, 2 * float(reward), *rest)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_env_may_be_an_object_of_the_program(mode: VectorMode, small: Config) -> None:
    agent = Agent(DQNPolicy, lambda: Tall(gym.make("CartPole-v1")), "own", small, num_envs=2, mode=mode, trainer=QUIET)
    agent.train(env_steps=16)
    found = agent.evaluate(2)
    assert found["returns"] == [2.0 * length for length in found["lengths"]]
    assert agent.best.collect("own.npz", 1).statistics().return_mean % 2 == 0
    with pytest.raises(NotRegisteredError, match="the file makes its env with"):
        Agent.load(agent.save("saved"), trainer=QUIET)
    again = Agent.load("saved", env_id=lambda: Tall(gym.make("CartPole-v1")), trainer=QUIET)
    assert again.evaluate(2)["returns"] == found["returns"]


def test_network_of_the_program_is_that_of_the_best_policy_too(small: Config) -> None:
    agent = make(small, model=DQN(4, 2, encoder_hidden_size_list=[8])).train(env_steps=40)
    shapes = [tuple(one.shape) for one in agent.policy.model.parameters()]
    assert [tuple(one.shape) for one in agent.best.policy.model.parameters()] == shapes
    assert shapes[0] == (8, 4)


@pytest.mark.parametrize("method", ["evaluate", "deploy", "collect", "save", "best"])
def test_what_needs_a_trained_policy_says_so(method: str, small: Config) -> None:
    agent = make({**small, "model": {**small["model"], "obs_shape": 4, "action_shape": 2}})
    with pytest.raises(RuntimeError, match=rf"^{method} needs a trained policy: call train first, or begin with Agent"):
        getattr(agent, method)("x.gif") if method in ("collect", "save") else getattr(agent, method)()


def test_mistakes_are_one_line(small: Config) -> None:
    with pytest.raises(NotRegisteredError, match="no policy is registered as 'dqm'; did you mean 'dqn'"):
        Agent("dqm", "CartPole-v1")
    with pytest.raises(ValueError, match=r"^env_id must be a registered gymnasium id.*did you mean 'CartPole-v1'"):
        Agent("dqn", "CartPol-v1")
    with pytest.raises(ValueError, match=r"^env_id must be given, because DQNPolicy trains with ReplayDataModule"):
        Agent("dqn")
    with pytest.raises(ValueError, match=r"^dataset must be given, because CQLPolicy trains with OfflineDataModule"):
        Agent("cql", "Pendulum-v1")
    with pytest.raises(ValueError, match=r"^unknown option 'numenvs' of ReplayDataModule; did you mean 'num_envs'"):
        make(small, numenvs=2)
    with pytest.raises(ValueError, match=r"^unknown option 'acccelerator' of the Trainer; did you mean 'accelerator'"):
        make(small, trainer={"acccelerator": "cpu"})
    with pytest.raises(ValueError, match=r"^unknown config key 'learn.batchsize'; did you mean 'learn.batch_size'"):
        make({"learn.batchsize": 2})
    with pytest.raises(ValueError, match=r"^exp_name must be None with a logger of your own, got 'x'"):
        make(small, trainer={"logger": False})
    with pytest.raises(
        ValueError, match=r"^env_steps must be a number, unless the agent was made with max_env_step or"
    ):
        make(small).train()
    with pytest.raises(ValueError, match=r"^env_steps must be >= 1, got 0"):
        make(small).train(env_steps=0)


def test_run_without_checkpoints_does_not_continue(small: Config) -> None:
    agent = make(small, trainer={**QUIET, "enable_checkpointing": False}).train(env_steps=16)
    assert agent.evaluate(1)["episodes"] == 1
    with pytest.raises(RuntimeError, match=r"^train cannot continue, because the run wrote no checkpoint"):
        agent.train(env_steps=16)
    with pytest.raises(RuntimeError, match=r"^save needs a run that writes checkpoints"):
        agent.save("x")
    with pytest.raises(RuntimeError, match=r"^best needs a run that evaluated its policy"):
        _ = agent.best


@pytest.mark.slow
def test_cartpole_is_learnt_in_one_line() -> None:
    cfg = {
        **{"nstep": 3, "learn.update_per_collect": 16, "learn.batch_size": 128, "learn.learning_rate": 1e-3},
        **{"learn.target_update_freq": 100, "collect.n_sample": 64},
        "eval.evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0},
    }
    agent = Agent("dqn", "CartPole-v1", "learn", cfg, trainer=QUIET).train(env_steps=30_000)
    assert agent.best.evaluate(20)["mean"] > 400
