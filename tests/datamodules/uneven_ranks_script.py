"""Trains on two ranks whose episodes are of very different lengths, for test_uneven_ranks.py.

    python uneven_ranks_script.py FOLDER                                 # Lightning starts the second rank
    torchrun --nproc-per-node 2 uneven_ranks_script.py FOLDER            # torchrun starts both

Each rank writes what it ended with to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.policy import DQNPolicy, PGPolicy, PPOPolicy
from tests.toys.envs import CountingEnv

LENGTHS = (4, 40)  # length of the episodes of each rank
RETURNS = tuple(length * (length + 1) / 2 for length in LENGTHS)  # step t gives t
N_EPISODE = 3  # episodes of an evaluation: two on rank 0, one on rank 1
RETURN_MEAN = (2 * RETURNS[0] + RETURNS[1]) / N_EPISODE
EVALUATOR = {"eval": {"evaluator": {"n_episode": N_EPISODE}}}
MODEL = {"model": {"encoder_hidden_size_list": [8]}}
DQN = {**MODEL, **EVALUATOR, "learn": {"batch_size": 8}, "collect": {"n_sample": 8}}
PPO = {**MODEL, **EVALUATOR, "learn": {"epoch_per_collect": 2, "batch_size": 8}, "collect": {"n_sample": 16}}
PG = {**MODEL, **EVALUATOR, "learn": {"batch_size": 16}, "collect": {"n_episode": 4}}


class Rounds(Callback):
    """Counts the rounds that this rank learned from."""

    def __init__(self) -> None:
        self.count = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.count += 1


def fit(policy: Any, datamodule: RunDataModule, folder: Path, *callbacks: Callback, **flags: Any) -> dict[str, Any]:
    """Train under DDP on two processes, and return what this rank ended with."""
    rounds = Rounds()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[rounds, *callbacks],
        **quiet,
        **flags,
    )
    trainer.fit(policy, datamodule)
    assert datamodule.collector is not None
    return {
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "rounds": rounds.count,
        "epoch": trainer.current_epoch,
        "progress": policy.progress.state_dict(),
        "env_step_of_rank": datamodule.collector.envstep,
        "normaliser": policy.normaliser.state_dict(),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
    }


def main(folder: Path) -> None:
    """Train with every kind of collector, and until every kind of end."""
    rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.manual_seed(rank)
    env: Callable[[], Any] = functools.partial(CountingEnv, lengths=LENGTHS[rank : rank + 1])
    common: dict[str, Any] = {"num_envs": 2, "seed": 3, "rounds_per_epoch": 4}
    reports = {
        "sample, max_env_step": fit(
            PPOPolicy(PPO), RolloutDataModule(env, max_env_step=200, norm_obs=True, **common), folder
        ),
        "episode, max_env_step": fit(PGPolicy(PG), RolloutDataModule(env, max_env_step=800, **common), folder),
        "replay, stop_value": fit(DQNPolicy(DQN), ReplayDataModule(env, stop_value=RETURN_MEAN, **common), folder),
        "replay, EarlyStopping": fit(
            DQNPolicy(DQN),
            ReplayDataModule(env, stop_value=RETURN_MEAN + 1, norm_obs=True, **common),
            folder,
            EarlyStopping("eval/return_mean", patience=2, mode="max"),
            max_epochs=9,
        ),
    }
    torch.save(reports, folder / f"rank_{rank}.pt")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
