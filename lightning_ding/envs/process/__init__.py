"""A vector env that runs its envs in supervised processes, which can be replaced if they fail."""

from lightning_ding.envs.process.errors import EnvProcessError
from lightning_ding.envs.process.vector_env import ProcessVectorEnv

__all__ = ["EnvProcessError", "ProcessVectorEnv"]
