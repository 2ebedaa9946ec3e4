from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.datamodules.remote import RemoteReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer
from tests.datamodules.remote_source import Source

Config = dict[str, Any]


class Inbox:
    """Keeps a copy of what is published."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        self.versions.append(state_dict["iter"])
        self.weights.append({name: tensor.clone() for name, tensor in state_dict["model"].items()})


@pytest.mark.parametrize(("every", "versions"), [(1, [0, 2, 4, 6, 8, 10]), (2, [0, 4, 8, 10]), (100, [0, 10])])
def test_weights_are_published_at_the_start_every_so_many_rounds_and_at_the_end(
    make_trainer: MakeTrainer, small: Config, every: int, versions: list[int]
) -> None:
    inbox, policy = Inbox(), DQNPolicy(small)
    module = RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    make_trainer(limit_val_batches=0, callbacks=[WeightPublisher(inbox.send_policy, every)]).fit(policy, module)
    assert inbox.versions == versions
    assert inbox.weights[-1].keys() == policy.model.state_dict().keys()
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, inbox.weights[-1][name]), name
    assert any(not torch.equal(tensor, inbox.weights[0][name]) for name, tensor in inbox.weights[-1].items())


def test_full_disk_skips_publications_and_the_run_continues(
    make_trainer: MakeTrainer, small: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, attempts = Inbox(), [0]

    def send(state_dict: Mapping[str, Any]) -> None:
        attempts[0] += 1
        if attempts[0] in (1, 3, 4):  # at the start, and after the second and third round
            raise OSError(28, "No space left on device")
        inbox.send_policy(state_dict)

    monkeypatch.setattr("lightning_ding.callbacks.remote.PAUSE", 0.0)
    module = RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    make_trainer(limit_val_batches=0, callbacks=[WeightPublisher(send)]).fit(DQNPolicy(small), module)
    assert inbox.versions == [0, 6, 8, 10]
    assert caplog.text.count("could not be published") == 3


def test_a_disk_that_stays_full_at_the_start_ends_the_run(
    make_trainer: MakeTrainer, small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(state_dict: Mapping[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning_ding.callbacks.remote.FIRST", 0.05)
    monkeypatch.setattr("lightning_ding.callbacks.remote.PAUSE", 0.01)
    module = RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    trainer = make_trainer(limit_val_batches=0, callbacks=[WeightPublisher(send)])
    with pytest.raises(OSError, match="No space left"):
        trainer.fit(DQNPolicy(small), module)


def test_priorities_that_find_no_room_are_left_out(
    make_trainer: MakeTrainer, small: Config, caplog: pytest.LogCaptureFixture
) -> None:
    def send(info: Mapping[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    policy, module = DQNPolicy(small), RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    make_trainer(limit_val_batches=0, callbacks=[LearningReporter(send)]).fit(policy, module)
    assert policy.progress.train_iter == 10
    assert caplog.text.count("could not be sent") == 5


def test_any_fit_can_publish_its_weights(make_trainer: MakeTrainer, small: Config) -> None:
    inbox = Inbox()
    trainer = make_trainer(limit_val_batches=0, callbacks=[WeightPublisher(inbox.send_policy)])
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=4))
    assert inbox.versions == [0, 2, 4]


@pytest.mark.parametrize(("every", "steps"), [(1, [2, 4, 6, 8, 10]), (2, [4, 8])])
def test_rounds_are_reported_with_their_updates(
    make_trainer: MakeTrainer, small: Config, every: int, steps: list[int]
) -> None:
    told: list[Mapping[str, Any]] = []
    module = RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    trainer = make_trainer(limit_val_batches=0, callbacks=[LearningReporter(told.append, every)])
    trainer.fit(DQNPolicy(small), module)
    assert told == [{"learner_step": step, "learner_done": False, "priority_info": None} for step in steps]


def test_intervals_of_no_round_are_refused() -> None:
    for callback in (WeightPublisher, LearningReporter):
        with pytest.raises(ValueError, match="every_n_rounds must be >= 1, got 0"):
            callback(lambda _: None, 0)


def test_settings_of_envs_are_published_with_the_weights_and_again_when_they_change(
    make_trainer: MakeTrainer, small: Config
) -> None:
    sent: list[tuple[int, str | None]] = []

    class Sets(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
            if pl_module.progress.train_iter == 4:
                trainer.datamodule.training_envs().set_attr("gravity", 5.0)  # type: ignore[attr-defined]

    publisher = WeightPublisher(lambda state: sent.append((state["iter"], state.get("env_settings"))))
    module = RemoteReplayDataModule(Source(3), "CartPole-v1", validate=False)
    make_trainer(limit_val_batches=0, callbacks=[publisher, Sets()]).fit(DQNPolicy(small), module)
    text = module.env_settings()
    assert "gravity" in text
    assert sent == [(0, None), (2, None), (4, None), (6, text)]
