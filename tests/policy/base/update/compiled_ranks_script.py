"""Learns on two gloo ranks in compiled code, started by test_compiled.py: python compiled_ranks_script.py FOLDER RANK.

Each rank writes the weights it ended with to FOLDER/rank_R.pt: of eager code, of compiled code, and of compiled code
that rank 1 cannot make.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.base.update import compiled

CONFIG: dict[str, Any] = {
    "learn": {"grad_clip_norm": 0.5},
    "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16, 16], "activation": "tanh"},
}


def learn(rank: int, is_compiled: bool) -> Tensor:
    """Learn from data of the rank's own, and return the weights."""
    torch.manual_seed(0)
    policy = DQNPolicy({**CONFIG, "compile": is_compiled})
    generator = torch.Generator().manual_seed(rank)
    for _ in range(30):
        obs, next_obs = torch.randn(2, 32, 4, generator=generator)
        batch = {"obs": obs, "next_obs": next_obs, "reward": torch.rand(32, generator=generator)}
        action = torch.randint(2, (32,), generator=generator)
        policy.learn_mode.forward({**batch, "action": action, "terminated": obs[:, 0] > 1})
    return torch.cat([weight.detach().reshape(-1) for weight in policy.model.parameters()])


def cannot_compile(*arguments: Any) -> Any:
    """Stand for a rank without a compiler."""
    raise RuntimeError("no compiler here")


def main(folder: Path, rank: int) -> None:
    """Learn three times, and write the weights."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=200))
    weights = {"eager": learn(rank, False), "compiled": learn(rank, True)}
    if rank == 1:
        setattr(compiled, "Compiled", cannot_compile)  # noqa: B010 - a class
    weights["alone"] = learn(rank, True)
    torch.save(weights, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
