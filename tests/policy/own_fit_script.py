"""Fits an own algorithm on two ranks of Lightning, started by test_own_policies.py: python own_fit_script.py FOLDER.

Each rank writes its actions and the warnings to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer, seed_everything

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy.base import ddp
from tests.policy.own_policies import DrawsByItself, OwnUpdates
from tests.policy.own_ranks_script import Messages


class Own(DrawsByItself, OwnUpdates):
    """Explores and learns by itself."""


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    messages, folder = Messages(), Path(sys.argv[1])
    ddp.logger.addHandler(messages)
    seed_everything(0)
    config: dict[str, Any] = {"collect": {"n_sample": 16}, "learn": {"batch_size": 8}}
    policy = Own(config | {"model": {"encoder_hidden_size_list": [8]}})
    data = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=96, n_evaluator_episode=2)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    options: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "enable_checkpointing": False}
    trainer = Trainer(default_root_dir=folder, **options, **quiet)
    trainer.fit(policy, data)
    buffer: Any = data.buffer
    report = {"action": buffer.state_dict()["tensors"]["column/action"], "messages": messages.found}
    torch.save(report, folder / f"rank_{trainer.global_rank}.pt")
