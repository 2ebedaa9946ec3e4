"""The rollout that rank zero of a learner fetches, divided among all ranks.

Shapes: S transitions of a rollout, R ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.remote_feed import RemoteData, RemoteFeed
from lightning_ding.utils.ranks import communication_device, rank_and_world_size, sum_over_ranks

LOOK = 1.0  # seconds of waiting between two exchanges of counters and cancellations


class SharedFeed(RemoteFeed):
    """Fetch rollouts on rank zero, and give every rank its share of each.

    All ranks call :meth:`next` together. While rank zero waits, the other ranks learn once a second of its env steps,
    and all ranks stop if the wait is cancelled on one of them. Only rank zero reports episodes.

    Args:
        ask: Function that requests a rollout and returns the coordinator's answer; only rank zero calls it.
        in_episodes: Whether a share has whole episodes.
        options: Further arguments of :class:`RemoteFeed`.
    """

    def __init__(self, ask: Callable[[], RemoteData], in_episodes: bool, **options: Any) -> None:
        super().__init__(ask, ahead=0, **options)
        self._in_episodes = in_episodes
        self._look_at = 0.0

    @override
    def next(self, is_cancelled: Callable[[], bool] = lambda: False) -> RemoteData | None:
        """Return rank zero's answer, with the share of this rank; None if the wait was cancelled on any rank.

        Raises:
            TimeoutError: If there was neither a rollout nor a new env step for ``patience`` seconds.
            ValueError: If the rollout has fewer transitions, or fewer whole episodes, than there are ranks.
            Exception: Any exception that ``ask`` raised in the thread.
        """
        rank, ranks = rank_and_world_size()
        if rank > 0:
            waits = True
            while waits:
                was_cancelled, waits, has_rollout = self._exchange(is_cancelled())
                if was_cancelled:
                    return None
            return RemoteData(data=_scatter(None)) if has_rollout else RemoteData(stop=True)
        self._look_at = time.monotonic() + LOOK
        answer = super().next(lambda: self._is_cancelled_anywhere(is_cancelled))
        if answer is None:
            return None
        has_rollout = not answer.stop and answer.data is not None
        if self._exchange(is_cancelled(), has_rollout=has_rollout)[0]:
            return None
        if not has_rollout:
            return answer
        rollout = cast("dict[str, Any]", answer.data)
        rows = shares(rollout, ranks, self._in_episodes)
        return replace(answer, data=_scatter([nested.index(rollout, of_rank) for of_rank in rows]))

    def _is_cancelled_anywhere(self, is_cancelled: Callable[[], bool]) -> bool:
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK
        return self._exchange(is_cancelled(), waits=True)[0]

    def _exchange(self, is_cancelled: bool, waits: bool = False, has_rollout: bool = False) -> tuple[bool, bool, bool]:
        """Return whether any rank is cancelled, rank zero waits, and it has a rollout; take over its env steps."""
        env_step = self.env_step if rank_and_world_size()[0] == 0 else 0
        found = sum_over_ranks(torch.tensor([is_cancelled, waits, has_rollout, env_step])).tolist()
        self.env_step = found.pop()
        return bool(found[0]), bool(found[1]), bool(found[2])


def shares(rollout: Mapping[str, Any], ranks: int, in_episodes: bool = False) -> list[Tensor]:
    """Return the indices of the transitions of each rank, in the order of the rollout.

    Each transition is in one share. The shares have equally many transitions, or whole episodes, up to one. They follow
    the order of the envs, so that an env is on one rank if the number of envs is a multiple of ``ranks`` and all have
    equally many transitions. Otherwise one env between two ranks is cut, as it is at the end of a rollout.

    Args:
        rollout: Transitions with ``env_id`` and ``episode_id``, shape (S,), those of an env in chronological order.
        ranks: Number of ranks R.
        in_episodes: Whether shares have whole episodes.

    Raises:
        ValueError: If there are fewer transitions, or episodes, than ranks.

    Example:
        >>> env_id = torch.tensor([0, 1, 0, 1])
        >>> [rows.tolist() for rows in shares({"env_id": env_id, "episode_id": env_id}, 2)]
        [[0, 2], [1, 3]]
    """
    order = torch.argsort(rollout["env_id"], stable=True)  # (S,)
    number, unit = torch.arange(len(order)), "transitions"
    if in_episodes:
        episodes, unit = rollout["episode_id"][order], "whole episodes"
        number = torch.cat([torch.zeros(1, dtype=torch.int64), (episodes[1:] != episodes[:-1]).cumsum(0)])
    count = int(number[-1]) + 1
    require(count >= ranks, "a rollout", f"at least {ranks} {unit}, one for each rank", count)
    rank = number * ranks // count
    return [order[rank == one].sort().values for one in range(ranks)]


def _scatter(parts: list[Any] | None) -> dict[str, Any]:
    """Return this rank's part of those that rank zero gives, nested dicts of CPU tensors; the other ranks give None."""
    device, (rank, ranks) = communication_device(), rank_and_world_size()
    texts = [b""] + [save(nested.flatten(part)) for part in parts[1:]] if parts is not None else [b""] * ranks
    sizes = sum_over_ranks(torch.tensor([len(text) for text in texts])).tolist()
    mine = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded = [torch.frombuffer(bytearray(text.ljust(len(mine), b"\0")), dtype=torch.uint8).to(device) for text in texts]
    dist.scatter(mine, padded if parts is not None else None, src=0)
    return parts[0] if parts is not None else nested.unflatten(load(bytes(mine[: sizes[rank]].cpu().numpy())))
