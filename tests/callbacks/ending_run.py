"""A run that trains until something ends it, for the tests of endings.

Each rank appends the env steps of the run to FOLDER/rank_R.txt when training starts and after each round, and writes
its process id to FOLDER/rank_R.pid.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint, StopOnSignal, Watchdog
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from tests.callbacks.ending_env import FOR_EVER, make_env

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 2000}},
}


class Options:
    """What the command asks for; `only_rank` is the rank on which `fault` happens, in the fourth round."""

    ranks = 1
    mode = "sync"
    max_env_step = 10_000_000
    every_n_epochs = 1
    rounds_per_epoch = 5
    checkpointing = True
    resume: str | None = None
    grace = 25.0
    seconds: float | None = 600.0
    fault: str | None = None
    only_rank = 0
    check_val_every_n_epoch = 1

    def __init__(self, given: dict[str, Any]) -> None:
        assert all(hasattr(type(self), name) for name in given)
        self.__dict__.update(given)


class Notes(Callback):
    """Writes down how far the run is, and makes trouble in the fourth round."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder, self.options, self.rounds = folder, options, 0

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        (self.folder / f"rank_{trainer.global_rank}.pid").write_text(str(os.getpid()))

    def note(self, trainer: Trainer, text: str) -> None:
        with (self.folder / f"rank_{trainer.global_rank}.txt").open("a") as file:
            file.write(f"{text}\n")

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.note(trainer, f"start {pl_module.progress.env_step}")

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.note(trainer, f"validation {pl_module.progress.env_step}")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note(trainer, f"round {pl_module.progress.env_step}")
        self.rounds += 1
        if self.rounds == 4 and trainer.global_rank == self.options.only_rank:
            self.make_trouble(self.options.fault)

    def make_trouble(self, fault: str | None) -> None:
        if fault == "callback_raises":
            raise ArithmeticError("the callback failed")
        if fault == "queue":
            queue.Queue[int]().get()
        if fault == "holds_the_interpreter":
            ctypes.PyDLL(None).sleep(FOR_EVER)  # unlike CDLL, it keeps the lock
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, options: Options) -> None:
    """Fit as the options say."""
    policy = DQNPolicy(CONFIG)
    if options.fault == "step_raises":
        learn = policy._forward_learn

        def fail(batch: Any) -> Any:
            if policy.progress.train_iter == 8 and policy.trainer.global_rank == options.only_rank:
                raise ArithmeticError("the update failed")
            return learn(batch)

        policy._forward_learn = fail  # type: ignore[method-assign]
    here = int(os.environ.get("LOCAL_RANK", 0)) == options.only_rank
    in_env = options.fault if here and options.fault in ("env_hangs", "env_raises", "slow") else None
    datamodule = ReplayDataModule(
        partial(make_env, in_env),
        num_envs=2,
        mode=options.mode,
        seed=3,
        max_env_step=options.max_env_step,
        rounds_per_epoch=options.rounds_per_epoch,
    )
    callbacks: list[Callback] = [Notes(folder, options), Watchdog(options.seconds)]
    callbacks += [StopOnSignal(options.grace)]
    if options.checkpointing:
        callbacks += [RunCheckpoint(folder, every_n_epochs=options.every_n_epochs)]
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    ranks: dict[str, Any] = {"strategy": "ddp", "devices": 2} if options.ranks == 2 else {"devices": 1}
    trainer = Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=options.checkpointing,
        check_val_every_n_epoch=options.check_val_every_n_epoch,
        **ranks,
        **flags,
    )
    trainer.fit(policy, datamodule, ckpt_path=options.resume)


def main() -> None:
    """Do what the command line says."""
    assert threading.current_thread() is threading.main_thread()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it for its children
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), Options(json.loads(sys.argv[2])))
