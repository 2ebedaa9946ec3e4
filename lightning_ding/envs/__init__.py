"""Vector envs: creating them, and stepping them in the same way in every autoreset mode.

Names are imported at their first use, so that env processes do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ding.envs.answers import BrokenEnvError as BrokenEnvError
    from lightning_ding.envs.atari import make_atari as make_atari
    from lightning_ding.envs.base_env import BaseEnv as BaseEnv
    from lightning_ding.envs.base_env import BaseEnvAdapter as BaseEnvAdapter
    from lightning_ding.envs.base_env import BaseEnvTimestep as BaseEnvTimestep
    from lightning_ding.envs.base_env import make_base_env as make_base_env
    from lightning_ding.envs.ding_env_wrapper import DingEnvWrapper as DingEnvWrapper
    from lightning_ding.envs.game import GameEnv as GameEnv
    from lightning_ding.envs.handle import EnvHandle as EnvHandle
    from lightning_ding.envs.minatar import MinAtarEnv as MinAtarEnv
    from lightning_ding.envs.normalise import NormaliseObservation as NormaliseObservation
    from lightning_ding.envs.normalise import NormaliseReward as NormaliseReward
    from lightning_ding.envs.normalise import RunningStatistics as RunningStatistics
    from lightning_ding.envs.pettingzoo import PettingZooVectorEnv as PettingZooVectorEnv
    from lightning_ding.envs.process import EnvProcessError as EnvProcessError
    from lightning_ding.envs.process import ProcessVectorEnv as ProcessVectorEnv
    from lightning_ding.envs.state.codec import from_plain as from_plain
    from lightning_ding.envs.state.codec import to_plain as to_plain
    from lightning_ding.envs.state.memo import NotPlainError as NotPlainError
    from lightning_ding.envs.state.state import env_state as env_state
    from lightning_ding.envs.state.state import load_env_state as load_env_state
    from lightning_ding.envs.stepper import EnvStepper as EnvStepper
    from lightning_ding.envs.stepper import Timestep as Timestep
    from lightning_ding.envs.vector import make_vector_env as make_vector_env
    from lightning_ding.envs.wrappers import FaultBarrier as FaultBarrier
    from lightning_ding.envs.wrappers import Pausable as Pausable

_HOMES = {
    "BaseEnv": "base_env",
    "BaseEnvAdapter": "base_env",
    "BaseEnvTimestep": "base_env",
    "BrokenEnvError": "answers",
    "DingEnvWrapper": "ding_env_wrapper",
    "EnvHandle": "handle",
    "EnvProcessError": "process",
    "EnvStepper": "stepper",
    "FaultBarrier": "wrappers",
    "GameEnv": "game",
    "MinAtarEnv": "minatar",
    "NormaliseObservation": "normalise",
    "NormaliseReward": "normalise",
    "NotPlainError": "state.memo",
    "Pausable": "wrappers",
    "PettingZooVectorEnv": "pettingzoo",
    "ProcessVectorEnv": "process",
    "RunningStatistics": "normalise",
    "Timestep": "stepper",
    "env_state": "state.state",
    "from_plain": "state.codec",
    "load_env_state": "state.state",
    "make_atari": "atari",
    "make_base_env": "base_env",
    "make_vector_env": "vector",
    "to_plain": "state.codec",
}
__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a type checker would otherwise accept any name

    def __getattr__(name: str) -> Any:
        """Return a public name from the module that defines it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        """Return the names of the module, including public names that are not imported yet."""
        return sorted({*globals(), *__all__})
