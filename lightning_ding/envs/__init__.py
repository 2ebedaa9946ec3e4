"""Vector environments: making them, and stepping them the same way in every autoreset mode.

Names are imported when they are first used, so that the processes of envs do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.envs.atari import make_atari
    from lightning_ding.envs.contract import BrokenEnvError
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
    "BrokenEnvError",
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
    "make_atari",
    "make_vector_env",
    "to_plain",
]

_HOMES = {
    "BrokenEnvError": "contract",
    "EnvProcessError": "process",
    "EnvStepper": "stepper",
    "FaultBarrier": "fault",
    "NormaliseObservation": "normalise",
    "NormaliseReward": "normalise",
    "NotPlainError": "shared",
    "Pausable": "pause",
    "PettingZooVectorEnv": "pettingzoo",
    "ProcessVectorEnv": "process",
    "RunningStatistics": "statistics",
    "Timestep": "stepper",
    "env_state": "state",
    "from_plain": "plain",
    "load_env_state": "state",
    "make_atari": "atari",
    "make_vector_env": "vector",
    "to_plain": "plain",
}

if not TYPE_CHECKING:  # or a type checker would take any name

    def __getattr__(name: str) -> Any:
        """Return a public name from the module that defines it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        """Return the public names, those included that nobody has used."""
        return sorted({*globals(), *__all__})
