"""Reaching into the envs of a run: in which modes, when it is effective, and that a resumed run has it too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.datamodules.dataset import Dataset
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.toys.levels import LevelEnv

Config = dict[str, Any]


def data(max_env_step: int = 40, **arguments: Any) -> ReplayDataModule:
    env_id = partial(LevelEnv, **arguments.pop("env", {}))
    made = {"num_envs": 2, "seed": 3, "max_env_step": max_env_step, "rounds_per_epoch": 2, **arguments}
    return ReplayDataModule(env_id, **made)


def weights(policy: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.parameters()).detach().clone()


def collected(module: Any) -> dict[str, Any]:
    """Return everything in the buffer, in the order of pushing."""
    storage = module.buffer._storage
    found: dict[str, Any] = storage.gather(np.arange(storage.count), 1, 1.0)
    return found


class Sets(Callback):
    """Sets training and evaluation envs after the first round, which ends at env step 24, and notes what they have."""

    at_env_step = 24

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        train, evaluate = trainer.datamodule.training_envs(), trainer.datamodule.evaluation_envs()  # type: ignore[attr-defined]
        if pl_module.progress.env_step == self.at_env_step:
            train.set_attr("level", 2.0)
            train.configure("set_wind", 3.0)
            train.set_reset_options({"start": 4.0})
            evaluate.set_attr("level", 9.0)
        self.seen.append((train.get_attr("level")[0], train.get_attr("wind")[1], evaluate.get_attr("level")[0]))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_settings_are_effective_from_the_next_step_and_the_next_episode_on(
    make_trainer: MakeTrainer, small: Config, mode: str
) -> None:
    sets, module, trainer = Sets(), data(mode=mode), make_trainer()
    trainer.callbacks.append(sets)  # type: ignore[attr-defined]
    trainer.fit(DQNPolicy(small), module)
    assert sets.seen == [(2.0, 3.0, 9.0)] * 3  # from the first round on
    rows = collected(module)
    assert rows["reward"].tolist() == [0.0] * 24 + [2.0] * 16
    begins = rows["obs"][:, 3] == 0
    assert rows["obs"][begins, 2][-6:].tolist() == [
        0,
        0,
        4,
        4,
        4,
        4,
    ]  # the episode that ends at step 24 was reset before
    assert trainer.callback_metrics["eval/return_mean"] == 27
    (tested,) = trainer.test(DQNPolicy(small), module, verbose=False)  # with new envs, which are set again
    assert tested["test/return_mean"] == 27


def run(
    make_trainer: MakeTrainer, config: Config, folder: Path, max_env_step: int, file: Path | None = None, **env: Any
) -> tuple[torch.Tensor, Sets, Any]:
    torch.manual_seed(0 if file is None else 9)
    sets, policy, module = Sets(), DQNPolicy(config), data(max_env_step, **env)
    callbacks = [sets, RunCheckpoint(folder / str(max_env_step))]
    trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks)
    trainer.fit(policy, module, ckpt_path=file, weights_only=True)
    return weights(policy), sets, module


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_resumed_run_ends_with_the_weights_of_a_whole_one(
    mode: str, make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    config = deep_merge(small, {"learn": {"learning_rate": 0.03}})
    whole, *_ = run(make_trainer, config, tmp_path, 56, mode=mode)
    run(make_trainer, config, tmp_path, 32, mode=mode)
    resumed, sets, module = run(make_trainer, config, tmp_path, 56, tmp_path / "32" / "last.ckpt", mode=mode)
    assert torch.equal(whole, resumed)
    assert set(sets.seen) == {(2.0, 3.0, 9.0)}
    assert collected(module)["obs"][-2:, 2].tolist() == [4, 4]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_envs_whose_state_cannot_be_saved_are_set_again_before_their_new_episodes(
    mode: str, make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env: Any = {"env": {"is_opaque": True}, "mode": mode}
    run(make_trainer, small, tmp_path, 32, **env)
    _, sets, module = run(make_trainer, small, tmp_path, 40, tmp_path / "32" / "last.ckpt", **env)
    assert "the envs start new episodes" in caplog.text
    assert sets.seen == [(2.0, 3.0, 9.0)]
    assert collected(module)["obs"][32].tolist() == [2, 3, 4, 0]


def test_settings_of_a_checkpoint_give_way_to_those_before_a_test_but_not_to_those_before_a_fit(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    run(make_trainer, small, tmp_path, 32)
    file = tmp_path / "32" / "last.ckpt"
    for level, total in ((None, 27), (5.0, 15)):
        module = data()
        if level is not None:
            module.evaluation_envs().set_attr("level", level)
        (tested,) = make_trainer().test(DQNPolicy(small), module, ckpt_path=file, verbose=False)
        assert tested["test/return_mean"] == total
    module = data()
    module.training_envs().set_attr("level", 5.0)
    sets = Sets()
    make_trainer(callbacks=[sets]).fit(DQNPolicy(small), module, ckpt_path=file)
    assert set(sets.seen) == {(2.0, 3.0, 9.0)}


class SetsAtTheStart(Sets):
    """Sets all envs before the first round, and notes what they have after each round."""

    at_env_step = -1

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        train, evaluate = trainer.datamodule.training_envs(), trainer.datamodule.evaluation_envs()  # type: ignore[attr-defined]
        train.set_attr("level", 7.0)
        train.set_reset_options({"start": 6.0})
        evaluate.set_attr("level", 8.0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_settings_at_the_start_of_a_resumed_fit_replace_those_in_the_state_of_its_envs(
    mode: str, make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    run(make_trainer, small, tmp_path, 32, mode=mode)
    sets, module = SetsAtTheStart(), data(56, mode=mode)
    make_trainer(callbacks=[sets]).fit(DQNPolicy(small), module, ckpt_path=tmp_path / "32" / "last.ckpt")
    assert set(sets.seen) == {(7.0, 3.0, 8.0)}
    assert collected(module)["obs"][-2:, 2].tolist() == [6, 6]


def test_settings_before_a_fit_are_in_its_first_episode(make_trainer: MakeTrainer, small: Config) -> None:
    module = data(24)
    module.training_envs().set_attr("level", 5.0)
    module.training_envs().set_reset_options({"start": 6.0})
    make_trainer(limit_val_batches=0).fit(DQNPolicy(small), module)
    assert collected(module)["obs"][0].tolist() == [5, 0, 6, 0]
    with pytest.raises(RuntimeError, match="they are made when a fit or an evaluation begins"):
        module.training_envs().get_attr("level")


def test_attribute_that_the_envs_lack_ends_the_run_at_its_start(make_trainer: MakeTrainer, small: Config) -> None:
    module = data(24)
    module.training_envs().set_attr("levell", 5.0)
    with pytest.raises(AttributeError, match="the envs have no attribute 'levell' to set"):
        make_trainer().fit(DQNPolicy(small), module)


def test_data_set_has_no_training_envs() -> None:
    columns = {"obs": np.zeros((4, 4), np.float32), "action": np.arange(4) % 2, "reward": np.zeros(4, np.float32)}
    columns |= {"next_obs": columns["obs"], "terminated": np.ones(4, bool), "truncated": np.zeros(4, bool)}
    module = OfflineDataModule(Dataset(columns))
    for envs, why in ((module.training_envs(), "collects no data"), (module.evaluation_envs(), "without env_id")):
        with pytest.raises(RuntimeError, match=f"there are no such envs: .*{why}"):
            envs.set_attr("level", 1)
