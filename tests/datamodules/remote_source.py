"""Rounds of random minibatches for CartPole, and a stand-in for the comm learner that hands them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lightning_ding.datamodules.remote_feed import RemoteData

UPDATES, BATCH = 2, 8  # as in the fixture ``small``


def minibatches(number: int, updates: int = UPDATES, prioritised: bool = False) -> dict[str, Any]:
    """Return the data of a round, other ones for each number."""
    random, shape = torch.Generator().manual_seed(number), (updates, BATCH)
    data: dict[str, Any] = {
        "obs": torch.randn(*shape, 4, generator=random),
        "action": torch.randint(2, shape, generator=random),
        "reward": torch.randn(shape, generator=random),
        "next_obs": torch.randn(*shape, 4, generator=random),
        "terminated": torch.rand(shape, generator=random) < 0.2,
        "truncated": torch.zeros(shape, dtype=torch.bool),
    }
    if prioritised:
        rows = torch.arange(updates * BATCH).reshape(shape)
        data |= {"replay_unique_id": rows + 100, "replay_buffer_idx": rows, "IS": torch.ones(shape)}
    return data


def sequences(data: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a round of sequences of equal steps, whose last one is padding, with log-probabilities."""
    steps = {name: column.unsqueeze(1).repeat_interleave(length, 1) for name, column in data.items()}
    mask = torch.ones_like(steps["terminated"])
    mask[:, -1] = False
    return steps | {"mask": mask, "log_prob": torch.full(mask.shape, -0.7)}


class Source:
    """Answers as a coordinator would, with ``rounds`` rounds and then what ``afterwards`` says."""

    def __init__(
        self,
        rounds: int,
        afterwards: RemoteData | Exception | None = None,
        prioritised: bool = False,
        in_sequences: int | None = None,
    ) -> None:
        self.rounds = rounds
        self.afterwards = (
            afterwards if afterwards is not None else RemoteData(stop=True, progress=self.progress(rounds))
        )
        self.prioritised = prioritised
        self.in_sequences = in_sequences
        self.asked: list[tuple[Any, ...]] = []

    def progress(self, number: int) -> dict[str, int]:
        return {"env_step": 100 + 10 * number, "episode": number, "sample": 50 + number}

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int
    ) -> RemoteData:
        number = len(self.asked)
        self.asked.append((batch_size, num_batches, cur_learner_iter, dict(options), rank))
        if number < self.rounds:
            data = minibatches(number, num_batches, self.prioritised)
            data = data if self.in_sequences is None else sequences(data, self.in_sequences)
            stats = {"policy_lag": number + 0.5, "collector_wait": None}
            return RemoteData(data, 0.0, False, self.progress(number), (float(number),), (number + 1,), 1, stats)
        if isinstance(self.afterwards, Exception):
            raise self.afterwards
        return self.afterwards
