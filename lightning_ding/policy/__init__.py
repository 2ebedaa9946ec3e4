"""Policies: algorithms as LightningModules."""

import lazy_loader

from lightning_ding.utils.foreign import with_foreign

_of_this_package, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
_COLLATE = ("default_collate", "default_decollate", "default_preprocess_learn", "single_env_forward_wrapper")
_HOMES = {
    "ReferencePolicy": "di_engine.policies.policy",
    **dict.fromkeys(_COLLATE, "di_engine.policies.collate"),
}
__all__ += [*_HOMES]
__getattr__ = with_foreign(__name__, _HOMES, _of_this_package)


def __dir__() -> list[str]:
    """Return the public names, also of what is imported when it is used."""
    return sorted(__all__)
