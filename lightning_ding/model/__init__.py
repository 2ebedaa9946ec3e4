"""Networks, and the registries that a config chooses them from."""

from lightning_ding.model.actor import GaussianHead, HybridHead, StateDependentSigma, create_actor
from lightning_ding.model.c51 import C51DQN
from lightning_ding.model.core import RecurrentCore
from lightning_ding.model.discrete_qac import DiscreteQAC
from lightning_ding.model.dqn import DQN
from lightning_ding.model.drqn import DRQN
from lightning_ding.model.encoder import DictEncoder, MLPEncoder, create_encoder
from lightning_ding.model.ensemble import EnsembleMLP
from lightning_ding.model.factory import create_model
from lightning_ding.model.fqf import FQF
from lightning_ding.model.heads import DiscreteHead, DistributionHead, DuelingHead, MultiHead
from lightning_ding.model.image_encoders import ConvEncoder, ImpalaEncoder
from lightning_ding.model.iqn import IQN, QuantileHead
from lightning_ding.model.pg import PG
from lightning_ding.model.qac import ContinuousQAC
from lightning_ding.model.qrdqn import QRDQN
from lightning_ding.model.rainbow import NoisyLinear, NoisyMLP, RainbowDQN
from lightning_ding.model.recurrent_vac import RecurrentVAC
from lightning_ding.model.separate_encoder import SeparateEncoder
from lightning_ding.model.vac import VAC
from lightning_ding.model.wrappers import model_wrap

__all__ = [
    "C51DQN",
    "DQN",
    "DRQN",
    "FQF",
    "IQN",
    "PG",
    "QRDQN",
    "VAC",
    "ContinuousQAC",
    "ConvEncoder",
    "DictEncoder",
    "DiscreteHead",
    "DiscreteQAC",
    "DistributionHead",
    "DuelingHead",
    "EnsembleMLP",
    "GaussianHead",
    "HybridHead",
    "ImpalaEncoder",
    "MLPEncoder",
    "MultiHead",
    "NoisyLinear",
    "NoisyMLP",
    "QuantileHead",
    "RainbowDQN",
    "RecurrentCore",
    "RecurrentVAC",
    "SeparateEncoder",
    "StateDependentSigma",
    "create_actor",
    "create_encoder",
    "create_model",
    "model_wrap",
]
