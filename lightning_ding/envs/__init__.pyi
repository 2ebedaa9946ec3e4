import lightning_ding.di_engine.base_env as _base_env
import lightning_ding.di_engine.ding_env_wrapper as _wrapper

from .answers import BrokenEnvError as BrokenEnvError
from .atari import make_atari as make_atari
from .game import GameEnv as GameEnv
from .handle import EnvHandle as EnvHandle
from .minatar import MinAtarEnv as MinAtarEnv
from .normalise import (
    NormaliseObservation as NormaliseObservation,
    NormaliseReward as NormaliseReward,
    RunningStatistics as RunningStatistics,
)
from .pettingzoo import PettingZooVectorEnv as PettingZooVectorEnv
from .process import EnvProcessError as EnvProcessError, ProcessVectorEnv as ProcessVectorEnv
from .state.codec import from_plain as from_plain, to_plain as to_plain
from .state.memo import NotPlainError as NotPlainError
from .state.state import env_state as env_state, load_env_state as load_env_state
from .stepper import EnvStepper as EnvStepper, Timestep as Timestep
from .vector import make_vector_env as make_vector_env
from .wrappers import FaultBarrier as FaultBarrier, Pausable as Pausable

BaseEnv = _base_env.BaseEnv
BaseEnvAdapter = _base_env.BaseEnvAdapter
BaseEnvTimestep = _base_env.BaseEnvTimestep
DingEnvWrapper = _wrapper.DingEnvWrapper
make_base_env = _base_env.make_base_env
