from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.callbacks import InitialWeights
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

MakeTrainer = Callable[..., Trainer]


def made(small: dict[str, Any], seed: int) -> DQNPolicy:
    torch.manual_seed(seed)
    return DQNPolicy({**small, "model": {"obs_shape": 4, "action_shape": 2}})


def saved(policy: DQNPolicy, folder: Path) -> Path:
    file = folder / "weights.ckpt"
    torch.save({"state_dict": policy.state_dict()}, file)
    return file


@pytest.mark.parametrize("stage", ["fit", "validate", "test"])
def test_weights_are_loaded_before_a_stage(
    stage: str, small: dict[str, Any], make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    source, policy = made(small, 0), made({**small, "learn": {**small["learn"], "learning_rate": 1e-30}}, 1)
    trainer = make_trainer(callbacks=[InitialWeights(saved(source, tmp_path))])
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=1)
    getattr(trainer, stage)(policy, data)
    loaded = policy.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in source.state_dict().items())


def test_evaluations_of_a_fit_do_not_load_the_weights_again(
    small: dict[str, Any], make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    source, policy = made(small, 0), made(small, 1)
    trainer = make_trainer(callbacks=[InitialWeights(saved(source, tmp_path))])
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=40))
    assert not torch.equal(next(policy.model.parameters()), next(source.model.parameters()))


def test_checkpoint_of_ding_is_loaded_by_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "ckpt_best.pth.tar"
    file.touch()

    class Recorder:
        def load_ding_checkpoint(self, path: str) -> None:
            self.path = path

    policy, trainer = Recorder(), Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    InitialWeights(file).on_fit_start(trainer, policy)
    assert policy.path == str(file)


def test_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file '.*missing\.ckpt'"):
        InitialWeights(tmp_path / "missing.ckpt")
