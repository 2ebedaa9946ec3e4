"""Running statistics of observations and rewards, and the entries of a space that have them."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from lightning_ding.rl import RunningMeanStd
from lightning_ding.rl.running import Moments, moments

CLIP = 10.0  # normalised numbers stay in [-CLIP, CLIP]
EPSILON = 1e-8  # is added to a variance
ESCAPES = str.maketrans({"%": "%25", ":": "%3A", ".": "%2E", "/": "%2F"})  # in keys that become names of statistics
OBS = "obs"  # name of the statistics of observations; those of an entry of a Dict are called obs:entry


class Part(RunningMeanStd):
    """Statistics of one kind of numbers, and what they are shifted and scaled by, in single precision.

    Args:
        shape: Shape of an item.
        count_shape: Shape of the number of items: (N, 1) if it differs between the N agents of a team.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: tuple[int, ...], count_shape: tuple[int, ...] = ()) -> None:
        super().__init__(shape)
        if count_shape:
            self.register_buffer("count", torch.zeros(count_shape, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(shape), persistent=False)
        self.register_buffer("scale", torch.ones(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers with mean 0 and standard deviation 1."""
        self._follow(x)
        shifted = (x - self.mean).float() if x.dtype == torch.float64 else x - self.shift
        return (shifted * self.scale).clamp(-CLIP, CLIP)

    def scaled(self, x: Tensor) -> Tensor:
        """Return numbers divided by the standard deviation."""
        self._follow(x)
        return (x * self.scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def merge(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Add numbers that are given by their moments."""
        super().merge(*(moment.to(self.count.device) for moment in (count, mean, m2)))
        self._renew()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._renew()

    def _follow(self, x: Tensor) -> None:
        """Move to the device of the data, which may differ if statistics were loaded after the policy was moved."""
        if self.shift.device != x.device:
            self.to(x.device)

    @torch.no_grad()
    def _renew(self) -> None:
        variance = self.m2 / self.count.clamp(min=1)
        scale = torch.where(self.count > 0, (variance + EPSILON).rsqrt(), 1.0)
        self.shift.copy_(self.mean)
        self.scale.copy_(scale)


def finite_moments(x: Tensor) -> Moments:
    """Return the moments of the finite items, leading axis S; a NaN or infinite number would stay forever."""
    found = moments(x)
    if bool(found[2].isfinite().all()):
        return found
    return moments(x[x.isfinite().reshape(len(x), -1).all(1)])


def count_shape(space: spaces.Space[Any], path: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the number of items: (N, 1) for what the N agents of a team see, which may leave early."""
    if not isinstance(space, spaces.Dict):
        return ()
    from lightning_ding.utils.teams import AGENT_STATE, ALIVE, is_team

    counts_agents = path == (AGENT_STATE,) and len(shape) == 2 and is_team(space) and ALIVE in space.spaces
    return (shape[0], 1) if counts_agents else ()


def only_alive(obs: Any, path: tuple[str, ...]) -> Any:
    """Return observations in which agents that have left see zeros in the entry that some keys lead to."""
    from lightning_ding.utils.teams import ALIVE

    return {**obs, path[0]: obs[path[0]] * obs[ALIVE].unsqueeze(-1)}


def moments_of_agents(x: Tensor, obs: Any) -> Moments:
    """Return the moments of what each agent of a team sees, over the steps in which it is in the episode.

    Args:
        x: What the agents see, shape (S, N, D).
        obs: Observations with ``alive``, shape (S, N).

    Returns:
        Count (N, 1), mean and m2 (N, D), in double precision; the mean of no items is 0.
    """
    from lightning_ding.utils.teams import ALIVE

    x = x.double()
    counted = (obs[ALIVE].bool() & x.isfinite().all(-1)).unsqueeze(-1)
    count = counted.sum(0, dtype=x.dtype)
    x = torch.where(counted, x, 0.0)
    mean = x.sum(0) / count.clamp(min=1)
    return count, mean, torch.where(counted, x - mean, 0.0).square().sum(0)


def float_entries(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Return the shapes of what can be normalised in a space, by the keys that lead there."""
    if isinstance(space, spaces.Dict):
        from lightning_ding.utils.teams import AGENT_STATE, GLOBAL_STATE, is_team

        if is_team(space):
            space = spaces.Dict({name: space[name] for name in (AGENT_STATE, GLOBAL_STATE) if name in space.spaces})
    if isinstance(space, spaces.Tuple):
        space = spaces.Dict({str(place): part for place, part in enumerate(space.spaces)})  # as policies see it
    if isinstance(space, spaces.Dict):
        below = [float_entries(part, (*path, name)) for name, part in space.spaces.items()]
        return {found: shape for entries in below for found, shape in entries.items()}
    is_float = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    is_mask = bool(path) and path[-1] == "action_mask"
    return {path: tuple(cast(spaces.Box, space).shape)} if is_float and not is_mask else {}


def space_at(space: Any, path: tuple[str, ...]) -> Any:
    """Return the part of a space that some keys lead to."""
    for key in path:
        space = space.spaces[int(key)] if isinstance(space, spaces.Tuple) else space.spaces[key]
    return space


def single(x: Tensor) -> Tensor:
    """Return a tensor with single precision in place of double precision."""
    return x.float() if x.dtype == torch.float64 else x


def entry_at(obs: Any, path: tuple[str, ...]) -> Tensor:
    """Return the entry of observations that some keys lead to."""
    for key in path:
        obs = obs[key]
    return cast(Tensor, obs)


def replaced(obs: Any, path: tuple[str, ...], function: nn.Module) -> Any:
    """Return observations with a function applied to the entry that some keys lead to."""
    if not path:
        return function(obs)
    return {**obs, path[0]: replaced(obs[path[0]], path[1:], function)}


def statistics_name(path: tuple[str, ...]) -> str:
    """Return the name of a submodule for keys that may hold anything: ``obs:camera:depth``."""
    return ":".join([OBS, *(key.translate(ESCAPES) for key in path)])


def path_of(name: str) -> tuple[str, ...]:
    """Return the keys that :func:`statistics_name` was given."""
    return tuple(map(unquote, name.split(":")[1:]))
