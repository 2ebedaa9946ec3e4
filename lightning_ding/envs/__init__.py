"""Vector environments: making them, and stepping them the same way in every autoreset mode."""

from lightning_ding.envs.fault import FaultBarrier
from lightning_ding.envs.normalise import NormaliseObservation, NormaliseReward
from lightning_ding.envs.pause import Pausable
from lightning_ding.envs.pettingzoo import PettingZooVectorEnv
from lightning_ding.envs.plain import from_plain, to_plain
from lightning_ding.envs.process import EnvProcessError, ProcessVectorEnv
from lightning_ding.envs.shared import NotPlainError
from lightning_ding.envs.state import env_state, load_env_state
from lightning_ding.envs.statistics import RunningStatistics
from lightning_ding.envs.stepper import EnvStepper, Timestep
from lightning_ding.envs.vector import make_vector_env

__all__ = [
    "EnvProcessError",
    "EnvStepper",
    "FaultBarrier",
    "NormaliseObservation",
    "NormaliseReward",
    "NotPlainError",
    "Pausable",
    "PettingZooVectorEnv",
    "ProcessVectorEnv",
    "RunningStatistics",
    "Timestep",
    "env_state",
    "from_plain",
    "load_env_state",
    "make_vector_env",
    "to_plain",
]
