"""An ensemble of probabilistic models of an env, evaluated together.

Shapes: E members, K elites, B batch, O numbers of an observation, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.config import require
from lightning_ding.model.ensemble import EnsembleMLP

BOUND_WEIGHT = 0.01  # of the distance between the bounds of the log variance in the loss (Chua et al. 2018, code)


class Prediction(NamedTuple):
    """The predictions of each member for a batch."""

    mean: Tensor
    """Means of the reward and of the change of the observation, shape (E, B, 1 + O)."""
    log_var: Tensor
    """Logarithms of their variances, shape (E, B, 1 + O)."""
    end: Tensor | None
    """Logits of the termination of the episode, shape (E, B); None unless it is learned."""


class DynamicsEnsemble(nn.Module):
    """E Gaussian models of the reward and the change of the observation (Chua et al. 2018, Janner et al. 2019).

    The input is normalised by the mean and the standard deviation of the training data. The log variances lie between
    two learned bounds for each predicted number, which all members share.

    Args:
        obs_size: Numbers of an observation O, >= 1.
        action_size: Dimensions of an action A, >= 1.
        ensemble_num: Number of members E, >= 1.
        elite_num: Number of members that rollouts use K, in [1, E].
        hidden_size_list: Width of each hidden layer, >= 1.
        learns_end: Whether the members also predict the termination of the episode.

    Example:
        >>> model = DynamicsEnsemble(3, 1, ensemble_num=2, elite_num=1, hidden_size_list=[8])
        >>> model(torch.zeros(5, 4)).mean.shape
        torch.Size([2, 5, 4])
    """

    elites: Tensor
    """Indices of the members that rollouts use, the best one first, shape (K,)."""
    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        obs_size: int,
        action_size: int,
        ensemble_num: int = 7,
        elite_num: int = 5,
        hidden_size_list: Sequence[int] = (200, 200, 200, 200),
        learns_end: bool = False,
    ) -> None:
        super().__init__()
        require(1 <= elite_num <= ensemble_num, "elite_num", f"in [1, {ensemble_num}]", elite_num)
        self.output_size, self.learns_end = 1 + obs_size, learns_end
        sizes = [obs_size + action_size, *hidden_size_list, 2 * self.output_size + learns_end]
        self.layers = EnsembleMLP(ensemble_num, sizes, "silu")
        self.low = nn.Parameter(torch.full((self.output_size,), -10.0))
        self.high = nn.Parameter(torch.full((self.output_size,), 0.5))
        self.register_buffer("input_mean", torch.zeros(sizes[0]))
        self.register_buffer("input_std", torch.ones(sizes[0]))
        self.register_buffer("elites", torch.arange(elite_num))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Prediction:
        """Return what members predict.

        Args:
            x: Observations and normalised actions, shape (B, O + A), or those of each member, (E, B, O + A).
            members: Indices of the members; None means all.
        """
        output = self.layers((x - self.input_mean) / self.input_std, members)
        mean, log_var, *end = output.split([self.output_size, self.output_size, *([1] if self.learns_end else [])], 2)
        return Prediction(mean, rl.softly_bounded(log_var, self.low, self.high), end[0].squeeze(2) if end else None)

    def loss(self, x: Tensor, target: Tensor, terminated: Tensor, weight_decay: float = 0.0) -> Tensor:
        """Return the loss of all members together, a scalar.

        Args:
            x: Input of each member, shape (E, B, O + A).
            target: Rewards and changes of the observation, shape (E, B, 1 + O).
            terminated: Whether the step ended the episode, shape (E, B).
            weight_decay: Weight of half the squared norm of the weights, >= 0.
        """
        found = self(x)
        loss: Tensor = rl.gaussian_nll(found.mean, found.log_var, target).mean((1, 2)).sum()
        loss = loss + BOUND_WEIGHT * (self.high - self.low).sum()
        if found.end is not None:
            each = F.binary_cross_entropy_with_logits(found.end, terminated.to(found.end), reduction="none")
            loss = loss + each.mean(1).sum()
        if weight_decay:
            loss = loss + weight_decay / 2 * torch.stack([one.square().sum() for one in self.layers.weights]).sum()
        return loss

    @torch.no_grad()
    def normalise_by(self, mean: Tensor, std: Tensor) -> None:
        """Normalise the input by these numbers from now on, shapes (O + A,); one that never varies is only shifted."""
        self.input_mean.copy_(mean)
        self.input_std.copy_(torch.where(std < 1e-6, 1.0, std))

    @torch.no_grad()
    def squared_error(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error of each member's means, shape (E,), for ``x`` (B, O + A)."""
        mean: Tensor = self(x).mean
        return (mean - target).square().mean((1, 2))

    def of_members(self) -> list[Tensor]:
        """Return the parameters that differ between members, shapes (E, ...)."""
        return list(self.layers.parameters())

    @torch.no_grad()
    def step(self, x: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards (B,), changes of the observation (B, O), and whether the episode ends (B,), as it was learned.

        The batch is divided among the elites: the first B / K rows are of the first one, and so on.

        Args:
            x: Observations and normalised actions, shape (B, O + A), with B a multiple of K.
            noise: Standard normal numbers, shape (B, 1 + O); None takes the means.
        """
        parts = x.view(len(self.elites), -1, x.shape[1])
        found = self(parts, self.elites)
        sample = found.mean.flatten(0, 1)
        if noise is not None:
            sample = sample + noise * (found.log_var / 2).exp().flatten(0, 1)
        end = torch.zeros_like(sample[:, 0], dtype=torch.bool) if found.end is None else found.end.flatten() > 0
        return sample[:, 0], sample[:, 1:], end


class BestMembers:
    """The best weights of each member so far, by its error on the holdout data; ends the training of an ensemble.

    Args:
        model: The ensemble, whose present weights are the first.
    """

    def __init__(self, model: DynamicsEnsemble) -> None:
        self._model, self._kept = model, [one.detach().clone() for one in model.of_members()]
        self.error = torch.full((len(self._kept[0]),), torch.inf, device=self._kept[0].device)
        """The error of each member with its best weights, shape (E,)."""

    def note(self, error: Tensor) -> bool:
        """Keep the weights of the members whose error, shape (E,), fell by more than 1 %; return whether any did."""
        is_better = error < 0.99 * self.error
        self.error = torch.where(is_better, error, self.error)
        for kept, now in _pairs(self._kept, self._model.of_members()):
            kept.copy_(torch.where(is_better.view(-1, *[1] * (kept.ndim - 1)), now, kept))
        return bool(is_better.any())

    def restore(self) -> None:
        """Give each member its best weights, and make the members with the smallest errors the elites."""
        for kept, now in _pairs(self._kept, self._model.of_members()):
            now.copy_(kept)
        self._model.elites.copy_(self.error.argsort(stable=True)[: len(self._model.elites)])


def _pairs(kept: Iterable[Tensor], now: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield kept and present parameters, these without gradient."""
    yield from ((one, other.detach()) for one, other in zip(kept, now, strict=True))
