"""The calls between ``training_step`` and the loss of an algorithm, which a reader follows."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from lightning import Trainer

from tests.algorithms.table import make_datamodule, make_policy

MOST_CALLS = {"dqn": 4, "iqn": 5, "r2d2": 4, "sac": 5, "ppo": 6, "pqn": 6}
"""Calls from ``training_step`` to the loss, with both."""
MOST_FILES = {"dqn": 3, "iqn": 4, "r2d2": 3, "sac": 4, "ppo": 5, "pqn": 5}
"""Files of this package in which the functions on the way are, apart from that of the loss."""
LOSSES = {"sac": "critic_loss"}


def way_to_loss(name: str) -> list[tuple[str, str]]:
    """Return file and name of each function on the stack of the last call of the loss, up to ``training_step``."""
    policy, data = make_policy(name), make_datamodule(name, max_train_iter=2)
    loss, found = getattr(policy, LOSSES.get(name, "loss")), list[tuple[str, str]]()

    def called(batch: Any) -> Any:
        frame: Any = sys._getframe()
        found.clear()
        while not found or found[-1][1] != "training_step":
            frame = frame.f_back
            found.append((frame.f_code.co_filename, frame.f_code.co_name))
        return loss(batch)

    setattr(policy, loss.__name__, called)
    Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, limit_val_batches=0).fit(policy, data)
    return found


@pytest.mark.parametrize("name", MOST_CALLS)
def test_loss_is_a_few_calls_away(name: str) -> None:
    way = way_to_loss(name)
    names, files = [function for _, function in way], {file for file, _ in way}
    assert len(names) <= MOST_CALLS[name], names
    assert len(files) <= MOST_FILES[name], sorted(files)
