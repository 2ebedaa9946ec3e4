"""Policies: algorithms as LightningModules."""

from lightning_ding.policy.a2c import A2CConfig, A2CPolicy
from lightning_ding.policy.awac import AWACConfig, AWACPolicy
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.base.policy import CommandModePolicy, Policy
from lightning_ding.policy.base.update.non_finite import NonFiniteError
from lightning_ding.policy.bc import BCConfig, BCPolicy
from lightning_ding.policy.c51 import C51Config, C51Policy
from lightning_ding.policy.calql import CalQLConfig, CalQLPolicy
from lightning_ding.policy.cql import CQLConfig, CQLPolicy
from lightning_ding.policy.crossq import CrossQConfig, CrossQPolicy
from lightning_ding.policy.d4pg import D4PGConfig, D4PGPolicy
from lightning_ding.policy.ddpg import DDPGConfig, DDPGPolicy
from lightning_ding.policy.discrete_cql import DiscreteCQLConfig, DiscreteCQLPolicy
from lightning_ding.policy.discrete_sac import DiscreteSACConfig, DiscreteSACPolicy
from lightning_ding.policy.dqfd import DQfDConfig, DQfDPolicy
from lightning_ding.policy.dqn import DQNConfig, DQNPolicy
from lightning_ding.policy.dt import DTConfig, DTPolicy
from lightning_ding.policy.factory import create_policy, get_policy_cls
from lightning_ding.policy.fqf import FQFConfig, FQFPolicy
from lightning_ding.policy.from_dump import Dump, load_dump
from lightning_ding.policy.from_sb3 import load_sb3_policy
from lightning_ding.policy.impala import IMPALAConfig, IMPALAPolicy
from lightning_ding.policy.iql import IQLConfig, IQLPolicy
from lightning_ding.policy.iqn import IQNConfig, IQNPolicy
from lightning_ding.policy.load import load_policy
from lightning_ding.policy.mdqn import MDQNConfig, MDQNPolicy
from lightning_ding.policy.pg import PGConfig, PGPolicy
from lightning_ding.policy.ppo import PPOConfig, PPOPolicy
from lightning_ding.policy.ppo_offpolicy import PPOOffConfig, PPOOffPolicy
from lightning_ding.policy.q_learning import QLearningConfig, QLearningPolicy
from lightning_ding.policy.qrdqn import QRDQNConfig, QRDQNPolicy
from lightning_ding.policy.r2d2 import R2D2Config, R2D2Policy
from lightning_ding.policy.rainbow import RainbowConfig, RainbowPolicy
from lightning_ding.policy.recurrent_ppo import RecurrentPPOConfig, RecurrentPPOPolicy
from lightning_ding.policy.redq import REDQConfig, REDQPolicy
from lightning_ding.policy.reference.collate import (
    default_collate,
    default_decollate,
    default_preprocess_learn,
    single_env_forward_wrapper,
)
from lightning_ding.policy.reference.policy import ReferencePolicy
from lightning_ding.policy.rlpd import RLPDConfig, RLPDPolicy
from lightning_ding.policy.sac import SACConfig, SACPolicy
from lightning_ding.policy.sqil import SQILConfig, SQILPolicy
from lightning_ding.policy.sql import SQLConfig, SQLPolicy
from lightning_ding.policy.td3 import TD3Config, TD3Policy
from lightning_ding.policy.td3_bc import TD3BCConfig, TD3BCPolicy
from lightning_ding.policy.tqc import TQCConfig, TQCPolicy

__all__ = [
    "A2CConfig",
    "A2CPolicy",
    "AWACConfig",
    "AWACPolicy",
    "BCConfig",
    "BCPolicy",
    "C51Config",
    "C51Policy",
    "CQLConfig",
    "CQLPolicy",
    "CalQLConfig",
    "CalQLPolicy",
    "CommandModePolicy",
    "CrossQConfig",
    "CrossQPolicy",
    "D4PGConfig",
    "D4PGPolicy",
    "DDPGConfig",
    "DDPGPolicy",
    "DQNConfig",
    "DQNPolicy",
    "DQfDConfig",
    "DQfDPolicy",
    "DTConfig",
    "DTPolicy",
    "DiscreteCQLConfig",
    "DiscreteCQLPolicy",
    "DiscreteSACConfig",
    "DiscreteSACPolicy",
    "Dump",
    "FQFConfig",
    "FQFPolicy",
    "IMPALAConfig",
    "IMPALAPolicy",
    "IQLConfig",
    "IQLPolicy",
    "IQNConfig",
    "IQNPolicy",
    "MDQNConfig",
    "MDQNPolicy",
    "NonFiniteError",
    "PGConfig",
    "PGPolicy",
    "PPOConfig",
    "PPOOffConfig",
    "PPOOffPolicy",
    "PPOPolicy",
    "Policy",
    "PolicyConfig",
    "QLearningConfig",
    "QLearningPolicy",
    "QRDQNConfig",
    "QRDQNPolicy",
    "R2D2Config",
    "R2D2Policy",
    "REDQConfig",
    "REDQPolicy",
    "RLPDConfig",
    "RLPDPolicy",
    "RainbowConfig",
    "RainbowPolicy",
    "RecurrentPPOConfig",
    "RecurrentPPOPolicy",
    "ReferencePolicy",
    "SACConfig",
    "SACPolicy",
    "SQILConfig",
    "SQILPolicy",
    "SQLConfig",
    "SQLPolicy",
    "TD3BCConfig",
    "TD3BCPolicy",
    "TD3Config",
    "TD3Policy",
    "TQCConfig",
    "TQCPolicy",
    "create_policy",
    "default_collate",
    "default_decollate",
    "default_preprocess_learn",
    "get_policy_cls",
    "load_dump",
    "load_policy",
    "load_sb3_policy",
    "single_env_forward_wrapper",
]
