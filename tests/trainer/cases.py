"""Cases of the tables of docs/lightning.md: what works with a policy, and what is refused.

``python -m tests.trainer.test_calls`` prints the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.base.trainer import check_trainer_flags
from tests.toys.envs import CountingEnv

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [8], "dueling": False},
    "collect": {"n_sample": 8},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1}},
    "other": {"replay_buffer": {"replay_buffer_size": 100}},
}
ROUNDS, EPOCHS, ENV_STEPS = 2, 2, 48  # rounds of an epoch, epochs of the run, 16 + 2 * 2 * 8 env steps


class Notes(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, list[int | None]] = {}
        self.saved: list[str] = []

    name, version = "notes", 0

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for key in metrics:
            self.steps.setdefault(key, []).append(step)

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        paths = [checkpoint_callback.last_model_path] if hasattr(checkpoint_callback, "last_model_path") else []
        paths += [checkpoint_callback.best_model_path] if hasattr(checkpoint_callback, "best_model_path") else []
        self.saved += [Path(path).name for path in paths if path]


class Seen(Callback):
    """Counts rounds, and evaluations by the rounds before them."""

    def __init__(self) -> None:
        self.rounds = 0
        self.evaluations: list[int] = []

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.rounds += 1

    def on_validation_end(self, *args: Any, **kwargs: Any) -> None:
        self.evaluations.append(self.rounds)


@dataclass
class Run:
    """A run that is over."""

    trainer: Any
    policy: Any
    seen: Seen
    notes: Notes
    given: list[Callback]
    folder: Path
    printed: str = ""

    def logged_at(self, prefix: str) -> set[int | None]:
        return {step for name, steps in self.notes.steps.items() if name.startswith(prefix) for step in steps}

    def files(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.folder.rglob(pattern))


@dataclass
class Case:
    """A row of a table: a value, and whether it works.

    Args:
        of: The argument of the Trainer, or the callback.
        value: The value as the table shows it.
        note: Its effect, or the alternative to use.
        flags: Arguments of the Trainer.
        callback: Makes a callback.
        check: Whether it worked.
        refused: Pattern of the error message; None if it works.
        call: Function to call; None for a fit.
        rounds: Rounds of an epoch.
    """

    of: str
    value: str
    note: str
    flags: dict[str, Any] = field(default_factory=dict)
    callback: Callable[[Path], Callback] | None = None
    check: Callable[[Run], bool] = lambda run: run.seen.rounds == ROUNDS * EPOCHS
    refused: str | None = None
    call: Callable[[Trainer, DQNPolicy, ReplayDataModule], object] | None = None
    rounds: int = ROUNDS

    def row(self) -> str:
        return f"| `{self.value}` | {'works' if self.refused is None else 'refused'} | {self.note} |"


def flag(name: str, value: Any, note: str, refused: str | None = None, **more: Any) -> Case:
    flags = {name: value, **more.pop("flags", {})}
    return Case(name, more.pop("text", f"{name}={value!r}".replace("'", '"')), note, flags, refused=refused, **more)


def only_checked(name: str, value: Any, note: str, refused: str | None = None, **more: Any) -> Case:
    """Return a case that is too dear to run: what takes several processes has its own tests."""
    return flag(name, value, note, refused, call=lambda trainer, *_: check_trainer_flags(trainer), **more)


def callback(
    kind: type[Callback], make: Callable[[Path], Callback], note: str, refused: str | None = None, **more: Any
) -> Case:
    return Case(
        kind.__name__, more.pop("text", kind.__name__), note, more.pop("flags", {}), make, refused=refused, **more
    )


def weights(module: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


STEPS = {24, 32, 40, 48}  # env steps after each round


def run_case(case: Case, folder: Path) -> Run:
    """Do what a case says on a tiny env."""
    seen, notes = Seen(), Notes()
    given = [] if case.callback is None else [case.callback(folder)]
    flags: dict[str, Any] = {"accelerator": "cpu", "logger": notes, "default_root_dir": folder, "max_epochs": EPOCHS}
    flags |= {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    flags |= case.flags
    if flags["default_root_dir"] is None:
        flags["default_root_dir"] = folder
    trainer = Trainer(**{"callbacks": [*given, seen], **flags})
    if "callbacks" in flags:
        trainer.callbacks.append(seen)  # type: ignore[attr-defined]
    policy = DQNPolicy(CONFIG)
    data = ReplayDataModule(
        partial(CountingEnv, lengths=(3,)), num_envs=2, rounds_per_epoch=case.rounds, max_env_step=ENV_STEPS
    )
    (case.call or Trainer.fit)(trainer, policy, data)
    return Run(trainer, policy, seen, notes, given, folder)


def cases(table: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table, ids=[case.value for case in table])


def check_case(case: Case, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Assert that a case works, or is refused with a message that says what to use."""
    if case.refused is not None:
        with pytest.raises(ValueError, match=case.refused):
            run_case(case, folder)
        return
    done = run_case(case, folder)
    done.printed = capfd.readouterr().out
    assert "strategy" in case.flags or case.check(done), (
        done.seen.rounds,
        done.seen.evaluations,
        done.notes.steps,
    )
