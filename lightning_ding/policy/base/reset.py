"""Networks that are initialised again during a run, against the primacy bias of many updates per env step.

Paper: Nikishin et al. 2022 (https://arxiv.org/abs/2205.07802). The replay buffer, the statistics of observations and
rewards, and all counters stay. The weights of all ranks are equal, and those of a resumed run are those of a run
without a break: their seed is drawn from torch's generator of rank 0, whose state is part of a checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model import create_model
from lightning_ding.utils.ranks import rank_and_world_size, sum_over_ranks

KEPT = ("normaliser", "reward_model")
"""Modules of a policy that no reset changes."""


class Resets:
    """Resets the networks of a policy after ``learn.reset_freq`` updates each, and after those of ``learn.reset_at``.

    Args:
        policy: A policy that learns from replay, with its network.

    Raises:
        ValueError: If a number of updates is below 1, there are parts but no resets, the name of a part is unknown, or
            a network was passed that the config does not describe.
    """

    def __init__(self, policy: Any) -> None:
        self._policy, learn = policy, policy.config.learn
        self.freq, self.at = learn.reset_freq, tuple(learn.reset_at)
        for count in (*self.at, 1 if self.freq is None else self.freq):
            require(count >= 1, "learn.reset_freq and learn.reset_at", ">= 1", count)
        is_asked = self.freq is not None or bool(self.at)
        require(is_asked, "learn.reset_parts", "empty without reset_freq and reset_at", learn.reset_parts)
        known = [name for name, _ in policy.model.named_modules() if name]
        for part in learn.reset_parts:
            require(part in known, "learn.reset_parts", f"modules of the network, such as {known[:3]}", part)
        _check_network(policy)

    def after_update(self) -> None:
        """Reset the networks, if it is due after the updates made so far."""
        updates = self._policy.progress.train_iter
        if (self.freq is not None and updates % self.freq == 0) or updates in self.at:
            reset_networks(self._policy)


def _check_network(policy: Any) -> None:
    """Raise if the network of a policy is not the one that its config describes."""
    shapes = policy._model_section()
    is_described = None not in map(shapes.get, policy.shape_names)
    if is_described:
        with torch.random.fork_rng(devices=[]):
            fresh = create_model(policy._model_cfg())
        is_described = _shapes(fresh) == _shapes(policy.model)
    allowed = "None and [] with a network that is passed as model, because it cannot be made again"
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
