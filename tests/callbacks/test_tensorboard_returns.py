from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from lightning_ding.callbacks.tensorboard_returns import TensorBoardReturns
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    """Return what TensorBoard has after two fits of one Trainer."""
    folder = tmp_path_factory.mktemp("tensorboard")
    flags: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger(folder, "", ""), **flags)
    small: dict[str, Any] = {"random_collect_size": 16, "learn": {"batch_size": 4}}
    policy = DQNPolicy({**small, "eval": {"evaluator": {"n_episode": 1}}})
    for steps in (32, 64):
        trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=steps))
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def test_layout_begins_with_the_returns(events: EventAccumulator) -> None:
    (written,) = events.Tensors("custom_scalars__config__")  # one for both fits
    layout = layout_pb2.Layout.FromString(written.tensor_proto.string_val[0])
    assert layout.category[0].title == "returns"
    assert layout.category[0].chart[0].multiline.tag == ["(.*-)?eval/return_mean$"]


def test_metric_of_hyper_parameters_is_the_return_of_the_last_evaluation(events: EventAccumulator) -> None:
    metrics, returns = events.Scalars("hp_metric"), events.Scalars("eval/return_mean")
    assert [(one.step, one.value) for one in metrics if one.value != -1] == [(one.step, one.value) for one in returns]
    assert metrics[-1].value > 0


def test_returns_are_the_first_tags_of_all(events: EventAccumulator) -> None:
    first, second, *_ = sorted(events.Tags()["scalars"])  # TensorBoard compares character codes too
    assert (first, second) == ("Returns/evaluation", "Returns/training")
    means = [(one.step, one.value) for one in events.Scalars("eval/return_mean")]
    assert [(one.step, one.value) for one in events.Scalars("Returns/evaluation")] == means
    by_step = {one.step: one.value for one in events.Scalars("collect/return_mean")}
    training = events.Scalars("Returns/training")
    assert [one.value for one in training] == [by_step[one.step] for one in training]


def test_tab_of_hyper_parameters_has_those_of_policy_and_data(events: EventAccumulator) -> None:
    plugin = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    written = HParamsPluginData.FromString(plugin.content).session_start_info.hparams
    assert plugin.plugin_name == "hparams"
    assert written["cfg/learn/batch_size"].number_value == 4
    assert written["env_id"].string_value == "CartPole-v1"
    assert written["num_envs"].number_value == 2


def test_callback_is_added_only_for_tensorboard(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    for logger, is_added in [(CSVLogger(tmp_path), False), (TensorBoardLogger(tmp_path), True)]:
        trainer = make_trainer(logger=logger)
        callbacks = ReplayDataModule("CartPole-v1").default_callbacks(trainer)
        assert any(isinstance(one, TensorBoardReturns) for one in callbacks) == is_added
