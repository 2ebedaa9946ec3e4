"""Learns on two gloo ranks of which one has a bad minibatch, started by test_non_finite_compiled.py.

python non_finite_ranks_script.py FOLDER RANK: each rank writes what it found to FOLDER/rank_R.pt.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from lightning_ding.policy import DQNPolicy, NonFiniteError

BAD_RANK, BAD_UPDATE = 1, 3
CONFIG: dict[str, Any] = {"model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}}


def batch_of(rank: int, update: int, is_bad: bool) -> dict[str, Tensor]:
    """Return a minibatch of the rank's own."""
    generator = torch.Generator().manual_seed(10 * update + rank)
    obs, next_obs = torch.randn(2, 32, 4, generator=generator)
    reward = torch.rand(32, generator=generator)
    if is_bad:
        reward[7] = float("nan")
    action = torch.randint(2, (32,), generator=generator)
    return {"obs": obs, "next_obs": next_obs, "reward": reward, "action": action, "terminated": obs[:, 0] > 1}


def plus(loss: Any, add: float, batch: Any) -> Any:
    """Return a loss with a constant added, which changes no gradient."""
    value, report = loss(batch)
    return value + add, report


def learn(rank: int, folder: Path, what: str, **config: Any) -> dict[str, Any]:
    """Make six updates; rank 1 has a bad minibatch, or a bad loss with good gradients, in one of them."""
    torch.manual_seed(0)
    policy = DQNPolicy({**CONFIG, **config})
    policy.updater.guard.folder = folder / what
    loss = policy.loss
    found: dict[str, Any] = {"error": None}
    for update in range(6):
        is_bad = rank == BAD_RANK and update == BAD_UPDATE
        if what == "loss":
            add = float("nan") if is_bad else 0.0
            policy.loss = functools.partial(plus, loss, add)  # type: ignore[method-assign]
        before = parameters_to_vector(policy.model.parameters()).detach().clone()
        try:
            policy.learn_mode.forward(batch_of(rank, update, is_bad and what != "loss"))
        except NonFiniteError as error:
            found |= {"error": str(error), "update": error.update, "folder": str(error.folder)}
            found["is_unchanged"] = torch.equal(before, parameters_to_vector(policy.model.parameters()))
            break
        if update == BAD_UPDATE:
            found["is_unchanged"] = torch.equal(before, parameters_to_vector(policy.model.parameters()))
    found["weights"] = parameters_to_vector(policy.model.parameters()).detach()
    found["skipped"] = policy.updater.guard.skipped_updates
    return found


def main(folder: Path, rank: int) -> None:
    """Learn with each option, and write what was found."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    found = {
        "raise": learn(rank, folder, "raise"),
        "clip": learn(rank, folder, "clip", learn={"grad_clip_norm": 0.5}),
        "loss": learn(rank, folder, "loss"),
        "skip": learn(rank, folder, "skip", on_non_finite="skip_update"),
    }
    torch.save(found, folder / f"rank_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
