"""A further evaluator in addition to the datamodule's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lightning import Trainer
from torchmetrics import MeanMetric

from lightning_ding.callbacks import RunEvaluator
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.worker import MetricSerialEvaluator

MakeTrainer = Callable[..., Trainer]
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
