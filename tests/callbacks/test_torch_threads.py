"""Small networks are fitted with one torch thread, unless somebody chose the number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.callbacks import TorchThreads, defaults
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.conftest import MakeTrainer


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give torch two threads as its default, as on a machine with two cores where no variable is set."""
    before = torch.get_num_threads()
    for name in defaults.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Seen(DQNPolicy):
    """Notes the number of torch threads of the updates."""

    def loss(self, batch: Any) -> Any:
        self.threads = torch.get_num_threads()
        return super().loss(batch)


def threads_of_a_fit(small: dict[str, Any], trainer: Trainer) -> int:
    """Return the number of torch threads that the updates of a short run had."""
    policy = Seen(small)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40))
    return policy.threads


def test_small_network_is_fitted_with_one_thread_which_is_said_and_undone(
    make_trainer: MakeTrainer, small: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        assert threads_of_a_fit(small, make_trainer(limit_val_batches=0)) == 1
    assert torch.get_num_threads() == 2
    (line,) = [one for one in caplog.messages if "torch thread" in one]
    assert line.startswith("one torch thread instead of 2, since the network has only ")
    assert line.endswith("set OMP_NUM_THREADS to choose another number")


def test_number_of_threads_is_restored_after_an_error(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    class Failing(Seen):
        def loss(self, batch: Any) -> Any:
            super().loss(batch)
            raise RuntimeError("an error of the user's code")

    policy = Failing(small)
    with pytest.raises(RuntimeError, match="user's code"):
        make_trainer(limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=40))
    assert (policy.threads, torch.get_num_threads()) == (1, 2)


def test_large_network_keeps_the_default(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    assert threads_of_a_fit(small, make_trainer(limit_val_batches=0, callbacks=[TorchThreads(large=50)])) == 2


@pytest.mark.parametrize("name", defaults.VARIABLES)
def test_variable_is_respected(
    name: str, make_trainer: MakeTrainer, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    assert threads_of_a_fit(small, make_trainer(limit_val_batches=0)) == 2


def test_call_with_another_number_is_respected(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    torch.set_num_threads(3)
    assert threads_of_a_fit(small, make_trainer(limit_val_batches=0)) == 3


def test_limit_must_be_positive() -> None:
    with pytest.raises(ValueError, match="large must be >= 1, got 0"):
        TorchThreads(large=0)
