"""The mathematics of Never Give Up: episodic and lifelong novelty, and the family of policies that explore.

Paper: Badia et al. 2020 (https://arxiv.org/abs/2002.06038). Equation numbers are those of its section 2.

Shapes: B batch of envs, N envs, K nearest neighbours, M embeddings of an episode, F size of an embedding, J policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

CLUSTER = 0.008  # xi, distance below which embeddings count as equal
KERNEL = 1e-4  # epsilon of the kernel
LEAST = 1e-3  # c, which bounds the reward
LARGEST = 8.0  # s_m, similarity above which there is no reward
FIRST_ROWS = 64  # of a memory


def exploration_weights(number: int, largest: float) -> Tensor:
    """Return beta_j, the weight of the intrinsic reward for each of J policies (appendix A).

    It is 0 for the first one, ``largest`` for the last one, and largest * sigmoid(10 (2 j - (J - 2)) / (J - 2)) between
    them.

    Args:
        number: J, >= 2.
        largest: beta, >= 0.

    Example:
        >>> exploration_weights(4, 0.5)
        tensor([0.0000, 0.2500, 0.5000, 0.5000])
    """
    index = torch.arange(number, dtype=torch.float64)
    weights = largest * torch.sigmoid(10 * (2 * index - (number - 2)) / max(number - 2, 1))
    weights[0], weights[-1] = 0.0, largest
    return weights.float()


def exploration_discounts(number: int, longest: float, shortest: float) -> Tensor:
    """Return gamma_j, the discount factor for each of J policies (appendix A).

    The horizons 1 / (1 - gamma_j) are spaced evenly on a logarithmic scale, from the longest to the shortest one.

    Args:
        number: J, >= 2.
        longest: Discount factor of the first policy, in [0, 1).
        shortest: That of the last one, in [0, 1).

    Example:
        >>> exploration_discounts(3, longest=0.99, shortest=0.0)
        tensor([0.9900, 0.9000, 0.0000])
    """
    share = torch.arange(number, dtype=torch.float64) / (number - 1)
    return (1 - torch.exp((1 - share) * math.log(1 - longest) + share * math.log(1 - shortest))).float()


def episodic_novelty(distance: Tensor, least: float = LEAST, largest: float = LARGEST) -> Tensor:
    """Return the episodic reward 1 / sqrt(sum of K(x, f_i) + c) of eq. 2 and 3, shape (B,), as algorithm 1 has it.

    The kernel is K = epsilon / (d + epsilon), where d is a normalised distance, less xi, but not below 0. The reward is
    1 / s with s = sqrt(sum of K) + c, and 0 where s exceeds s_m.

    Args:
        distance: Squared distances to the K nearest neighbours, divided by their running mean, shape (B, K).
        least: c, > 0.
        largest: s_m, > 0.

    Example:
        >>> episodic_novelty(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        tensor([65.7967,  0.7066])
    """
    kernel = KERNEL / ((distance - CLUSTER).clamp(min=0) + KERNEL)
    similarity = kernel.sum(1).sqrt() + least
    return torch.where(similarity > largest, 0.0, 1 / similarity)


def intrinsic_reward(episodic: Tensor, lifelong: Tensor, most: float) -> Tensor:
    """Return r = r_episodic * min(max(alpha, 1), L), shape (B,) (eq. 1).

    Args:
        episodic: Episodic rewards, shape (B,).
        lifelong: alpha = 1 + (error - mean) / standard deviation, of the errors of a predictor (section 2), shape (B,).
        most: L, >= 1.

    Example:
        >>> intrinsic_reward(torch.tensor([2.0, 2.0]), torch.tensor([-1.0, 3.0]), most=5.0)
        tensor([2., 6.])
    """
    return episodic * lifelong.clamp(1.0, most)


class EpisodicMemory:
    """The embeddings of each env's episode so far, and the running statistics that their rewards are scaled by.

    The reward of an embedding is 0 until its episode has K embeddings.

    Args:
        num_neighbours: K, >= 1.
        size: Largest number of embeddings of an episode, >= K; later ones replace the oldest.
        most: Largest lifelong factor L, >= 1.

    Example:
        >>> memory = EpisodicMemory(num_neighbours=1, size=10)
        >>> rows, where = torch.tensor([0]), torch.tensor([[0.0]])
        >>> memory.add(rows, where, is_first=torch.tensor([True]))
        >>> far = memory.rewards(rows, where + 1, torch.zeros(1))
        >>> near = memory.rewards(rows, where, torch.zeros(1))
        >>> bool(far > near)
        True
    """

    def __init__(self, num_neighbours: int = 10, size: int = 30_000, most: float = 5.0) -> None:
        self.num_neighbours, self.size, self.most = num_neighbours, size, most
        self._embedding: Tensor | None = None  # (N, M, F)
        self._count = torch.zeros(0, dtype=torch.int64)  # (N,), on the CPU
        self._distance = torch.zeros(2, dtype=torch.float64)  # number and sum
        self._error = torch.zeros(3, dtype=torch.float64)  # number, mean and sum of squared deviations

    def add(self, rows: Tensor, embedding: Tensor, is_first: Tensor) -> None:
        """Add an embedding to the episode of each of B envs.

        Args:
            rows: Numbers of the envs, shape (B,), all different.
            embedding: Embeddings, shape (B, F).
            is_first: Whether an episode begins here, so that the earlier one is forgotten, shape (B,).
        """
        rows = rows.cpu()
        self._make_room(rows, embedding)
        count = torch.where(is_first.cpu().bool(), 0, self._count[rows])
        table: Any = self._embedding
        table[rows.to(table.device), (count % self.size).to(table.device)] = embedding
        self._count[rows] = count + 1

    def rewards(self, rows: Tensor, embedding: Tensor, error: Tensor) -> Tensor:
        """Return the intrinsic reward of reaching an embedding in each of B envs, shape (B,).

        Args:
            rows: Numbers of the envs, shape (B,), to all of which an embedding was added.
            embedding: Embeddings that were reached, shape (B, F).
            error: Errors of the predictor of the lifelong factor, shape (B,).

        The running statistics are updated first. Values that are not finite have the reward 0, and change nothing.
        """
        episodic, lifelong = self._episodic(rows.cpu(), embedding), self._lifelong(error)
        return torch.nan_to_num(intrinsic_reward(episodic, lifelong, self.most), 0.0, 0.0, 0.0)

    def _episodic(self, rows: Tensor, embedding: Tensor) -> Tensor:
        count = self._count[rows].clamp(max=self.size)
        kept: Any = self._embedding
        kept = kept[rows.to(kept.device), : int(count.max())]
        is_real = torch.arange(kept.shape[1]).unsqueeze(0) < count.unsqueeze(1)
        square = (kept - embedding.unsqueeze(1)).square().sum(2)  # (B, M)
        square = square.masked_fill(~is_real.to(square.device), math.inf)
        nearest = square.topk(min(self.num_neighbours, square.shape[1]), 1, largest=False).values
        has_enough = nearest.isfinite().all(1) & (nearest.shape[1] == self.num_neighbours)
        found = nearest[has_enough].double().cpu()
        self._distance += torch.tensor([found.numel(), found.sum()], dtype=torch.float64)
        mean = (self._distance[1] / self._distance[0].clamp(min=1)).clamp(min=1e-11).to(square)
        return torch.where(has_enough, episodic_novelty(nearest / mean), 0.0)

    def _lifelong(self, error: Tensor) -> Tensor:
        """Return alpha, shape (B,)."""
        from lightning_ding.rl.running import combine_moments, moments

        finite = error[error.isfinite()].cpu()
        self._error = torch.stack(combine_moments(self._error[0], self._error[1], self._error[2], *moments(finite)))
        count, mean, square = self._error.unbind()
        deviation = (square / count.clamp(min=1)).sqrt().clamp(min=1e-11)
        return 1 + (error - mean.to(error)) / deviation.to(error)

    def _make_room(self, rows: Tensor, embedding: Tensor) -> None:
        """Make the table large enough for the envs and for one more embedding of each of them."""
        number = max(len(self._count), int(rows.max()) + 1)
        kept = self._embedding
        if kept is None or kept.shape[2] != embedding.shape[1]:
            kept = embedding.new_zeros(0, 0, embedding.shape[1])
            self._count = self._count[:0]
        if number > len(self._count):
            self._count = torch.cat([self._count, torch.zeros(number - len(self._count), dtype=torch.int64)])
        wanted = min(int(self._count.max()) + 1, self.size)
        steps = kept.shape[1]
        if wanted > steps:
            steps = min(max(FIRST_ROWS, 2 * steps), self.size)
        if kept.shape[:2] != (number, steps) or kept.device != embedding.device:
            table = embedding.new_zeros(number, steps, embedding.shape[1])
            table[: kept.shape[0], : kept.shape[1]] = kept.to(table)
            kept = table
        self._embedding = kept

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the embeddings of the unfinished episodes, and the statistics."""
        kept = None if self._embedding is None else self._embedding.clone()
        numbers = {"count": self._count, "distance": self._distance, "error": self._error}
        return {"embedding": kept, **{name: one.clone() for name, one in numbers.items()}}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore what ``state_dict`` returned."""
        self._embedding = None if state["embedding"] is None else state["embedding"].to(device, copy=True)
        self._count, self._distance, self._error = (state[name].clone() for name in ("count", "distance", "error"))
