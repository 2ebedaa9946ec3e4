"""Policies: algorithms as LightningModules."""

from lightning_ding.policy.a2c import A2CPolicy
from lightning_ding.policy.a2c_config import A2CConfig
from lightning_ding.policy.base import Policy
from lightning_ding.policy.c51 import C51Policy
from lightning_ding.policy.c51_config import C51Config
from lightning_ding.policy.command import CommandModePolicy
from lightning_ding.policy.config import PolicyConfig
from lightning_ding.policy.ddpg import DDPGPolicy
from lightning_ding.policy.ddpg_config import DDPGConfig, TD3Config
from lightning_ding.policy.dqn import DQNPolicy
from lightning_ding.policy.dqn_config import DQNConfig
from lightning_ding.policy.factory import create_policy, get_policy_cls
from lightning_ding.policy.non_finite import NonFiniteError
from lightning_ding.policy.non_finite_dump import Dump, load_dump
from lightning_ding.policy.pg import PGPolicy
from lightning_ding.policy.pg_config import PGConfig
from lightning_ding.policy.ppo import PPOPolicy
from lightning_ding.policy.ppo_config import PPOConfig
from lightning_ding.policy.q_learning import QLearningPolicy
from lightning_ding.policy.q_learning_config import QLearningConfig
from lightning_ding.policy.qrdqn import QRDQNPolicy
from lightning_ding.policy.qrdqn_config import QRDQNConfig
from lightning_ding.policy.rainbow import RainbowPolicy
from lightning_ding.policy.rainbow_config import RainbowConfig
from lightning_ding.policy.sac import SACPolicy
from lightning_ding.policy.sac_config import SACConfig
from lightning_ding.policy.td3 import TD3Policy

__all__ = [
    "A2CConfig",
    "A2CPolicy",
    "C51Config",
    "C51Policy",
    "CommandModePolicy",
    "DDPGConfig",
    "DDPGPolicy",
    "DQNConfig",
    "DQNPolicy",
    "Dump",
    "NonFiniteError",
    "PGConfig",
    "PGPolicy",
    "PPOConfig",
    "PPOPolicy",
    "Policy",
    "PolicyConfig",
    "QLearningConfig",
    "QLearningPolicy",
    "QRDQNConfig",
    "QRDQNPolicy",
    "RainbowConfig",
    "RainbowPolicy",
    "SACConfig",
    "SACPolicy",
    "TD3Config",
    "TD3Policy",
    "create_policy",
    "get_policy_cls",
    "load_dump",
]
