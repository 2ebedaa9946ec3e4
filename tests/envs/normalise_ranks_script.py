"""Runs on each of several ranks: normalises the data of its own envs, merges twice, and writes its statistics."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lightning_ding.envs import NormaliseObservation, NormaliseReward, make_vector_env

STEPS = (30, 0, 45)  # before each merge; rank 1 takes twice as many


def report(rank: int) -> dict[str, Any]:
    """Return the statistics in full precision, and all that went into them."""
    envs = make_vector_env("CartPole-v1", num_envs=2 + rank, seed=rank)
    seen = Seen(envs)
    inner = NormaliseObservation(seen)
    env = NormaliseReward(inner, discount_factor=0.9)
    env.reset(seed=rank)
    for steps in STEPS:
        for _ in range(steps * (1 + rank)):
            env.step(env.action_space.sample())
        inner.merge_over_ranks()
        env.merge_over_ranks()
    states = [{name: torch.as_tensor(x).tolist() for name, x in one.state_dict().items()} for one in (inner, env)]
    return {"states": states, "seen": np.concatenate(seen.rows).tolist()}


class Seen(NormaliseObservation):
    """Keeps what it would count, and changes nothing."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.rows: list[Any] = []

    def _normalise(self, obs: Any, counted: Any) -> Any:
        self.rows.append(obs[counted])
        return obs


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = f"file://{target / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world_size, rank=rank)
    (target / f"rank_{rank}.json").write_text(json.dumps(report(rank)))
    dist.destroy_process_group()
