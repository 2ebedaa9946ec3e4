"""DI-engine's policies of ``ding.policy`` with its names, which take configs in its keys.

``DQNPolicy(cfg.policy)`` takes what ``compile_config`` returns; a config in this package's keys, without ``type`` and
``cuda``, is taken as it is. The classes derive from those of :mod:`lightning_ding.policy`, and are made at their first
use. ``Policy`` is the base of a class of the user in DI-engine's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from easydict import EasyDict
from torch import nn

from lightning_ding import policy as ours
from lightning_ding.di_engine.keys import policy_class_of
from lightning_ding.di_engine.policies.collate import (
    default_collate,
    default_decollate,
    default_preprocess_learn,
    single_env_forward_wrapper,
)
from lightning_ding.di_engine.policy_section import CLASSES, FAMILIES, default_section, translated
from lightning_ding.di_engine.utils import global_generator
from lightning_ding.policy import CommandModePolicy, Policy

COMMAND = "CommandModePolicy"
COMMANDS = {name.removesuffix("Policy") + COMMAND: name for name in CLASSES}
"""Class for each of DI-engine's classes that also have a command mode, which all policies have here."""
OPTIMIZERS = {
    **{name: {"optimizer_critic": 0, "optimizer_actor": 1} for name in ("ddpg", "d4pg", "td3", "td3_bc")},
    **{
        name: {"optimizer_q": 0, "optimizer_policy": 1, "alpha_optim": 2}
        for name in ("sac", "discrete_sac", "cql", "edac")
    },
    "bcq": {"optimizer_q": 0, "optimizer_policy": 1, "optimizer_vae": 2},
    "pdqn": {"dis_optimizer": 0, "cont_optimizer": 1},
    "iql": {"optimizer_q": 0, "optimizer_policy": 1},
}
"""Places of the optimizers of each policy by DI-engine's names; others have one, ``optimizer``."""
__all__ = [
    *CLASSES,
    *COMMANDS,
    "CommandModePolicy",
    "Policy",
    "create_policy",
    "default_collate",
    "default_decollate",
    "default_preprocess_learn",
    "get_policy_cls",
    "set_noise_mode",
    "single_env_forward_wrapper",
]


def __getattr__(name: str) -> Any:
    known = COMMANDS.get(name, name)
    if known not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals().get(known) or _in_form(known, policy_class_of(CLASSES[known]))
    globals()[known] = globals()[name] = made
    return made


def _in_form(name: str, base: Any) -> Any:
    """Return a subclass of a policy whose configs may have DI-engine's keys."""

    class InForm(base):  # type: ignore[misc]
        ding_type = CLASSES[name]

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.rng = global_generator()  # which a Trainer replaces by the one of its run

        @classmethod
        def default_config(cls) -> EasyDict:
            """Return DI-engine's defaults as a new ``EasyDict``; the model's shapes are left open."""
            return default_section(CLASSES[name])

        def _read_config(self, cfg: Any) -> Any:
            is_theirs = isinstance(cfg, Mapping) and bool({"type", "cuda", "cfg_type"} & cfg.keys())
            self.__dict__["_asked_episodes"] = cfg.get("collect", {}).get("n_episode") if is_theirs else None
            return super()._read_config(translated(cfg, CLASSES[name]) if is_theirs else cfg)

        def get_attribute(self, name: str) -> Any:
            """Return an attribute for workers, or an optimizer by DI-engine's name of it."""
            optimizers, places = self.updater.optimizers, OPTIMIZERS.get(self.ding_type, {"optimizer": 0})
            place = places.get(name, len(optimizers))
            return optimizers[place] if place < len(optimizers) else super().get_attribute(name)

        @property
        def n_episode(self) -> int | None:
            """Episodes that a collector of whole episodes collects."""
            episodes: int | None = super().n_episode
            return self.__dict__["_asked_episodes"] if episodes is None else episodes

    InForm.__name__ = InForm.__qualname__ = name
    InForm.__module__ = __name__
    InForm.__doc__ = f"{base.__name__} of this package, which takes a config in DI-engine's keys."
    return InForm


def get_policy_cls(cfg: Mapping[str, Any]) -> Any:
    """Return the class of the policy that ``cfg["type"]`` names, with or without ``_command``."""
    kind = str(cfg["type"]).removesuffix("_command")
    names = {family: name for name, family in CLASSES.items()}
    family = FAMILIES.get(kind, kind)
    return __getattr__(names[family]) if family in names else ours.get_policy_cls(EasyDict({**cfg, "type": kind}))


def create_policy(cfg: Mapping[str, Any], **kwargs: Any) -> Any:
    """Return the policy that ``cfg["type"]`` names, made with the config and further arguments, such as ``model``."""
    return get_policy_cls(cfg)(cfg, **kwargs)


def set_noise_mode(module: nn.Module, noise_enabled: bool) -> None:
    """Set ``enable_noise`` of all layers of a network that have this attribute."""
    for layer in module.modules():
        if hasattr(layer, "enable_noise"):
            layer.enable_noise = noise_enabled  # type: ignore[assignment]
