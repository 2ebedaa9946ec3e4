"""Learns on two ranks that Lightning starts, for test_on_policy_ranks.py: python on_policy_ranks_script.py WHAT FOLDER.

WHAT is ``fit``: each rank collects in one process what one of two collectors would collect; ``learner``: the learner of
a distributed run; ``stopped``: a learner that gets a SIGTERM after its third publication; or ``feed``: the ranks wait
for a rollout, get a second one, and are cancelled on rank one while they wait for a third. The config is in
``cfg.json`` in FOLDER. Each rank writes what it has published and learned from into ``WHAT_RANK.pt``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer, seed_everything

from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.datamodules.shared_rollout import SharedFeed
from lightning_ding.distributed.comm_worker.ranks import global_rank
from lightning_ding.policy import create_policy
from lightning_ding.policy.on_policy import ActorCriticPolicy
from tests.distributed.test_on_policy import ENVS, FLAGS, SEED, TRAINER, Learner, OneProcess, Weights

updates: list[tuple[int, torch.Tensor]] = []
"""For each minibatch of this rank: updates made before it, and the log probabilities of its actions."""
_update = ActorCriticPolicy._update


def update(self: Any, minibatch: Any) -> Any:
    updates.append((self.progress.train_iter, minibatch["log_prob"].flatten().clone()))
    return _update(self, minibatch)


class Stopped(Learner):
    def send_policy(self, state_dict: Any) -> None:
        super().send_policy(state_dict)
        if len(self.published) == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def fit(cfg: dict[str, Any]) -> list[Weights]:
    """Train in one process on each rank, and return the weights at the start of each rollout."""
    main = cfg["main"]
    seed_everything(SEED, verbose=False)
    policy = create_policy(main["policy"])
    norms = {name: main[name] for name in ("norm_obs", "norm_reward") if name in main}
    data = OneProcess("CartPole-v1", num_envs=ENVS, seed=SEED, max_train_iter=main["max_train_iter"], **norms)
    ranks: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    Trainer(**TRAINER, **FLAGS, **ranks, max_epochs=-1, limit_val_batches=0).fit(policy, data)
    return data.published


def learn(cfg: dict[str, Any], kind: type[Learner], report: dict[str, Any]) -> None:
    """Learn for a coordinator; the other rank finds its task in its environment."""
    worker = kind(cfg)
    take = worker._take

    def keep(handle: Any) -> Any:
        rollout: Any = take(handle)
        report["taken"].append(rollout["log_prob"].clone())
        return rollout

    worker._take = keep  # type: ignore[method-assign]
    report["published"] = worker.published
    worker.start()


def wait_together(rank: int) -> dict[str, Any]:
    """Get two rollouts and wait for a third; return what this rank has got, and the env steps that it has seen."""
    dist.init_process_group("gloo", rank=rank, world_size=2)
    made: dict[str, Any] = {"env_id": torch.arange(4), "episode_id": torch.arange(4), "obs": {"x": torch.eye(4)}}
    pending = [RemoteData(wait=0.1, progress={"env_step": 40})] * 30  # three seconds
    pending += [RemoteData(made, progress={"env_step": 50}), RemoteData(made, progress={"env_step": 60})]

    def ask() -> RemoteData:
        return pending.pop(0) if pending else RemoteData(wait=0.1, progress={"env_step": 70})

    feed = SharedFeed(ask, in_episodes=False, patience=60.0)
    steps, began = set[int](), time.monotonic()

    def note(limit: float = 1e9) -> bool:
        steps.add(feed.env_step)
        return time.monotonic() > limit

    got = [feed.next(note), feed.next(note)]
    limit = time.monotonic() + 3.0 if rank == 1 else 1e9
    is_over = feed.next(lambda: note(limit)) is None
    feed.close()
    dist.destroy_process_group()
    data: list[Any] = [None if answer is None else answer.data for answer in got]
    return {"data": data, "steps": sorted(steps), "is_over": is_over, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    what, folder, rank = sys.argv[1], Path(sys.argv[2]), global_rank()
    if what == "feed":
        torch.save(wait_together(rank), folder / f"feed_{rank}.pt")
        raise SystemExit
    config = json.loads((folder / "cfg.json").read_text())
    ActorCriticPolicy._update = update  # type: ignore[method-assign]
    report: dict[str, Any] = {"updates": updates, "published": [], "taken": []}
    try:
        if what == "fit":
            report["published"] = fit(config)
        else:
            learn(config, Stopped if what == "stopped" else Learner, report)
    finally:
        torch.save(report, folder / f"{what}_{rank}.pt")
