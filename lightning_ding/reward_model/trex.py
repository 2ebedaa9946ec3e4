"""T-REX: a reward that explains the ranking of trajectories, so that a policy can become better than all of them.

Paper: Brown et al. 2019 (https://arxiv.org/abs/1904.06387), section 4.

Where this differs: one network instead of an ensemble of five; no weight decay and no early stopping on held-out pairs,
as in the authors' code; parts of a pair are as long as the shorter of both trajectories allows, instead of the shortest
of all. The sigmoid of the paper's rewards on Atari is the option ``bounded``.

Shapes: K trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.preference import Integers, PreferenceConfig, PreferenceRewardModel


@dataclass(frozen=True, kw_only=True)
class TREXConfig(PreferenceConfig):
    """Keys of T-REX."""

    type: str | None = "trex"
    ranking: Literal["return", "order"] = "return"
    """trex: rank the trajectories of the data set by their ``return`` in the env, those with the same return alike, or
    by their ``order`` in the data set, from the worst to the best."""


@REWARD_MODEL_REGISTRY.register("trex")
class TREXRewardModel(PreferenceRewardModel[TREXConfig]):
    """A reward of observations from ranked trajectories; the arguments are those of RewardModel.

    The reward of the env is used for the ranking only. Loss and accuracy of the preferences are reported.
    """

    config_class: ClassVar[type[TREXConfig]] = TREXConfig

    def ranks(self, data: Any) -> Integers:
        """Return the rank of each trajectory, from 0 for the worst, shape (K,)."""
        if self.config.ranking == "order":
            return np.arange(len(data.bounds()) - 1)
        return np.unique(data.returns(), return_inverse=True)[1].reshape(-1)
