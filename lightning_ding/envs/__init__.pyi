from .answers import BrokenEnvError as BrokenEnvError
from .atari import make_atari as make_atari
from .base_env import (
    BaseEnv as BaseEnv,
    BaseEnvAdapter as BaseEnvAdapter,
    BaseEnvTimestep as BaseEnvTimestep,
    make_base_env as make_base_env,
)
from .ding_env_wrapper import DingEnvWrapper as DingEnvWrapper
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
