"""Imitation by probability densities: the reward is how dense the expert's steps are, against those of both.

Paper: Liu et al. 2021 (https://arxiv.org/abs/2112.06746), section 3: with the densities of observations of the expert
and of the policy, and the probability with which the expert takes the action,
``r(s, a) = p_E(s) pi_E(a | s) / (alpha p_E(s) + (1 - alpha) p(s))``. Both densities are normal distributions.

Where this differs: ``pi_E`` is a network that learns the expert's actions: a distribution over the choices of a
discrete action, or a normal one with a common variance of continuous actions in [-1, 1]. The policy's density is that
of the newest ``recent`` observations of each rank. The quotient is computed from logarithms, so that it also has a
value where both densities vanish.

Shapes: B batch, S collected transitions, E steps of the expert, D numbers of an observation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch, widths_of
from lightning_ding.reward_model.expert import ExpertConfig, ExpertRewardModel
from lightning_ding.utils.ranks import sum_over_ranks, world_size

LOG_TWO_PI = math.log(2 * math.pi)
RIDGE = 1e-6  # added to variances, so that constant entries have a density


@dataclass(frozen=True, kw_only=True)
class PDEILConfig(ExpertConfig):
    """Keys of imitation by probability densities."""

    type: str | None = "pdeil"
    alpha: float = 0.5
    """pdeil: share of the expert's density in the denominator, in [0, 1]; rewards are at most 1 / alpha times the
    probability of the expert's action."""
    recent: int = 1000
    """pdeil: newest observations of each rank that the policy's density is estimated from, >= 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "reward_model.alpha", "in [0, 1]", self.alpha)
        require(self.recent >= 2, "reward_model.recent", ">= 2", self.recent)


class Normal(nn.Module):
    """A normal distribution of D numbers with any covariance, estimated from data; part of a state dict.

    Args:
        size: D.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("whitening", torch.eye(size))

    def fit(self, mean: Tensor, square: Tensor) -> None:
        """Take the mean of rows x, shape (D,), and that of x x^T, shape (D, D), both in double precision."""
        covariance = square - torch.outer(mean, mean)
        factor = torch.linalg.cholesky(covariance + RIDGE * torch.eye(len(mean), dtype=mean.dtype))
        whitening = torch.linalg.solve_triangular(factor, torch.eye(len(mean), dtype=mean.dtype), upper=False)
        for name, value in (("mean", mean), ("whitening", whitening)):
            buffer: Tensor = getattr(self, name)
            buffer.copy_(value)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Return the logarithms of the densities of rows, shape (B,)."""
        mean, whitening = cast(Tensor, self.mean), cast(Tensor, self.whitening)
        white = (rows - mean) @ whitening.T
        return -0.5 * (white.square().sum(1) + len(mean) * LOG_TWO_PI) + whitening.diagonal().log().sum()


@REWARD_MODEL_REGISTRY.register("pdeil")
class PDEILRewardModel(ExpertRewardModel[PDEILConfig]):
    """Imitation by probability densities; the arguments are those of RewardModel. The env's reward is not used.

    Raises:
        ValueError: If observations are not vectors.
    """

    config_class: ClassVar[type[PDEILConfig]] = PDEILConfig

    def __init__(self, config: PDEILConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        shape = section["obs_shape"]
        shape = shape[0] if isinstance(shape, (list, tuple)) and len(shape) == 1 else shape
        require(isinstance(shape, int), "model.obs_shape", "a number with reward_model.type 'pdeil'", shape)
        self.clone = MLP((shape, *widths_of(config), self.encode_action.size), "relu", activate_last=False)
        is_continuous = self.encode_action.choices is None
        self.log_std = nn.Parameter(torch.zeros(self.encode_action.size)) if is_continuous else None
        self.expert, self.own = Normal(shape), Normal(shape)
        self._recent = torch.empty(0, shape)

    def bind(self, policy: Any) -> None:
        """Read the expert's data, and estimate the density of its observations.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        normal = policy.normaliser.kinds["norm_obs"]
        allowed = "False with reward_model.type 'pdeil', whose densities are of observations as they are"
        require(not normal, "norm_obs", allowed, normal)
        super().bind(policy)
        self.expert.fit(*_moments(self._expert["obs"]))

    def add(self, transitions: Batch) -> None:
        """Estimate the density of the policy's observations from the newest ones; all ranks call it together."""
        seen = transitions["obs"].detach().cpu().float().flatten(1)
        self._recent = torch.cat([self._recent, seen])[-self.config.recent :]
        mean, square = _moments(self._recent)
        together = sum_over_ranks(torch.cat([mean, square.flatten()])) / world_size()
        self.own.fit(together[: len(mean)], together[len(mean) :].view_as(square))

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean of -log pi_E of drawn steps of the expert, and the metrics to report."""
        loss = -self.log_policy(batch["expert_obs"].float().flatten(1), batch["expert_action"]).mean()
        return loss, {"reward_model_loss": loss.detach()}

    def log_policy(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return log pi_E of actions, shape (B,), for observations (B, D)."""
        found, given = self.clone(obs), self.encode_action(action)
        if self.log_std is None:
            parts = found.split(list(self.encode_action.choices or ()), dim=1)
            return (torch.cat([part.log_softmax(1) for part in parts], 1) * given).sum(1)
        scaled = (given - found) / self.log_std.exp()
        density: Tensor = -(0.5 * (scaled.square() + LOG_TWO_PI) + self.log_std).sum(1)
        return density

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return the rewards, shape (B,)."""
        obs, alpha = batch["obs"].float().flatten(1), self.config.alpha
        expert, own = self.expert.log_prob(obs), self.own.log_prob(obs)
        shares = torch.tensor([alpha, 1 - alpha], device=obs.device).log()
        mixed = torch.logaddexp(shares[0] + expert, shares[1] + own)
        return (expert + self.log_policy(obs, batch["action"]) - mixed).exp()

    def rank_state(self) -> dict[str, Any]:
        """Return the newest observations of this rank."""
        return {"recent": self._recent}

    def load_rank_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``rank_state`` returned."""
        self._recent = state["recent"]


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of rows x, shape (D,), and of x x^T, shape (D, D), in double precision."""
    exact = rows.detach().cpu().double().flatten(1)
    return exact.mean(0), exact.T @ exact / len(exact)
