"""DI-engine's policies of ``ding.policy`` with its names, which take configs in its keys.

``DQNPolicy(cfg.policy)`` takes what ``compile_config`` returns; a config in this package's keys, without ``type`` and
``cuda``, is taken as it is. The classes derive from those of :mod:`lightning_ding.policy`, and are made at their first
use. ``Policy`` is the base of a class of the user in DI-engine's form.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from easydict import EasyDict
from torch import nn

from lightning_ding import policy as ours
from lightning_ding.config import require
from lightning_ding.di_engine.policies.collate import (
    default_collate,
    default_decollate,
    default_preprocess_learn,
    single_env_forward_wrapper,
)
from lightning_ding.policy import CommandModePolicy, Policy
from lightning_ding.registry import POLICY_REGISTRY

FAMILIES = {
    "bc": "bc",
    "cql_discrete": "discrete_cql",
    "sac_discrete": "discrete_sac",
    "discrete_cql": "discrete_cql",
    "discrete_sac": "discrete_sac",
}
"""Types of policies that have another name here."""
CLASSES = {
    "A2CPolicy": "a2c",
    "BehaviourCloningPolicy": "bc",
    "C51Policy": "c51",
    "CQLPolicy": "cql",
    "CQLDiscretePolicy": "discrete_cql",
    "D4PGPolicy": "d4pg",
    "DDPGPolicy": "ddpg",
    "DQFDPolicy": "dqfd",
    "DQNPolicy": "dqn",
    "DTPolicy": "dt",
    "DiscreteCQLPolicy": "discrete_cql",
    "DiscreteSACPolicy": "discrete_sac",
    "FQFPolicy": "fqf",
    "IMPALAPolicy": "impala",
    "IQLPolicy": "iql",
    "IQNPolicy": "iqn",
    "MDQNPolicy": "mdqn",
    "PGPolicy": "pg",
    "PPOOffPolicy": "ppo_offpolicy",
    "PPOPolicy": "ppo",
    "QRDQNPolicy": "qrdqn",
    "R2D2Policy": "r2d2",
    "RainbowDQNPolicy": "rainbow",
    "SACDiscretePolicy": "discrete_sac",
    "SACPolicy": "sac",
    "SQILPolicy": "sqil",
    "SQLPolicy": "sql",
    "TD3BCPolicy": "td3_bc",
    "TD3Policy": "td3",
}
"""Type of each class of DI-engine that has a counterpart here."""
COMMAND = "CommandModePolicy"
COMMANDS = {name.removesuffix("Policy") + COMMAND: name for name in CLASSES}
"""Class for each of DI-engine's classes that also have a command mode, which all policies have here."""
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
logger = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    known = COMMANDS.get(name, name)
    if known not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals().get(known) or _in_form(known, POLICY_REGISTRY.get(CLASSES[known]))
    globals()[known] = globals()[name] = made
    return made


def _in_form(name: str, base: Any) -> Any:
    """Return a subclass of a policy whose configs may have DI-engine's keys."""

    class InForm(base):  # type: ignore[misc]
        @classmethod
        def default_config(cls) -> EasyDict:
            """Return DI-engine's defaults as a new ``EasyDict``; the model's shapes are left open."""
            return default_section(CLASSES[name])

        def _read_config(self, cfg: Any) -> Any:
            is_theirs = isinstance(cfg, Mapping) and bool({"type", "cuda", "cfg_type"} & cfg.keys())
            return super()._read_config(translated(cfg, CLASSES[name]) if is_theirs else cfg)

    InForm.__name__ = InForm.__qualname__ = name
    InForm.__module__ = __name__
    InForm.__doc__ = f"{base.__name__} of this package, which takes a config in DI-engine's keys."
    return InForm


def default_section(family: str) -> EasyDict:
    """Return DI-engine's defaults of a policy as an ``EasyDict``."""
    from lightning_ding.di_engine.config import compile_config

    create = {"policy": {"type": family}}
    return EasyDict(compile_config({}, auto=True, create_cfg=create, save_cfg=False, renew_dir=False).policy)


def translated(cfg: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the config of a policy in our keys, for one in DI-engine's; warnings about keys are logged.

    The sections of the workers, which scripts pass to them, are left out.

    Raises:
        ValueError: If a key or value has no counterpart here.
    """
    from lightning_ding.config import deep_merge
    from lightning_ding.di_engine.config import policy_defaults
    from lightning_ding.di_engine.configs import flat, merge, plain
    from lightning_ding.di_engine.shared_keys import Notes
    from lightning_ding.di_engine.translate import implied, policy_config

    require(family in _translatable(), "policy", f"one of {', '.join(_translatable())} with DI-engine's keys", family)
    defaults = policy_defaults(family)
    pair = {"env": {}, "policy": plain(cfg)}, {"policy": {"type": family}}
    keys = {
        name: value
        for name, value in flat(merge(*pair, defaults)["policy"])
        if not name.startswith(LEFT) or name in NEEDED
    }
    known = dict(flat(defaults))
    given = {name for name, value in keys.items() if name not in known or known[name] != value}
    notes = Notes()
    config, network = policy_config(keys, given, family, notes)
    require(network is None, "policy.model.type", "left out: pass the network as the argument model", network)
    for line in notes.warnings:
        logger.warning(line)
    return deep_merge(implied(family), config)


LEFT = ("learn.learner.", "collect.collector.", "eval.evaluator.")
"""Sections of workers."""
NEEDED = ("collect.collector.type", "eval.evaluator.eval_freq", "eval.evaluator.type")
"""Their keys that the policy's own translation reads."""


def _translatable() -> list[str]:
    from lightning_ding.di_engine.keys import KEYS

    return list(KEYS)


def family_of(policy_class: Any) -> str:
    """Return the type of a policy's class, or of its nearest base that is registered.

    Raises:
        ValueError: If there is none.
    """
    for one in getattr(policy_class, "__mro__", ()):
        if one.__module__ == __name__ and one.__name__ in CLASSES:
            return CLASSES[one.__name__]
        name = POLICY_REGISTRY.name_of(one) if one.__module__.startswith("lightning_ding.policy.") else None
        if name:
            return name
    raise ValueError(f"policy must be the class of a policy, got {policy_class!r}")


def get_policy_cls(cfg: Mapping[str, Any]) -> Any:
    """Return the class of the policy that ``cfg["type"]`` names, with or without ``_command``."""
    kind = str(cfg["type"]).removesuffix("_command")
    names = {family: name for name, family in CLASSES.items()}
    family = FAMILIES.get(kind, kind)
    return __getattr__(names[family]) if family in names else ours.get_policy_cls(EasyDict(type=kind, **_modules(cfg)))


def create_policy(cfg: Mapping[str, Any], **kwargs: Any) -> Any:
    """Return the policy that ``cfg["type"]`` names, made with the config and further arguments, such as ``model``."""
    return get_policy_cls(cfg)(cfg, **kwargs)


def _modules(cfg: Mapping[str, Any]) -> dict[str, Any]:
    names = cfg.get("import_names") or ()
    return {"import_names": [one for one in names if one.partition(".")[0] != "ding"]}


def set_noise_mode(module: nn.Module, noise_enabled: bool) -> None:
    """Set ``enable_noise`` of all layers of a network that have this attribute."""
    for layer in module.modules():
        if hasattr(layer, "enable_noise"):
            layer.enable_noise = noise_enabled  # type: ignore[assignment]
