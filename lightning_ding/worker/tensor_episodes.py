"""Returns and lengths of the episodes of tensor envs, added up on their device and read when they are logged.

Shapes: N envs, T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.envs.tensor.reader import TensorStep
from lightning_ding.worker.episodes import SUCCESS, SUCCESS_RATE, Statistic

SUCCESS_NAMES = (SUCCESS, "success")
"""Entries of an info with whether an episode was a success, in gymnasium's and in ManiSkill's convention."""


class TensorEpisodes:
    """Statistics of the episodes of N envs.

    Args:
        num_envs: Number of envs N.
        device: Device of the envs.
        info_keys: Names of numbers of the info at the end of an episode, all with the statistic ``last``.

    Raises:
        ValueError: If a name has another statistic.

    Example:
        >>> episodes = TensorEpisodes(2, torch.device("cpu"), {})
        >>> episodes.add(torch.ones(3, 2), torch.tensor([[False, False], [True, False], [False, False]]))
        >>> episodes.add(torch.ones(1, 2), torch.tensor([[True, True]]))
        >>> returns, lengths, count, infos = episodes.pop()
        >>> returns, lengths, count  # of two steps each, and of four
        (8.0, 8.0, 3)
    """

    def __init__(self, num_envs: int, device: torch.device, info_keys: Mapping[str, Statistic]) -> None:
        for name, statistic in info_keys.items():
            require(statistic == "last", f"info_keys[{name!r}]", '"last" with mode="tensor"', statistic)
        self.names = (SUCCESS_RATE, *info_keys)
        self.keeps_records = False
        """Whether :meth:`pop_records` returns the episodes."""
        self._running = torch.zeros(2, num_envs, device=device)  # return and length of unfinished episodes
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(3 + 2 * len(self.names), device=device, dtype=wide)
        self._infos: list[tuple[int, Tensor]] = []  # of steps: place of the name, and numbers, NaN where none counts
        self._records: list[tuple[Tensor, ...]] = []

    def note_infos(self, step: TensorStep) -> None:
        """Note the numbers that the info of a step has for the episodes that ended in it."""
        final, info = step.info.get("final_info"), step.info
        if not isinstance(final, Mapping):
            final = {}
        for place, name in enumerate(self.names):
            for key in SUCCESS_NAMES if name == SUCCESS_RATE else (name,):
                found = final.get(key, info.get(key))
                if isinstance(found, Tensor) and found.numel() == step.ended.numel():
                    # a copy, because an env may write the numbers of the next step into the same memory
                    self._infos.append((place, found.reshape(-1).float().where(step.ended, torch.nan)))
                    break

    def add(self, reward: Tensor, ended: Tensor, env_step: int = 0) -> None:
        """Add the steps of a rollout.

        Args:
            reward: Rewards, shape (T, N).
            ended: Whether an episode ended, shape (T, N).
            env_step: Env steps after the first of them, for records.
        """
        steps, num_envs = reward.shape
        count = torch.arange(1, steps + 1, device=reward.device, dtype=reward.dtype)[:, None].expand_as(reward)
        totals = torch.stack([reward.cumsum(0), count]) + self._running[:, None]  # (2, T, N), across episodes
        place = torch.arange(steps, device=reward.device)[:, None].where(ended, -1)
        last = place.cummax(0).values  # row of the last end up to each step, -1 for none
        before = torch.cat([torch.full_like(last[:1], -1), last[:-1]])
        subtracted = totals.gather(1, before.clamp(min=0).expand_as(totals)) * (before >= 0)
        of_episode = torch.where(ended, totals - subtracted, 0.0)  # (2, T, N)
        self._sums[:2] += of_episode.sum((1, 2))
        self._sums[2] += ended.sum()
        final = totals.gather(1, last[-1:].clamp(min=0).expand(2, 1, num_envs)) * (last[-1:] >= 0)
        self._running = (totals[:, -1:] - final)[:, 0]
        for number, found in self._infos:
            self._sums[3 + 2 * number] += found.nansum()
            self._sums[4 + 2 * number] += (~found.isnan()).sum()
        self._infos = []
        if self.keeps_records:
            self._note_records(of_episode, ended, env_step)

    def pop(self) -> tuple[float, float, int, dict[str, tuple[float, int]]]:
        """Return the sums of returns and lengths, the number of episodes, and sum and number of each info.

        They are of the episodes since the last call.
        """
        returns, lengths, count, *infos = self._sums.tolist()
        self._sums.zero_()
        pairs = zip(self.names, infos[::2], infos[1::2], strict=True)
        return returns, lengths, int(count), {name: (total, int(number)) for name, total, number in pairs}

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return env step, return and length of each episode since the last call, and NaN for each info."""
        records, self._records = self._records, []
        unknown = [float("nan")] * len(self.names)
        rows = [zip(*[part.tolist() for part in one], strict=True) for one in records]
        return [(*row, *unknown) for table in rows for row in table]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, and the return and length of the unfinished episodes."""
        return {"running": self._running, "sums": self._sums.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; sums of other names than now are left out."""
        self._running = state["running"].to(self._running)
        if state["sums"].shape == self._sums.shape:
            self._sums = state["sums"].to(self._sums)

    def _note_records(self, of_episode: Tensor, ended: Tensor, env_step: int) -> None:
        step, _ = ended.nonzero(as_tuple=True)
        self._records.append((env_step + step * ended.shape[1], of_episode[0][ended], of_episode[1][ended].long()))
