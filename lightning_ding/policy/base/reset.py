"""Networks that are initialised again during a run, against the primacy bias of many updates per env step.

Paper: Nikishin et al. 2022 (https://arxiv.org/abs/2205.07802). The replay buffer, the statistics of observations and
rewards, and all counters stay. The weights of all ranks are equal, and those of a resumed run are those of a run
without a break: their seed is drawn from torch's generator of rank 0, whose state is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model import create_model
from lightning_ding.utils.ranks import rank_and_world_size, sum_over_ranks

KEPT = ("normaliser", "reward_model")
"""Modules of a policy that no reset changes."""


def is_due(updates: int, freq: int | None, at: Sequence[int]) -> bool:
    """Return whether there is a reset after a number of updates.

    Args:
        updates: Number of updates made so far.
        freq: ``learn.reset_freq``, updates between two resets; None for none.
        at: ``learn.reset_at``, numbers of updates after which there is one more.

    Example:
        >>> [updates for updates in range(1, 10) if is_due(updates, 4, [6])]
        [4, 6, 8]
    """
    return (freq is not None and updates % freq == 0) or updates in at


def check_reset(policy: Any) -> None:
    """Raise if the networks of a policy cannot be made again, or it lacks a part to reset.

    Raises:
        ValueError: If a network was passed that the config does not describe, or a name is unknown.
    """
    for part in policy.config.learn.reset_parts:
        known = [name for name, _ in policy.model.named_modules() if name]
        require(part in known, "learn.reset_parts", f"modules of the network, such as {known[:3]}", part)
    shapes = policy._model_section()
    is_described = None not in map(shapes.get, policy.shape_names)
    if is_described:
        with torch.random.fork_rng(devices=[]):
            fresh = create_model(policy._model_cfg())
        is_described = _shapes(fresh) == _shapes(policy.model)
    allowed = "left out with a network that is passed as model, because it cannot be made again"
    require(is_described, "learn.reset_freq and learn.reset_at", allowed, "a reset")


@torch.no_grad()
def reset_networks(policy: Any) -> None:
    """Initialise the chosen networks of a policy again, with their target networks and the optimizers' state for them.

    Args:
        policy: A policy that learns; ``learn.reset_parts`` names the modules of its network. Without names all weights
            that it learns are reset, also those outside of the network, such as SAC's temperature.
    """
    seed = torch.randint(2**31, ())
    rank, ranks = rank_and_world_size()
    if ranks > 1:
        seed = sum_over_ranks(seed if rank == 0 else torch.zeros_like(seed))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(seed))
        fresh = type(policy)(policy.config)
    parts = policy.config.learn.reset_parts
    chosen = tuple(f"{root}.{part}." for root in ("model", "target_model") for part in parts)
    kept = tuple(f"{name}." for name in KEPT)
    old, changed = _tensors(policy), set[int]()
    for name, new in _tensors(fresh).items():
        if name.startswith(chosen) if parts else not name.startswith(kept):
            old[name].copy_(new)
            changed.add(id(old[name]))
    for optimizer in policy.updater.optimizers:
        for parameter in [one for one in optimizer.state if id(one) in changed]:
            del optimizer.state[parameter]


def _tensors(policy: Any) -> dict[str, Tensor]:
    """Return all parameters and buffers by name."""
    return {**dict(policy.named_parameters()), **dict(policy.named_buffers())}


def _shapes(network: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in network.state_dict().items()}
