import lightning_ding.di_engine.policies.collate as _collate
import lightning_ding.di_engine.policies.policy as _foreign

from .a2c import A2CConfig as A2CConfig, A2CPolicy as A2CPolicy
from .acer import ACERConfig as ACERConfig, ACERPolicy as ACERPolicy
from .awac import AWACConfig as AWACConfig, AWACPolicy as AWACPolicy
from .base.config import PolicyConfig as PolicyConfig
from .base.dump import NonFiniteError as NonFiniteError
from .base.policy import CommandModePolicy as CommandModePolicy, Policy as Policy
from .bc import BCConfig as BCConfig, BCPolicy as BCPolicy
from .bcq import BCQConfig as BCQConfig, BCQPolicy as BCQPolicy
from .bdq import BDQConfig as BDQConfig, BDQPolicy as BDQPolicy
from .bro import BROConfig as BROConfig, BROPolicy as BROPolicy
from .c51 import C51Config as C51Config, C51Policy as C51Policy
from .calql import CalQLConfig as CalQLConfig, CalQLPolicy as CalQLPolicy
from .cql import CQLConfig as CQLConfig, CQLPolicy as CQLPolicy
from .crossq import CrossQConfig as CrossQConfig, CrossQPolicy as CrossQPolicy
from .d4pg import D4PGConfig as D4PGConfig, D4PGPolicy as D4PGPolicy
from .ddpg import DDPGConfig as DDPGConfig, DDPGPolicy as DDPGPolicy
from .discrete_cql import DiscreteCQLConfig as DiscreteCQLConfig, DiscreteCQLPolicy as DiscreteCQLPolicy
from .discrete_sac import DiscreteSACConfig as DiscreteSACConfig, DiscreteSACPolicy as DiscreteSACPolicy
from .dqfd import DQfDConfig as DQfDConfig, DQfDPolicy as DQfDPolicy
from .dqn import DQNConfig as DQNConfig, DQNPolicy as DQNPolicy
from .dreamerv3 import DreamerV3Policy as DreamerV3Policy
from .dreamerv3_options import DreamerV3Config as DreamerV3Config
from .dt import DTConfig as DTConfig, DTPolicy as DTPolicy
from .edac import EDACConfig as EDACConfig, EDACPolicy as EDACPolicy
from .factory import create_policy as create_policy, get_policy_cls as get_policy_cls
from .fqf import FQFConfig as FQFConfig, FQFPolicy as FQFPolicy
from .from_dump import Dump as Dump, load_dump as load_dump
from .from_sb3 import load_sb3_policy as load_sb3_policy
from .impala import IMPALAConfig as IMPALAConfig, IMPALAPolicy as IMPALAPolicy
from .iql import IQLConfig as IQLConfig, IQLPolicy as IQLPolicy
from .iqn import IQNConfig as IQNConfig, IQNPolicy as IQNPolicy
from .load import load_policy as load_policy
from .mbpo import MBPOConfig as MBPOConfig, MBPOPolicy as MBPOPolicy
from .mdqn import MDQNConfig as MDQNConfig, MDQNPolicy as MDQNPolicy
from .ngu import NGUConfig as NGUConfig, NGUPolicy as NGUPolicy
from .pdqn import PDQNConfig as PDQNConfig, PDQNPolicy as PDQNPolicy
from .pg import PGConfig as PGConfig, PGPolicy as PGPolicy
from .ppg import PPGConfig as PPGConfig, PPGPolicy as PPGPolicy
from .ppg_offpolicy import PPGOffConfig as PPGOffConfig, PPGOffPolicy as PPGOffPolicy
from .ppo import PPOConfig as PPOConfig, PPOPolicy as PPOPolicy
from .ppo_offpolicy import PPOOffConfig as PPOOffConfig, PPOOffPolicy as PPOOffPolicy
from .pqn import PQNConfig as PQNConfig, PQNPolicy as PQNPolicy
from .q_learning import QLearningConfig as QLearningConfig, QLearningPolicy as QLearningPolicy
from .qrdqn import QRDQNConfig as QRDQNConfig, QRDQNPolicy as QRDQNPolicy
from .r2d2 import R2D2Config as R2D2Config, R2D2Policy as R2D2Policy
from .r2d3 import R2D3Config as R2D3Config, R2D3Policy as R2D3Policy
from .rainbow import RainbowConfig as RainbowConfig, RainbowPolicy as RainbowPolicy
from .recurrent_ppo import RecurrentPPOConfig as RecurrentPPOConfig, RecurrentPPOPolicy as RecurrentPPOPolicy
from .redq import REDQConfig as REDQConfig, REDQPolicy as REDQPolicy
from .rlpd import RLPDConfig as RLPDConfig, RLPDPolicy as RLPDPolicy
from .sac import SACConfig as SACConfig, SACPolicy as SACPolicy
from .sqil import SQILConfig as SQILConfig, SQILPolicy as SQILPolicy
from .sql import SQLConfig as SQLConfig, SQLPolicy as SQLPolicy
from .sqn import SQNConfig as SQNConfig, SQNPolicy as SQNPolicy
from .td3 import TD3Config as TD3Config, TD3Policy as TD3Policy
from .td3_bc import TD3BCConfig as TD3BCConfig, TD3BCPolicy as TD3BCPolicy
from .td7 import TD7Config as TD7Config, TD7Policy as TD7Policy
from .tdmpc2 import TDMPC2Policy as TDMPC2Policy
from .tdmpc2_options import TDMPC2Config as TDMPC2Config
from .teams.coma import COMAConfig as COMAConfig, COMAPolicy as COMAPolicy
from .teams.happo import HAPPOConfig as HAPPOConfig, HAPPOPolicy as HAPPOPolicy
from .teams.iql_ma import IQLMAPolicy as IQLMAPolicy
from .teams.maddpg import MADDPGConfig as MADDPGConfig, MADDPGPolicy as MADDPGPolicy
from .teams.madqn import MADQNConfig as MADQNConfig, MADQNPolicy as MADQNPolicy
from .teams.mappo import (
    IPPOPolicy as IPPOPolicy,
    MAPPOConfig as MAPPOConfig,
    MAPPOPolicy as MAPPOPolicy,
    RecurrentMAPPOConfig as RecurrentMAPPOConfig,
    RecurrentMAPPOPolicy as RecurrentMAPPOPolicy,
)
from .teams.masac import MASACConfig as MASACConfig, MASACPolicy as MASACPolicy
from .teams.mat import MATConfig as MATConfig, MATPolicy as MATPolicy
from .teams.qmix import QMIXConfig as QMIXConfig, QMIXPolicy as QMIXPolicy
from .teams.qtran import QTRANConfig as QTRANConfig, QTRANPolicy as QTRANPolicy
from .teams.team_q import TeamQConfig as TeamQConfig
from .teams.vdn import VDNPolicy as VDNPolicy
from .teams.wqmix import WQMIXConfig as WQMIXConfig, WQMIXPolicy as WQMIXPolicy
from .tqc import TQCConfig as TQCConfig, TQCPolicy as TQCPolicy
from .trpo import TRPOConfig as TRPOConfig, TRPOPolicy as TRPOPolicy
from .xqc import XQCConfig as XQCConfig, XQCPolicy as XQCPolicy

ReferencePolicy = _foreign.ReferencePolicy
default_collate = _collate.default_collate
default_decollate = _collate.default_decollate
default_preprocess_learn = _collate.default_preprocess_learn
single_env_forward_wrapper = _collate.single_env_forward_wrapper
