from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_ding.callbacks import BestCheckpoint, LastLine
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.protocols import return_text
from tests.conftest import MakeTrainer
from tests.toys.envs import CountingEnv

Config = dict[str, Any]


def data(**arguments: Any) -> ReplayDataModule:
    return ReplayDataModule(partial(CountingEnv), num_envs=2, rounds_per_epoch=2, **{"max_env_step": 64, **arguments})


def test_fit_ends_with_a_line_of_best_return_env_steps_and_checkpoint(
    make_trainer: MakeTrainer, small: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lightning.pytorch")
    trainer = make_trainer(enable_checkpointing=True)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        trainer.fit(DQNPolicy(small), data())
    (best,) = (one for one in trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint))
    best_return = return_text(float(best.best_model_score))
    assert caplog.messages[-1] == (
        f"fit ended: 64 env steps, best return {best_return}, checkpoint {best.best_model_path}"
    )


def test_last_line_says_that_there_was_no_evaluation_and_no_checkpoint(
    make_trainer: MakeTrainer, small: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        make_trainer(limit_val_batches=0).fit(DQNPolicy(small), data())
    assert caplog.messages[-1] == "fit ended: 64 env steps, no evaluation, checkpoint none"


class Deletes(Callback):
    """Deletes files of a run before its last line, as somebody might."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        for file in Path(trainer.default_root_dir).rglob("*.ckpt"):
            if file.name in self.names:
                file.unlink()


@pytest.mark.parametrize(
    ("names", "rest"),
    [(["best.ckpt"], "{root}/checkpoints/last.ckpt with the last policy"), (["best.ckpt", "last.ckpt"], "none")],
)
def test_last_line_names_no_file_that_somebody_has_deleted(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: Any, names: list[str], rest: str
) -> None:
    trainer = make_trainer(enable_checkpointing=True, callbacks=[Deletes(*names)])
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        trainer.fit(DQNPolicy(small), data())
    assert caplog.messages[-1].endswith(f", checkpoint {rest.format(root=tmp_path)}")


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_last_line_says_the_number_of_a_file_that_was_chosen_by_another_metric(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = ModelCheckpoint(tmp_path, monitor="learn/total_loss", filename="lowest")
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        make_trainer(enable_checkpointing=True, callbacks=[own]).fit(DQNPolicy(small), data())
    loss = return_text(float(own.best_model_score or 0.0))
    assert caplog.messages[-1].endswith(f"checkpoint {tmp_path}/lowest.ckpt with learn/total_loss {loss}")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 4 seconds pass in a fit."""
    times = iter([100.0, 104.0])  # at its start and its end
    monkeypatch.setattr("lightning_ding.callbacks.defaults.time", SimpleNamespace(monotonic=lambda: next(times)))


@pytest.mark.usefixtures("seconds")
def test_table_has_best_return_env_steps_speed_and_checkpoint(
    make_trainer: MakeTrainer, small: Config, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(callbacks=[LastLine(table=True)], enable_checkpointing=True)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        trainer.fit(DQNPolicy(small), data())
    (best,) = (one for one in trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint))
    title, *rows, checkpoint = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert title == "fit ended"
    assert [tuple(row.rsplit(maxsplit=1)) for row in rows] == [
        ("best return", return_text(float(best.best_model_score))),
        ("env steps", "64"),
        ("seconds", "4.0"),
        ("env steps per second", "16"),  # the 16 random steps included
    ]
    assert checkpoint == f"checkpoint: {best.best_model_path}"
    assert "fit ended" not in caplog.text


@pytest.mark.parametrize(
    ("table", "is_terminal", "level", "is_shown"),
    [
        (None, True, logging.INFO, True),
        (None, True, logging.WARNING, False),
        (None, False, logging.INFO, False),
        (False, True, logging.INFO, False),
        (True, False, logging.WARNING, True),
    ],
)
def test_table_is_printed_on_a_terminal_or_if_asked(
    table: bool | None,
    is_terminal: bool,
    level: int,
    is_shown: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    logging.getLogger("lightning.pytorch").setLevel(level)
    trainer: Any = SimpleNamespace(checkpoint_callbacks=[], is_global_zero=True)
    policy = SimpleNamespace(progress=SimpleNamespace(position=5, axis="train_iter"))
    LastLine(table).on_fit_end(trainer, policy)
    assert ("updates per second" in capsys.readouterr().out) == is_shown


def test_other_ranks_print_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    trainer: Any = SimpleNamespace(checkpoint_callbacks=[], is_global_zero=False)
    LastLine(table=True).on_fit_end(trainer, SimpleNamespace(progress=SimpleNamespace(position=5, axis="env_step")))
    assert capsys.readouterr().out == ""
