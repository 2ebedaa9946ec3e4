from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]
Config = dict[str, Any]


class AtStart(Callback):
    """Notes what a run starts with."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.weights = torch.nn.utils.parameters_to_vector(pl_module.parameters()).clone()
        self.optimizer = {
            k: v["exp_avg"].clone() for k, v in pl_module._optimizer_list[0].state_dict()["state"].items()
        }
        self.progress = pl_module.progress.state_dict()
        self.buffer = datamodule.buffer.state_dict()
        self.exploration = pl_module.rng.bit_generator.state
        self.torch_rng = torch.get_rng_state()


def first_half(make_trainer: MakeTrainer, small: Config, folder: Path) -> tuple[DQNPolicy, ReplayDataModule]:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, seed=3, max_env_step=200)
    make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder), BestCheckpoint(folder)]).fit(
        policy, datamodule
    )
    return policy, datamodule


def go_on(make_trainer: MakeTrainer, small: Config, file: Path, max_env_step: int = 400) -> tuple[AtStart, DQNPolicy]:
    start, policy = AtStart(), DQNPolicy(small)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, max_env_step=max_env_step)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[start, RunCheckpoint(file.parent)])
    trainer.fit(policy, datamodule, ckpt_path=file)
    return start, policy


def test_resumed_run_starts_with_weights_optimizer_counters_buffer_and_generators_of_the_first(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy, datamodule = first_half(make_trainer, small, tmp_path)
    weights = torch.nn.utils.parameters_to_vector(policy.parameters()).clone()
    state = {k: v["exp_avg"].clone() for k, v in policy._optimizer_list[0].state_dict()["state"].items()}
    assert datamodule.buffer is not None
    buffer, exploration, torch_rng = (
        datamodule.buffer.state_dict(),
        policy.rng.bit_generator.state,
        torch.get_rng_state(),
    )
    torch.manual_seed(999)
    start, resumed = go_on(make_trainer, small, tmp_path / "last.ckpt")
    assert start.progress["env_step"] == 200
    torch.testing.assert_close(start.weights, weights, rtol=0, atol=0)
    torch.testing.assert_close(start.optimizer, state, rtol=0, atol=0)
    torch.testing.assert_close(start.buffer["tensors"], buffer["tensors"], rtol=0, atol=0)
    assert start.buffer["counters"] == buffer["counters"]
    assert start.buffer["rng"] == buffer["rng"]
    assert start.exploration == exploration
    assert torch.equal(start.torch_rng, torch_rng)
    assert resumed.progress.env_step == 400
    assert resumed.progress.train_iter == 46 + 50  # 23 rounds of 2 updates, then 25: no warm-up a second time


def test_resumed_run_that_is_over_does_not_train(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    _, resumed = go_on(make_trainer, small, tmp_path / "last.ckpt", max_env_step=200)
    assert (resumed.progress.env_step, resumed.progress.train_iter) == (200, 46)


def test_best_score_survives_so_that_a_worse_policy_does_not_replace_it(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    first_half(make_trainer, small, tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    best = BestCheckpoint(tmp_path)
    key = next(name for name in state["callbacks"] if name.startswith("BestCheckpoint"))
    best.load_state_dict(state["callbacks"][key])
    assert best.best_model_score > 1
    assert Path(best.best_model_path).is_file()


def test_checkpoints_hold_only_tensors_and_builtins(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    files = sorted(tmp_path.rglob("*.ckpt")) + sorted(tmp_path.rglob("*.pt"))
    assert [file.name for file in files] == ["best.ckpt", "last.ckpt", "rng.pt"]
    for file in files:
        torch.load(file, weights_only=True)


def test_only_the_newest_folder_of_the_ranks_is_kept(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["last-200"]


def test_checkpoint_without_replay_data_says_so_and_goes_on(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_half(make_trainer, small, tmp_path)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        start, resumed = go_on(make_trainer, small, tmp_path / "best.ckpt", max_env_step=300)
    assert "no replay data beside" in caplog.text
    assert start.buffer["counters"]["count"] == 0
    assert resumed.progress.env_step >= 300


def test_buffer_of_another_size_is_refused(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    first_half(make_trainer, small, tmp_path)
    other = deep_merge(small, {"other": {"replay_buffer": {"replay_buffer_size": 300}}})
    with pytest.raises(ValueError, match="replay_buffer_size must be 500, as in the saved state, got 300"):
        go_on(make_trainer, other, tmp_path / "last.ckpt")


def test_replay_data_of_another_number_of_ranks_is_refused(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    first_half(make_trainer, small, tmp_path)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state["ReplayDataModule"]["world_size"] = 2
    torch.save(state, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"devices must be 2, .* got 1"):
        go_on(make_trainer, small, tmp_path / "last.ckpt")


def test_checkpoint_is_evaluated_without_its_replay_data(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy, _ = first_half(make_trainer, small, tmp_path)
    data = ReplayDataModule("CartPole-v1", seed=3)
    file = tmp_path / "last.ckpt"
    (from_file,) = make_trainer().validate(DQNPolicy(small), data, ckpt_path=file, verbose=False)
    (in_memory,) = make_trainer().validate(policy, data, verbose=False)
    assert from_file == in_memory


def test_policy_loads_from_a_checkpoint_alone(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy, _ = first_half(make_trainer, small, tmp_path)
    loaded = DQNPolicy.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    obs = torch.randn(50, 4)
    assert torch.equal(loaded(obs), policy(obs))
    assert loaded.config == policy.config
