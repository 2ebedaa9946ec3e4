"""Kills a run again and again while it saves, started by test_kill.py: python killed_script.py FOLDER KILLS SEED.

Each run is resumed from the checkpoint of the previous one, and is killed at a random moment after its own first one.
The runs are forked from a process that has everything imported, so that a hundred of them take a minute. What is found
after each kill is printed as JSON.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.checkpoints import find_rank_folder, last_checkpoint, verify
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.worker import NaiveReplayBuffer

CONFIG: dict[str, Any] = {
    "random_collect_size": 16,
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"update_per_collect": 1, "batch_size": 8},
    "eval": {"evaluator": {"n_episode": 1, "eval_freq": 20}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}
DEADLINE = 60.0  # seconds until a run has saved
LONGEST = 0.2  # seconds from there to the kill


def train(folder: Path, checkpoint: Path | None, max_env_step: int | None = None) -> None:
    """Train, and save as often as it goes."""
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=1, max_env_step=max_env_step)
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=10**6,
        check_val_every_n_epoch=10**6,
        default_root_dir=folder.parent,
        callbacks=[RunCheckpoint(folder, keep_last=2)],
    )
    trainer.fit(DQNPolicy(CONFIG), datamodule, ckpt_path=checkpoint)


def start(folder: Path, checkpoint: Path | None) -> int:
    """Fork a run, and return its process id."""
    process = os.fork()
    if process == 0:
        train(folder, checkpoint)
        os._exit(0)
    return process


def kill_while_saving(folder: Path, checkpoint: Path | None) -> None:
    """Start a run, wait for its first checkpoint, and kill it some time later."""
    file = folder / "last.ckpt"
    before = file.stat().st_mtime_ns if file.exists() else 0
    process, began = start(folder, checkpoint), time.monotonic()
    while not file.exists() or file.stat().st_mtime_ns == before:
        assert time.monotonic() - began < DEADLINE, "no checkpoint was written"
        time.sleep(0.002)
    time.sleep(random.uniform(0, LONGEST))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def look(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the last checkpoint, and what is in it; it has to load without trust."""
    found = last_checkpoint(folder)
    assert found is not None
    state = torch.load(found, weights_only=True)
    ranks = find_rank_folder(found, state["ReplayDataModule"]["rank_folder"])
    assert ranks is not None
    buffer = NaiveReplayBuffer({"replay_buffer_size": 500})
    buffer.load_data(ranks / "rank_0" / "buffer.safetensors")
    for file in ranks.rglob("*.pt"):
        torch.load(file, weights_only=True)
    half_written = any(path.name.startswith(".last-") and path.is_dir() for path in folder.iterdir())
    counts = {"env_step": verify(found.parent)["env_step"], "progress": state["progress"]["env_step"]}
    return found, counts | {"transitions": buffer.push_count, "half_written": half_written}


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill runs, check what they leave, and resume them; let the last one finish."""
    random.seed(seed)
    found, seen = None, []
    for _ in range(kills):
        kill_while_saving(folder, found)
        found, counts = look(folder)
        seen.append(counts)
    train(folder, found, max_env_step=seen[-1]["env_step"] + 64)
    print(json.dumps([*seen, look(folder)[1]]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
