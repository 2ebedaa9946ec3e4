"""Trains every algorithm on two ranks, for test_two_ranks.py: python -m tests.algorithms.two_ranks_script FOLDER.

Each rank writes what it ended with to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor

from lightning_ding import nested
from tests.algorithms.table import ALGORITHMS, TEAMS, VARIANTS, make_datamodule, make_policy

ROUNDS = 6
SHORT = {"eval": {"evaluator": {"max_episode_steps": 30}}}
NORMALISED = ("a2c",)  # whose observations and rewards are normalised
WHOLE_EPISODES = ("ppo_offpolicy",)  # whose rounds of replay are of whole episodes
EPISODES: dict[str, Any] = {"collect": {"n_episode": 2, "n_sample": None, "collector": {"type": "episode"}}}


class Notes(Callback):
    """Notes what a rank collects, and the weights that it has before training."""

    def __init__(self, policy: Any) -> None:
        self.rounds = 0
        self.seen: list[dict[str, Any]] = []
        self.process = policy._process_transition
        policy._process_transition = self.note

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.first_weights = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}

    def note(self, obs: Any, output: Any, timestep: Any) -> dict[str, Any]:
        transition: dict[str, Any] = self.process(obs, output, timestep)
        self.seen.append(nested.apply(lambda x: torch.as_tensor(x).clone(), transition))
        return transition

    def on_train_batch_end(self, *_: Any) -> None:
        self.rounds += 1

    def column(self, name: str) -> Tensor:
        return torch.cat([nested.leaves(transition[name])[0] for transition in self.seen])


def train(name: str, folder: Path) -> dict[str, Any]:
    """Fit with the settings of Lightning, and return what this rank ended with."""
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", 0)))  # so the ranks make different weights
    normalised = {"norm_obs": name in NORMALISED, "norm_reward": name in NORMALISED}
    policy = make_policy(name, **SHORT, **(EPISODES if name in WHOLE_EPISODES else {}))
    datamodule = make_datamodule(name, rounds_per_epoch=ROUNDS, **normalised)
    notes = Notes(policy)
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=1, callbacks=notes, default_root_dir=folder, **flags
    )
    trainer.fit(policy, datamodule)
    assert datamodule.collector is not None
    return {
        "first_weights": notes.first_weights,
        "weights": {name: tensor.clone() for name, tensor in policy.state_dict().items()},
        "rounds": notes.rounds,
        "normaliser": policy.normaliser.state_dict(),
        "obs": notes.column("obs"),
        "action": notes.column("action"),
        "env_step_of_rank": datamodule.collector.envstep,
        "exploration": torch.from_numpy(policy.rng.standard_normal(4)),
        "progress": policy.progress.state_dict(),
    }


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    report = {name: train(name, folder) for name in (*ALGORITHMS, *TEAMS, *VARIANTS)}
    torch.save(report, folder / f"rank_{torch.distributed.get_rank()}.pt")
