"""Reward models: networks whose rewards a policy learns from, in addition to those of the env or in place of them."""

from lightning_ding.reward_model.base import ActionEncoding, RewardModel
from lightning_ding.reward_model.gail import GAILConfig, GAILRewardModel
from lightning_ding.reward_model.icm import ICMConfig, ICMRewardModel
from lightning_ding.reward_model.intrinsic import IntrinsicConfig, IntrinsicRewardModel
from lightning_ding.reward_model.rnd import RNDConfig, RNDRewardModel

__all__ = [
    "ActionEncoding",
    "GAILConfig",
    "GAILRewardModel",
    "ICMConfig",
    "ICMRewardModel",
    "IntrinsicConfig",
    "IntrinsicRewardModel",
    "RNDConfig",
    "RNDRewardModel",
    "RewardModel",
]
