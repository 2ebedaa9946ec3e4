"""A further evaluator in addition to the datamodule's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torchmetrics import MeanMetric

from lightning_ding.callbacks import InitialWeights, RunEvaluator
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.worker import MetricSerialEvaluator
from tests.conftest import MakeTrainer

Config = dict[str, Any]


class Share(MeanMetric):
    """The share of labels that are 1, whatever the policy gives."""

    def update(self, output: Any, label: Any = None) -> None:
        super().update(label.float())


class Loader:
    """Two batches of different sizes, three of whose five labels are 1."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield torch.zeros(4, 4), torch.tensor([1, 1, 0, 0])
        yield torch.zeros(1, 4), torch.tensor([1])

    def __len__(self) -> int:
        return 2


def run(make_trainer: MakeTrainer, small: Config, stop_value: float | None) -> tuple[Trainer, DQNPolicy]:
    policy = DQNPolicy(deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}}))
    metric = MetricSerialEvaluator({"stop_value": stop_value}, (Loader(), Share()), policy.eval_mode)
    trainer = make_trainer(callbacks=[RunEvaluator(metric, "labels")])
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=60))
    return trainer, policy


def test_evaluator_measures_when_the_trainer_validates(make_trainer: MakeTrainer, small: Config) -> None:
    trainer, policy = run(make_trainer, small, None)
    assert float(trainer.callback_metrics["labels/Share"]) == pytest.approx(3 / 5)
    assert policy.progress.train_iter == 60  # to the end of the budget


def test_evaluator_ends_the_run_at_its_stop_value(make_trainer: MakeTrainer, small: Config) -> None:
    _, policy = run(make_trainer, small, 0.5)
    assert policy.progress.train_iter == 20  # the first evaluation is after an epoch of eval_freq = 20 updates


def test_evaluator_remembers_in_a_checkpoint_what_it_measured(make_trainer: MakeTrainer, small: Config) -> None:
    trainer, _ = run(make_trainer, small, None)
    (callback,) = [one for one in trainer.callbacks if isinstance(one, RunEvaluator)]  # type: ignore[attr-defined]
    other = RunEvaluator(MetricSerialEvaluator({}, (Loader(), Share())))
    other.load_state_dict(callback.state_dict())
    assert callback.state_dict() == other.state_dict() != RunEvaluator(MetricSerialEvaluator()).state_dict()


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
