"""Random network distillation: states are new if the output of a random network for them cannot be predicted.

Paper: Burda et al. 2018 (https://arxiv.org/abs/1810.12894), section 2.2: the reward of a transition is the squared
error of a predictor that learns the output of a fixed random network for the next observation.

Where this differs: see :mod:`intrinsic` for the critic; the predictor learns from all collected transitions instead of
a quarter; the mean instead of the sum over the features, which the normalisation removes.

Shapes: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.novelty import RandomFeatures
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch
from lightning_ding.reward_model.intrinsic import IntrinsicConfig, IntrinsicRewardModel


@dataclass(frozen=True, kw_only=True)
class RNDConfig(IntrinsicConfig):
    """Keys of random network distillation."""

    type: str | None = "rnd"


@REWARD_MODEL_REGISTRY.register("rnd")
class RNDRewardModel(IntrinsicRewardModel[RNDConfig]):
    """Random network distillation; all kinds of observations and actions; the arguments are those of RewardModel.

    Example:
        >>> model = RNDRewardModel(RNDConfig(), {"obs_shape": 2, "action_shape": 3}, discount_factor=0.99)
        >>> model.score({"next_obs": torch.zeros(4, 2)}).shape
        torch.Size([4])
    """

    config_class: ClassVar[type[RNDConfig]] = RNDConfig

    def __init__(self, config: RNDConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        options = (section["obs_shape"], dict_encoder(section), config.hidden_size_list)
        self.target = RandomFeatures(*options, num_layers=1).requires_grad_(False)
        self.predictor = RandomFeatures(*options, num_layers=2)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the predictor (section 2.2), and the metrics to report."""
        loss = self._error(batch).mean()
        return loss, {"reward_model_loss": loss.detach()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return the squared error of the predictor for the next observation, shape (B,)."""
        return self._error(batch)

    def _error(self, batch: Batch) -> Tensor:
        obs = self.normalise_obs(batch["next_obs"])
        with torch.no_grad():
            target = self.target(obs)
        error: Tensor = (self.predictor(obs) - target).square().mean(1)
        return error
