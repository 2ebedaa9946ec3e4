"""Generative adversarial imitation: the reward is how much a discriminator takes a step for one of an expert.

Paper: Ho and Ermon 2016 (https://arxiv.org/abs/1606.03476), algorithm 1. Here D is the probability that an observation
and an action are the expert's; the paper's D is that of the policy, 1 - D.

Where this differs: any policy instead of TRPO; no term of the causal entropy, which a policy's ``entropy_weight``
replaces. The reward is -log(1 - D), which is never negative: it suits tasks in which long
episodes are good (Kostrikov et al. 2019, section 4.1, https://arxiv.org/abs/1809.02925).

Shapes: B batch, F features, A width of an encoded action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch, widths_of
from lightning_ding.reward_model.expert import ExpertConfig, ExpertRewardModel


@dataclass(frozen=True, kw_only=True)
class GAILConfig(ExpertConfig):
    """Keys of generative adversarial imitation."""

    type: str | None = "gail"


@REWARD_MODEL_REGISTRY.register("gail")
class GAILRewardModel(ExpertRewardModel[GAILConfig]):
    """A discriminator between an expert's steps and the policy's; the arguments are those of RewardModel.

    The reward of the env is not used. Loss and accuracy of the discriminator are reported.
    """

    config_class: ClassVar[type[GAILConfig]] = GAILConfig

    def __init__(self, config: GAILConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), None, "relu", keeps_vectors=True)
        size = int(self.encoder.output_size) + self.encode_action.size
        self.discriminator = MLP((size, *widths_of(config), 1), "relu", activate_last=False)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross entropy of the discriminator (eq. 17, summed over both sides), and metrics to report."""
        expert = self.logit(batch["expert_obs"], batch["expert_action"])
        own = self.logit(batch["obs"], batch["action"])
        loss = F.softplus(-expert).mean() + F.softplus(own).mean()
        accuracy = ((expert > 0).float().mean() + (own < 0).float().mean()) / 2
        return loss, {"reward_model_loss": loss.detach(), "discriminator_accuracy": accuracy.detach()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return -log(1 - D), shape (B,), which is the softplus of the logit of D: the reward to learn from."""
        return F.softplus(self.logit(batch["obs"], batch["action"]))

    def logit(self, obs: Any, action: Tensor) -> Tensor:
        """Return the logarithm of D / (1 - D), shape (B,), of observations and actions."""
        joined = torch.cat([self.encoder(obs), self.encode_action(action)], 1)
        logit: Tensor = self.discriminator(joined).squeeze(1)
        return logit
