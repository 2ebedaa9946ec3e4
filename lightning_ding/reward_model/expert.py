"""The base of reward models that learn from the steps of an expert, read from a data set.

Shapes: B batch, U minibatches, E steps of the expert, A width of an encoded action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.reward_model.base import RewardModel
from lightning_ding.reward_model.config import RewardModelConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig(RewardModelConfig):
    """The key of the models that learn from a data set."""

    data_path: str = ""
    """gail, guided_cost, red, pdeil, pwil: the expert's data set; trex, drex: the ranked trajectories. Path of an .npz
    file or of a buffer's .safetensors file, or id of a Minari data set; must be set."""


@dataclass(frozen=True, kw_only=True)
class ExpertConfig(DataConfig):
    """Keys of the models that learn from an expert."""

    collect_count: int | None = None
    """gail, guided_cost, red, pdeil, pwil: transitions of the expert to use, the first of the data set, >= 1; None for
    all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.collect_count
        require(count is None or count >= 1, "reward_model.collect_count", ">= 1 or None", count)


ExpertConfigT = TypeVar("ExpertConfigT", bound=ExpertConfig)


class ExpertRewardModel(RewardModel[ExpertConfigT]):
    """A reward model with the steps of an expert; the arguments are those of RewardModel."""

    def __init__(self, config: ExpertConfigT, section: Mapping[str, Any], discount_factor: float) -> None:
        super().__init__(config, section, discount_factor)
        self._expert: Any = None
        self._read_obs: Any = None

    def bind(self, policy: Any) -> None:
        """Read the expert's data, with actions in the units of the policy's network.

        Raises:
            ValueError: If there is no such data set, or it does not fit the policy.
        """
        config, section = self.config, policy.config.model
        require(
            bool(config.data_path),
            "reward_model.data_path",
            f"the expert's data set with {config.type}",
            config.data_path,
        )
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
