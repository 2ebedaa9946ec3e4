"""D-REX: a reward from trajectories of one policy with more and more noise, ranked by the noise, without a reward.

Paper: Brown et al. 2020 (https://arxiv.org/abs/1907.03976), section 4: demonstrations are cloned, the clone plays with
random actions in a share of the steps, and the less of them, the better is the trajectory. The reward is learned as in
:mod:`trex`. The command ``lightning-ding collect --noise`` plays.

Where this differs: see :mod:`trex`.

Shapes: K trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lightning_ding.config import require
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from lightning_ding.reward_model.preference import Integers, PreferenceConfig, PreferenceRewardModel


@dataclass(frozen=True, kw_only=True)
class DREXConfig(PreferenceConfig):
    """Keys of D-REX."""

    type: str | None = "drex"
    num_trajs_per_bin: int = 20
    """drex: trajectories of each level of noise, >= 1. They follow each other in the data set, from the level with
    the most noise to that with the least."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_trajs_per_bin >= 1, "reward_model.num_trajs_per_bin", ">= 1", self.num_trajs_per_bin)


@REWARD_MODEL_REGISTRY.register("drex")
class DREXRewardModel(PreferenceRewardModel[DREXConfig]):
    """A reward of observations from trajectories ranked by noise; the arguments are those of RewardModel.

    The reward of the env is never used. Loss and accuracy of the preferences are reported.
    """

    config_class: ClassVar[type[DREXConfig]] = DREXConfig

    def ranks(self, data: Any) -> Integers:
        """Return the rank of each trajectory, from 0 for the most noise, shape (K,).

        Raises:
            ValueError: If the last level has less trajectories than the others.
        """
        count, size = len(data.bounds()) - 1, self.config.num_trajs_per_bin
        allowed = f"a divisor of the number of trajectories in {self.config.data_path} ({count})"
        require(count % size == 0, "reward_model.num_trajs_per_bin", allowed, size)
        return np.arange(count) // size
