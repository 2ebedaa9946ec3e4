"""A vector env with a process for each env, or for each few, that are watched and can be replaced."""

from lightning_ding.envs.process.error import EnvProcessError
from lightning_ding.envs.process.vector_env import ProcessVectorEnv

__all__ = ["EnvProcessError", "ProcessVectorEnv"]
