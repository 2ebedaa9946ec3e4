"""Intrinsic curiosity: a transition is new if its next features cannot be predicted from its features and its action.

Paper: Pathak et al. 2017 (https://arxiv.org/abs/1705.05363), eq. 2 to 7. Features are learned together with an inverse
model, which predicts the action from the features before and after it, so they contain what actions can change.

Where this differs: observations and the intrinsic reward are normalised as in Burda et al. 2018, section 2.1
(https://arxiv.org/abs/1808.04355), see :mod:`intrinsic`; continuous actions have a squared error.

Shapes: B batch, F features, A width of an encoded action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding.config import require
from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch
from lightning_ding.reward_model.intrinsic import IntrinsicConfig, IntrinsicRewardModel


@dataclass(frozen=True, kw_only=True)
class ICMConfig(IntrinsicConfig):
    """Keys of intrinsic curiosity."""

    type: str | None = "icm"
    reverse_scale: float = 4.0
    """icm: weight of the inverse model's loss, that of the forward model is 1; > 0. The paper has 0.8 and 0.2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.reverse_scale > 0, "reward_model.reverse_scale", "> 0", self.reverse_scale)


@REWARD_MODEL_REGISTRY.register("icm")
class ICMRewardModel(IntrinsicRewardModel[ICMConfig]):
    """Intrinsic curiosity for discrete and continuous actions; the arguments are those of RewardModel.

    Example:
        >>> model = ICMRewardModel(ICMConfig(), {"obs_shape": 2, "action_shape": 3}, discount_factor=0.99)
        >>> batch = {"obs": torch.zeros(4, 2), "next_obs": torch.ones(4, 2), "action": torch.tensor([0, 1, 2, 0])}
        >>> model.score(batch).shape
        torch.Size([4])
    """

    config_class: ClassVar[type[ICMConfig]] = ICMConfig

    def __init__(self, config: ICMConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), config.hidden_size_list, "relu")
        features, actions = int(self.encoder.output_size), self.encode_action.size
        self.inverse_model = MLP((2 * features, features, actions), "relu", activate_last=False)
        self.forward_model = MLP((features + actions, features, features), "relu", activate_last=False)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the inverse and of the forward model (eq. 7 without the policy), and their metrics."""
        features, following = self._features(batch)
        predicted = self.inverse_model(torch.cat([features, following], 1))
        inverse = self._inverse_loss(predicted, batch["action"])
        forward = self._forward_error(features, following, batch).mean()
        loss = self.config.reverse_scale * inverse + forward
        report = {"reward_model_loss": loss, "inverse_loss": inverse, "forward_loss": forward}
        return loss, {name: value.detach() for name, value in report.items()}

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return half the squared error of the forward model (eq. 6 without its factor), shape (B,)."""
        return self._forward_error(*self._features(batch), batch)

    def _features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        before, after = (self.encoder(self.normalise_obs(batch[name])) for name in ("obs", "next_obs"))
        return before, after

    def _forward_error(self, features: Tensor, following: Tensor, batch: Batch) -> Tensor:
        predicted = self.forward_model(torch.cat([features, self.encode_action(batch["action"])], 1))
        error: Tensor = 0.5 * (predicted - following).square().sum(1)  # eq. 5
        return error

    def _inverse_loss(self, predicted: Tensor, action: Tensor) -> Tensor:
        choices = self.encode_action.choices
        if choices is None:
            return F.mse_loss(predicted, self.encode_action(action))
        columns = action.long().reshape(len(action), len(choices))
        parts = zip(predicted.split(choices, dim=1), columns.unbind(1), strict=True)
        return torch.stack([F.cross_entropy(logit, column) for logit, column in parts]).sum()
