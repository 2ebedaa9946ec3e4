"""Metrics of updates and evaluations.

Shapes: E episodes over all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from lightning_ding.utils.ranks import gather_bytes, world_size


class MeanMetrics:
    """Adds up the means of tensors by name, on their device, and averages them when asked.

    Adding in place costs microseconds. Keeping the tensors until they are asked for costs more: memory that is not
    given back makes every later allocation take fresh, cold memory.

    Example:
        >>> metrics = MeanMetrics()
        >>> metrics.add({"loss": torch.tensor(1.0)})
        >>> metrics.add({"loss": torch.tensor(3.0)})
        >>> metrics.flush()
        {'loss': 2.0}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add the mean of one tensor of each name."""
        for name, value in values.items():
            if name in self._sums:
                self._sums[name].add_(value.mean() if value.ndim else value)
                self._counts[name] += 1
            else:
                self._sums[name], self._counts[name] = value.detach().mean().clone(), 1

    def state_dict(self) -> dict[str, Any]:
        """Return the sums and counts since the last flush, as tensors and builtins."""
        return {"sums": {name: total.cpu().clone() for name, total in self._sums.items()}, "counts": dict(self._counts)}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device | str = "cpu") -> None:
        """Take what ``state_dict`` returned, to a device."""
        self._sums = {name: total.to(device, copy=True) for name, total in state["sums"].items()}
        self._counts = dict(state["counts"])

    def flush(self) -> dict[str, float]:
        """Return the mean of each name since the last flush in one transfer to the host, and forget the sums."""
        sums, counts = self._sums, self._counts
        self._sums, self._counts = {}, {}
        if not sums:
            return {}
        device = next(iter(sums.values())).device
        totals = torch.stack([total.to(device, torch.float32) for total in sums.values()]).tolist()
        return {name: total / counts[name] for name, total in zip(sums, totals, strict=True)}

    def flush_over_ranks(self) -> dict[str, float]:
        """Return what ``flush`` does, as means over the ranks that have the name; all ranks call it."""
        mine = self.flush()
        if world_size() == 1:
            return mine
        ranks: list[dict[str, float]] = [json.loads(one) for one in gather_bytes(json.dumps(mine).encode())]
        names = dict.fromkeys(name for rank in ranks for name in rank)
        found = {name: [rank[name] for rank in ranks if name in rank] for name in names}
        return {name: sum(values) / len(values) for name, values in found.items()}


def log_episodes(module: Any, stage: str, episodes: Mapping[str, Any]) -> None:
    """Log the evaluator's statistics of the return, the mean length, and means of the infos, over all ranks.

    Args:
        module: The policy.
        stage: Prefix of the names.
        episodes: ``episode_return`` and ``episode_length`` of all E episodes, shape (E,), zero where another rank ran
            them; and ``infos``, numbers of the infos by name, of the same form, NaN where the env gave none.
    """
    infos: Mapping[str, Tensor] = episodes.get("infos", {})
    table = torch.stack([episodes["episode_return"], episodes["episode_length"], *infos.values()]).double()
    returns, lengths, *numbers = cast(Tensor, module.trainer.strategy.reduce(table, reduce_op="sum")).cpu()
    by_name = {name: row.numpy() for name, row in zip(infos, numbers, strict=True)}
    values = module.config.eval.evaluator.summary(returns.numpy(), by_name)
    values["length_mean"] = float(lengths.mean())
    if not lengths.all():  # the evaluation was cancelled on some rank, and only the short episodes have ended
        values = dict.fromkeys(values, float("nan"))
    named = {f"{stage}/{name}": table.new_tensor(value, dtype=torch.float32) for name, value in values.items()}
    step = torch.tensor(float(module.progress.position))  # a metric of this name is Lightning's x axis
    module.log_dict({**named, "step": step}, batch_size=1, sync_dist=True)
