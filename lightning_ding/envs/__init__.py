"""Vector envs: creating them, and stepping them in the same way in every autoreset mode.

Names are imported at their first use, so that env processes do not import torch.
"""

import lazy_loader

from lightning_ding.utils.foreign import with_foreign

_of_this_package, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
_BASE_ENV = ("BaseEnv", "BaseEnvAdapter", "BaseEnvTimestep", "make_base_env")
_HOMES = {
    "DingEnvWrapper": "di_engine.ding_env_wrapper",
    **dict.fromkeys(_BASE_ENV, "di_engine.base_env"),
}
__all__ += [*_HOMES]
__getattr__ = with_foreign(__name__, _HOMES, _of_this_package)


def __dir__() -> list[str]:
    """Return the public names, also of what is imported when it is used."""
    return sorted(__all__)
