"""Generative adversarial imitation: the reward is how much a discriminator takes a step for one of an expert.

Paper: Ho and Ermon 2016 (https://arxiv.org/abs/1606.03476), algorithm 1. Here D is the probability that an observation
and an action are the expert's; the paper's D is that of the policy, 1 - D.

Where this differs: any policy instead of TRPO; no term of the causal entropy, which a policy's ``entropy_weight``
replaces. The reward is -log(1 - D), which is never negative: it suits tasks in which long
episodes are good (Kostrikov et al. 2019, section 4.1, https://arxiv.org/abs/1809.02925).

Shapes: B batch, U minibatches, F features, A width of an encoded action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.model.dict_encoders import dict_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.base import Batch, RewardModel, widths_of
from lightning_ding.reward_model.config import RewardModelConfig


@dataclass(frozen=True, kw_only=True)
class GAILConfig(RewardModelConfig):
    """Keys of generative adversarial imitation."""

    type: str | None = "gail"
    data_path: str = ""
    """gail: the expert's data set: path of an .npz file or of a buffer's .safetensors file, or id of a Minari data
    set; must be set."""
    collect_count: int | None = None
    """gail: transitions of the expert to use, the first of the data set, >= 1; None for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.collect_count
        require(count is None or count >= 1, "reward_model.collect_count", ">= 1 or None", count)


@REWARD_MODEL_REGISTRY.register("gail")
class GAILRewardModel(RewardModel[GAILConfig]):
    """A discriminator between an expert's steps and the policy's; the arguments are those of RewardModel.

    The reward of the env is not used. Loss and accuracy of the discriminator are reported.
    """

    config_class: ClassVar[type[GAILConfig]] = GAILConfig

    def __init__(self, config: GAILConfig, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self.encoder = encoder_for(section["obs_shape"], dict_encoder(section), None, "relu", keeps_vectors=True)
        size = int(self.encoder.output_size) + self.encode_action.size
        self.discriminator = MLP((size, *widths_of(config), 1), "relu", activate_last=False)
        self._expert: Any = None
        self._read_obs: Any = None

    def bind(self, policy: Any) -> None:
        """Read the expert's data, with actions in the units of the policy's network.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        config, section = self.config, policy.config.model
        require(bool(config.data_path), "reward_model.data_path", "the expert's data set with gail", config.data_path)
        columns = load_dataset(config.data_path)
        kept = slice(0, config.collect_count)
        rows: Any = nested.index({name: columns.columns[name] for name in ("obs", "action")}, kept)
        expert = policy.normaliser.tensors(rows)
        if not columns.starts_at_zero:
            expert["action"] = policy.action_start.from_env(expert["action"])
        expert["action"] = policy.learner.rewards.in_network_units(expert["action"], is_rollout=False)
        shape, seen = section.obs_shape, expert["obs"]
        fits = isinstance(seen, Mapping) or not isinstance(shape, int) or seen[0].numel() == shape
        require(fits, "reward_model.data_path", f"a data set with observations of {shape} numbers", config.data_path)
        choices = self.encode_action.choices
        chosen = None if choices is None else expert["action"].reshape(-1, len(choices))
        is_known = chosen is None or bool(((chosen >= 0) & (chosen < torch.tensor(choices))).all())
        allowed = f"a data set of {section.action_shape} actions"
        require(is_known, "reward_model.data_path", allowed, config.data_path)
        self._expert, self._read_obs = expert, policy.normaliser.normalise_obs

    def prepare(self, batch: Mapping[str, Any], draws: Any) -> dict[str, Any]:
        """Return minibatches with as many steps of the expert, ``expert_obs`` and ``expert_action``, (U, B, ...)."""
        rows = draws.integers(len(self._expert["action"]), size=batch["reward"].shape)
        drawn: Any = nested.to(nested.index(self._expert, torch.from_numpy(rows)), batch["reward"].device)
        return {**batch, "expert_obs": self._read_obs(drawn["obs"]), "expert_action": drawn["action"]}

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
