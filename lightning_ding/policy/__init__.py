"""Policies: algorithms as LightningModules."""

from lightning_ding.utils.foreign import attach

_COLLATE = ("default_collate", "default_decollate", "default_preprocess_learn", "single_env_forward_wrapper")
_HOMES = {"ReferencePolicy": "di_engine.policies.policy", **dict.fromkeys(_COLLATE, "di_engine.policies.collate")}
__getattr__, __dir__, __all__ = attach(__name__, _HOMES, __file__)
