"""Policies that were trained on a data set, or in an env, continue in an env."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.callbacks import InitialWeights
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.entry.lightning_cli import main
from lightning_ding.policy import DQNPolicy, IQLPolicy, SACPolicy, create_policy, get_policy_cls, load_policy
from tests.algorithms.table import random_episodes
from tests.conftest import MakeTrainer

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
    "learn": {"update_per_collect": 1, "batch_size": 8},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"n_episode": 1}},
}
DATA = random_episodes("Pendulum-v1")
NAMES = ("iql", "cql", "calql", "awac", "td3_bc")
Q_LEARNING: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [8]},
    "learn": {"update_per_collect": 1, "batch_size": 8},
    "collect": {"n_sample": 8},
    "other": {"eps": {"start": 1.0, "end": 0.0, "decay": 1000}},
}


def trained(make_trainer: MakeTrainer, tmp_path: Path, name: str = "iql", **data: Any) -> Path:
    """Return the checkpoint of a policy after four updates on random episodes."""
    config = Q_LEARNING if name == "dqn" else CONFIG
    dataset, env_id = (random_episodes("CartPole-v1"), "CartPole-v1") if name == "dqn" else (DATA, "Pendulum-v1")
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(create_policy({"type": name, **config}), OfflineDataModule(dataset, env_id, max_train_iter=4, **data))
    trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
    return tmp_path / f"{name}.ckpt"


def online(make_trainer: MakeTrainer, policy: Any, max_env_step: int = 32, **data: Any) -> ReplayDataModule:
    env_id = "CartPole-v1" if isinstance(policy, DQNPolicy) else "Pendulum-v1"
    datamodule = ReplayDataModule(env_id, num_envs=2, max_env_step=max_env_step, **data)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    return datamodule


def acted(make_trainer: MakeTrainer, policy: Any, **data: Any) -> int:
    """Return how many of 32 env steps a policy acted in."""
    steps: list[int] = []
    forward = policy._forward_collect

    def note(obs: Any, **kwargs: Any) -> Any:
        steps.append(len(obs))
        return forward(obs, **kwargs)

    policy._forward_collect = note
    online(make_trainer, policy, **data)
    return sum(steps)


# ---------------------------------------------------------------------- random steps


@pytest.mark.parametrize("name", NAMES)
def test_policy_that_was_trained_on_data_acts_in_every_step(
    name: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    policy = get_policy_cls({"type": name}).load_from_checkpoint(trained(make_trainer, tmp_path, name))
    assert acted(make_trainer, policy, demonstrations=DATA) == 32
    assert (policy.progress.env_step, policy.progress.train_iter) == (32, 4 + 2)


def test_untrained_policy_begins_with_random_steps(make_trainer: MakeTrainer) -> None:
    assert acted(make_trainer, IQLPolicy(CONFIG)) == 32 - 16


def test_weights_that_a_callback_loads_make_no_random_steps(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ckpt, policy, counted = trained(make_trainer, tmp_path), IQLPolicy(CONFIG), []

    class Counting(IQLPolicy):
        def _forward_collect(self, obs: Any, **kwargs: Any) -> Any:
            counted.append(len(obs))
            return super()._forward_collect(obs, **kwargs)

    policy = Counting(CONFIG)
    datamodule = ReplayDataModule("Pendulum-v1", num_envs=2, max_env_step=32)
    make_trainer(limit_val_batches=0, callbacks=[InitialWeights(ckpt)]).fit(policy, datamodule)
    assert sum(counted) == 32


def test_epsilon_is_at_its_end_after_a_data_set_and_stays_there(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = DQNPolicy.load_from_checkpoint(trained(make_trainer, tmp_path, "dqn"))
    assert policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0}) == {"eps": 0.0}
    online(make_trainer, policy)
    assert policy.command_mode.get_setting_collect({"envstep": 32, "learner_step": 0}) == {"eps": 0.0}
    again = DQNPolicy(Q_LEARNING)
    again.progress.load_state_dict(policy.progress.state_dict())
    assert again.command_mode.get_setting_collect({"envstep": 32, "learner_step": 0}) == {"eps": 0.0}


def test_epsilon_is_at_its_end_after_a_checkpoint_of_a_data_set_without_data_iter(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    file = trained(make_trainer, tmp_path, "dqn")
    saved = torch.load(file, weights_only=True)
    del saved["progress"]["data_iter"]
    policy = DQNPolicy(Q_LEARNING)
    policy.on_load_checkpoint(saved)
    assert policy.progress.data_iter == 4
    assert policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0}) == {"eps": 0.0}
    del saved["datamodule_hyper_parameters"]["dataset"]  # of a run in envs, which may learn before its first step
    policy.on_load_checkpoint(saved)
    assert policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0}) == {"eps": 1.0}


def test_counter_of_env_steps_is_zero_after_a_data_set(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = load_policy(trained(make_trainer, tmp_path, "dqn"))
    assert (policy.progress.env_step, policy.progress.train_iter) == (0, 4)


# ---------------------------------------------------------------------- config


def test_cfg_is_merged_over_that_of_the_checkpoint(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ckpt = trained(make_trainer, tmp_path)
    policy = IQLPolicy.load_from_checkpoint(ckpt, cfg={"learn": {"update_per_collect": 3}})
    expected = deep_merge(IQLPolicy.load_from_checkpoint(ckpt).cfg, {"learn": {"update_per_collect": 3}})
    assert policy.cfg == expected
    assert policy.config.model.actor_head_hidden_size == 8
    whole = IQLPolicy.load_from_checkpoint(ckpt, cfg=policy.config)
    assert whole.config == policy.config


def test_section_of_another_type_begins_from_its_defaults(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ckpt = trained(make_trainer, tmp_path)
    changes = {"other": {"replay_buffer": {"type": "advanced"}}, "priority": True}
    policy = IQLPolicy.load_from_checkpoint(ckpt, cfg=changes)
    assert policy.config.other.replay_buffer.type == "advanced"


def test_setting_the_cfg_of_a_policy_raises() -> None:
    cfg = SACPolicy({"model": {"obs_shape": 3, "action_shape": 1}}).cfg
    message = r"policy\.cfg\.learn\.batch_size cannot be set: pass it to the constructor, or change a copy\.deepcopy"
    with pytest.raises(TypeError, match=message):
        cfg.learn.batch_size = 3
    with pytest.raises(TypeError, match=message):
        cfg["learn"].update(batch_size=3)
    with pytest.raises(TypeError, match=r"policy\.cfg\.learn cannot be set"):
        del cfg["learn"]


# ---------------------------------------------------------------------- normalisation


def test_normalisation_follows_the_policy(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy = IQLPolicy.load_from_checkpoint(trained(make_trainer, tmp_path, norm_reward=True, norm_obs=True))
    count = int(policy.state_dict()["normaliser.obs.count"])
    datamodule = online(make_trainer, policy)
    assert (datamodule.norm_obs, datamodule.norm_reward) == (True, True)
    assert int(policy.state_dict()["normaliser.obs.count"]) == count + 32
    with pytest.raises(ValueError, match="norm_obs must be True for a policy that was trained with it, got False"):
        online(make_trainer, policy, norm_obs=False)


@pytest.mark.parametrize("kind", [ReplayDataModule, OfflineDataModule])
def test_resumed_run_normalises_as_the_checkpoint(kind: Any, make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def data(limit: int, **more: Any) -> Any:
        if kind is OfflineDataModule:
            return OfflineDataModule(DATA, "Pendulum-v1", max_train_iter=limit // 8, **more)
        return ReplayDataModule("Pendulum-v1", num_envs=2, max_env_step=limit, **more)

    def fit(more: Any, ckpt: Any = None) -> Any:
        policy = IQLPolicy(CONFIG)
        trainer = make_trainer(
            limit_val_batches=0, enable_checkpointing=True, default_root_dir=tmp_path / str(ckpt is None)
        )
        trainer.fit(policy, data(64 if ckpt else 32, **more), ckpt_path=ckpt)
        return policy.state_dict()

    torch.manual_seed(0)
    fit({"norm_obs": True, "norm_reward": True})
    (ckpt,) = tmp_path.rglob("last.ckpt")
    found, expected = fit({}, str(ckpt)), fit({"norm_obs": True, "norm_reward": True}, str(ckpt))
    assert "normaliser.reward.count" in found
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# ---------------------------------------------------------------------- the command line


def write_data(folder: Path) -> str:
    np.savez(folder / "data.npz", **DATA)
    return str(folder / "data.npz")


def arguments(folder: Path, *more: str) -> list[str]:
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    short = ["--data.env_id", "Pendulum-v1", "--data.n_evaluator_episode", "1"]
    return ["fit", "--policy", "iql", *short, *quiet, "--trainer.default_root_dir", str(folder), *more]


def test_command_line_goes_from_data_to_an_env(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ckpt, file = trained(make_trainer, tmp_path, norm_reward=True), write_data(tmp_path)
    begin = ["--train_on", "envs", "--from_checkpoint", str(ckpt), "--data.num_envs", "2", "--data.max_env_step", "32"]
    main(
        arguments(tmp_path / "run", *begin, "--data.demonstrations", file, "--model.cfg.learn.update_per_collect", "2")
    )
    (last,) = (tmp_path / "run").rglob("last.ckpt")
    state = torch.load(last, weights_only=True)
    assert (state["progress"]["env_step"], state["progress"]["train_iter"]) == (32, 4 + 2 * 2)
    cfg = state["hyper_parameters"]["cfg"]
    assert (cfg["learn"]["update_per_collect"], cfg["learn"]["batch_size"], cfg["random_collect_size"]) == (2, 8, 16)
    assert "normaliser.reward.count" in state["state_dict"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from_checkpoint", "missing.ckpt"], "from_checkpoint must be the path of a checkpoint, got 'missing.ckpt'"),
        (["--train_on", "env"], "train_on must be 'envs' or 'dataset', got 'env'"),
        (
            ["--policy", "cql", "--from_checkpoint", "iql.ckpt"],
            "policy must be that of the checkpoint, which is IQLPolicy, got",
        ),
    ],
)
def test_mistakes_are_one_line(
    options: list[str],
    message: str,
    make_trainer: MakeTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(make_trainer, tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["fit", *options, "--data.dataset", "data.npz"])
    assert end.value.code == 2
    assert f"error: {message}" in capsys.readouterr().err
