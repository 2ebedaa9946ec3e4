"""Guided cost learning: a cost for which the expert's steps are likely, next to those that the policy samples.

Paper: Finn et al. 2016 (https://arxiv.org/abs/1603.00448), eq. 2 for single steps: the mean cost of the expert's steps,
plus the logarithm of the partition function. The latter is estimated from the policy's steps and those of the expert
(section 5.2), each weighed by one over the probability with which it was sampled.

Where this differs: costs of single steps instead of whole trajectories, any policy that learns from rollouts instead of
guided policy search, no regularisation of the cost, and a probability of 1 for the steps of the expert instead of an
estimate.

Shapes: B batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch, widths_of
from lightning_ding.reward_model.expert import ExpertConfig, ExpertRewardModel

SMALLEST = math.log(1e-7)  # is added to each probability, as a logarithm


@dataclass(frozen=True, kw_only=True)
class GuidedCostConfig(ExpertConfig):
    """Keys of guided cost learning."""

    type: str | None = "guided_cost"


@REWARD_MODEL_REGISTRY.register("guided_cost")
class GuidedCostRewardModel(ExpertRewardModel[GuidedCostConfig]):
    """A cost of observations and actions, whose negative is the reward; the arguments are those of RewardModel.

    The reward of the env is not used. The loss, and the mean costs of the expert and of the policy are reported.
    """

    config_class: ClassVar[type[GuidedCostConfig]] = GuidedCostConfig
    needs: ClassVar[tuple[str, ...]] = ("log_prob",)

    def __init__(self, config: GuidedCostConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), None, "relu", keeps_vectors=True)
        size = int(self.encoder.output_size) + self.encode_action.size
        self.head = MLP((size, *widths_of(config), 1), "relu", activate_last=False)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the negative logarithm of the expert's likelihood (eq. 2), and metrics to report."""
        expert = self.cost(batch["expert_obs"], batch["expert_action"])
        own = self.cost(batch["obs"], batch["action"])
        log_prob = torch.cat([batch["log_prob"].view(-1), torch.zeros_like(expert)])
        log_prob = torch.logaddexp(log_prob, torch.full_like(log_prob, SMALLEST))
        log_partition = torch.logsumexp(-torch.cat([own, expert]) - log_prob, 0) - math.log(len(log_prob))
        loss = expert.mean() + log_partition
        report = {"reward_model_loss": loss, "expert_cost": expert.mean(), "own_cost": own.mean()}
        return loss, {name: value.detach() for name, value in report.items()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return minus the cost, shape (B,)."""
        return -self.cost(batch["obs"], batch["action"])

    def cost(self, obs: Any, action: Tensor) -> Tensor:
        """Return the cost of steps, shape (B,)."""
        joined = torch.cat([self.encoder(obs), self.encode_action(action)], 1)
        cost: Tensor = self.head(joined).squeeze(1)
        return cost
