"""Random expert distillation: the reward is large where the output of a random network could be learned from an expert.

Paper: Wang et al. 2019 (https://arxiv.org/abs/1905.06750), section 3: a predictor learns the output of a fixed random
network on the expert's steps alone, before the policy learns. The reward is ``exp(-sigma * error)``, which is 1 for a
step of the expert whose output is learned perfectly, and falls towards 0 away from the expert.

Where this differs: the mean instead of the sum over the features; one factor ``sigma`` for all tasks by default, where
the authors choose it so that the expert's rewards are about 1.

Shapes: B batch, E steps of the expert, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import ActionEncoding, Batch, widths_of
from lightning_ding.reward_model.expert import ExpertConfig, ExpertRewardModel


@dataclass(frozen=True, kw_only=True)
class REDConfig(ExpertConfig):
    """Keys of random expert distillation."""

    type: str | None = "red"
    sigma: float = 0.5
    """red: factor of the error in the exponent of the reward, > 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.sigma > 0, "reward_model.sigma", "> 0", self.sigma)
        allowed, rounds = "1 with red, which does not learn from collected transitions", self.clear_buffer_per_iters
        require(rounds == 1, "reward_model.clear_buffer_per_iters", allowed, rounds)


class StepFeatures(nn.Module):
    """Features of an observation and an action.

    Args:
        section: The ``model`` section of the policy's config.
        widths: Widths of the layers; the last one is F.
    """

    def __init__(self, section: Mapping[str, Any], widths: Any) -> None:
        super().__init__()
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), None, "relu", keeps_vectors=True)
        self.encode_action = ActionEncoding(section)
        size = int(self.encoder.output_size) + self.encode_action.size
        self.layers = MLP((size, *widths), "tanh", activate_last=True)

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        """Return features, shape (B, F)."""
        features: Tensor = self.layers(torch.cat([self.encoder(obs), self.encode_action(action)], 1))
        return features


@REWARD_MODEL_REGISTRY.register("red")
class REDRewardModel(ExpertRewardModel[REDConfig]):
    """Random expert distillation; the arguments are those of RewardModel. The reward of the env is not used."""

    config_class: ClassVar[type[REDConfig]] = REDConfig
    trains_once: ClassVar[bool] = True

    def __init__(self, config: REDConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.target = StepFeatures(section, widths_of(config)).requires_grad_(False)
        self.predictor = StepFeatures(section, widths_of(config))

    def bind(self, policy: Any) -> None:
        """Read the expert's data, with actions in the units of the policy's network.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        normal = policy.normaliser.kinds["norm_obs"]
        allowed = "False with reward_model.type 'red', which learns before there are statistics of observations"
        require(not normal, "norm_obs", allowed, normal)
        super().bind(policy)

    def draw_lessons(self, draws: Any) -> int:
        """Return E."""
        return len(self._expert["action"])

    def lesson(self, rows: Tensor) -> dict[str, Any]:
        """Return ``obs`` and ``action`` of some steps of the expert."""
        device = next(self.parameters()).device
        found: dict[str, Any] = nested.to(nested.index(self._expert, rows), device)  # type: ignore[assignment]
        return found

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean squared error of the predictor (eq. 3), and the metrics to report."""
        loss = self._error(batch).mean()
        return loss, {"reward_model_loss": loss.detach()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return ``exp(-sigma * error)``, shape (B,) (eq. 4)."""
        return torch.exp(-self.config.sigma * self._error(batch))

    def _error(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            target = self.target(batch["obs"], batch["action"])
        error: Tensor = (self.predictor(batch["obs"], batch["action"]) - target).square().mean(1)
        return error
