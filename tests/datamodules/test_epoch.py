from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_ding.datamodules.trainer_setup import EpochPosition


def trainer_at(epochs: int, **flags: Any) -> Any:
    """Return the attributes of a Trainer that resumes after some epochs, the last of which may be incomplete."""
    current = SimpleNamespace(ready=epochs, started=epochs, processed=epochs, completed=epochs - 1)
    fit_loop = SimpleNamespace(restarting=False, epoch_progress=SimpleNamespace(current=current))
    own = {"limit_train_batches": 1.0, "val_check_interval": 1.0, "reload_dataloaders_every_n_epochs": 0}
    return SimpleNamespace(fit_loop=fit_loop, **{**own, **flags})


def processed(trainer: Any) -> int:
    return int(trainer.fit_loop.epoch_progress.current.processed)


def test_rest_of_an_epoch_comes_first_and_then_whole_ones() -> None:
    position, trainer = EpochPosition(), trainer_at(3, reload_dataloaders_every_n_epochs=7)
    position.resume(6)
    assert position.begin(trainer, 10) == 4
    assert processed(trainer) == 2
    assert trainer.reload_dataloaders_every_n_epochs == 1  # otherwise Lightning would not request another loader
    for _ in range(4):
        position.count()
    assert position.round == 0
    assert position.begin(trainer, 10) == 10
    assert processed(trainer) == 2
    assert trainer.reload_dataloaders_every_n_epochs == 7


def test_asking_twice_changes_nothing_more() -> None:
    position, trainer = EpochPosition(), trainer_at(3)
    position.resume(6)
    assert [position.begin(trainer, 10) for _ in range(3)] == [4, 4, 4]
    assert processed(trainer) == 2


def test_epochs_are_as_long_as_the_trainer_lets_them_be() -> None:
    position, trainer = EpochPosition(), trainer_at(3, limit_train_batches=5)
    position.begin(trainer, 10)
    for _ in range(5):
        position.count()
    assert position.round == 0
    position.resume(3)
    assert position.begin(trainer, 10) == 2


@pytest.mark.parametrize(
    ("flags", "restarting", "rounds"),
    [
        ({}, True, 6),  # Lightning itself continues the epoch
        ({"limit_train_batches": 0.5}, False, 6),
        ({"val_check_interval": 5}, False, 6),
        ({}, False, 0),
        ({}, False, 10),  # epochs are shorter now
    ],
)
def test_else_a_whole_epoch_begins(flags: dict[str, Any], restarting: bool, rounds: int) -> None:
    position, trainer = EpochPosition(), trainer_at(3, **flags)
    trainer.fit_loop.restarting = restarting
    position.resume(rounds)
    assert position.begin(trainer, 10) == 10
    assert processed(trainer) == 3
    assert trainer.reload_dataloaders_every_n_epochs == 0
    assert position.round == 0
