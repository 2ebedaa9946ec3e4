"""Policies: algorithms as LightningModules."""

from lightning_ding.policy.base import Policy
from lightning_ding.policy.command import CommandModePolicy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.dqn import DQNPolicy
from lightning_ding.policy.dqn_config import DQNConfig
from lightning_ding.policy.factory import create_policy, get_policy_cls

__all__ = ["CommandModePolicy", "DQNConfig", "DQNPolicy", "Policy", "PolicyConfig", "create_policy", "get_policy_cls"]
