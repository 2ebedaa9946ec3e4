"""Networks, and the registries that a config chooses them from."""

from lightning_ding.model.dqn import DQN
from lightning_ding.model.encoder import ConvEncoder, DictEncoder, MLPEncoder, create_encoder
from lightning_ding.model.factory import create_model
from lightning_ding.model.head import DiscreteHead, DuelingHead, MultiHead

__all__ = [
    "DQN",
    "ConvEncoder",
    "DictEncoder",
    "DiscreteHead",
    "DuelingHead",
    "MLPEncoder",
    "MultiHead",
    "create_encoder",
    "create_model",
]
