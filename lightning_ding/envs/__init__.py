"""Vector envs: creating them, and stepping them in the same way in every autoreset mode.

Names are imported at their first use, so that env processes do not import torch.
"""

from lightning_ding.utils.foreign import attach

_BASE_ENV = ("BaseEnv", "BaseEnvAdapter", "BaseEnvTimestep", "make_base_env")
_HOMES = {"DingEnvWrapper": "di_engine.ding_env_wrapper", **dict.fromkeys(_BASE_ENV, "di_engine.base_env")}
__getattr__, __dir__, __all__ = attach(__name__, _HOMES, __file__)
