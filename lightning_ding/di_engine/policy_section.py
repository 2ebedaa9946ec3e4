"""The section of a policy in DI-engine's configs: its defaults, and its translation for the policy of a script."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from easydict import EasyDict

from lightning_ding.config import deep_merge, require, to_dict
from lightning_ding.di_engine.configs import Config, flat, merge, nested, plain
from lightning_ding.di_engine.defaults import DEFAULTS
from lightning_ding.di_engine.keys import KEYS, policy_class_of
from lightning_ding.di_engine.own_form import is_own_form
from lightning_ding.di_engine.shared_keys import EVAL_FREQ, Notes
from lightning_ding.di_engine.translate import implied, policy_config
from lightning_ding.registry import POLICY_REGISTRY

logger = logging.getLogger(__name__)
FAMILIES = {"cql_discrete": "discrete_cql", "sac_discrete": "discrete_sac"}
"""Types of policies that have another name here."""
CLASSES = {
    "A2CPolicy": "a2c",
    "ACERPolicy": "acer",
    "BCQPolicy": "bcq",
    "BDQPolicy": "bdq",
    "BehaviourCloningPolicy": "bc",
    "C51Policy": "c51",
    "COMAPolicy": "coma",
    "CQLPolicy": "cql",
    "CQLDiscretePolicy": "discrete_cql",
    "D4PGPolicy": "d4pg",
    "DDPGPolicy": "ddpg",
    "DQFDPolicy": "dqfd",
    "DQNPolicy": "dqn",
    "DTPolicy": "dt",
    "DiscreteCQLPolicy": "discrete_cql",
    "DiscreteSACPolicy": "discrete_sac",
    "EDACPolicy": "edac",
    "FQFPolicy": "fqf",
    "HAPPOPolicy": "happo",
    "IMPALAPolicy": "impala",
    "IQLPolicy": "iql",
    "IQNPolicy": "iqn",
    "MADQNPolicy": "madqn",
    "MDQNPolicy": "mdqn",
    "NGUPolicy": "ngu",
    "PDQNPolicy": "pdqn",
    "PGPolicy": "pg",
    "PPGOffPolicy": "ppg_offpolicy",
    "PPGPolicy": "ppg",
    "PPOOffPolicy": "ppo_offpolicy",
    "PPOPolicy": "ppo",
    "QMIXPolicy": "qmix",
    "QRDQNPolicy": "qrdqn",
    "QTRANPolicy": "qtran",
    "R2D2GTrXLPolicy": "r2d2_gtrxl",
    "R2D2Policy": "r2d2",
    "R2D3Policy": "r2d3",
    "RainbowDQNPolicy": "rainbow",
    "SACDiscretePolicy": "discrete_sac",
    "SQILSACPolicy": "sac",
    "SACPolicy": "sac",
    "SQILPolicy": "sqil",
    "SQLPolicy": "sql",
    "SQNPolicy": "sqn",
    "TD3BCPolicy": "td3_bc",
    "TD3Policy": "td3",
    "WQMIXPolicy": "wqmix",
}
"""Type of each class of DI-engine that has a counterpart here."""
DEVICE: Config = {"cuda": False, "multi_gpu": False, "bp_update_sync": True, "priority": False}
"""Keys that the config of each policy has."""
LEFT = ("learn.learner.", "collect.collector.", "eval.evaluator.", "other.her.")
"""Sections that the policy does not read: those of workers, and of hindsight replay."""
NEEDED = ("collect.collector.type", "eval.evaluator.eval_freq", "eval.evaluator.type")
"""Their keys that the policy's own translation reads."""


def policy_defaults(kind: str, policy_class: Any = None) -> Config:
    """Return all defaults of a policy in DI-engine's keys: those of DI-engine, or ours where they are the same.

    Args:
        kind: Type of the policy.
        policy_class: The class, if it is one of the user in DI-engine's form.
    """
    if policy_class is not None and is_own_form(policy_class):
        return deep_merge(DEVICE, plain(policy_class.default_config()))
    family = FAMILIES.get(kind, kind)
    ours = dict(flat(to_dict(policy_class_of(family).config_class())))
    table = KEYS.get(family, {})
    shared = {name: ours[name] for name in table if ours.get(name) is not None and _is_alike(name)}
    shared = {name: one for name, one in shared.items() if one in (table[name].allowed or (one,))}
    base = DEVICE | {"on_policy": policy_class_of(family).on_policy}
    if family == "pg":  # whose returns need whole episodes
        base["collect"] = {"collector": {"type": "episode"}}
    return deep_merge(deep_merge(base, nested(shared)), DEFAULTS.get(family, {}))


def _is_alike(name: str) -> bool:
    """Return whether a key that both libraries have is no part of a worker, whose own defaults apply."""
    workers = ("learn.learner.", "collect.collector.", "eval.evaluator.", "other.replay_buffer.")
    return not name.startswith(workers) or name == EVAL_FREQ


def default_section(family: str) -> EasyDict:
    """Return DI-engine's defaults of a policy as an ``EasyDict``."""
    pair: tuple[Config, Config] = {"env": {}, "policy": {"type": family}}, {"policy": {}}
    return EasyDict(merge(*pair, policy_defaults(family))["policy"])


def translated(cfg: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the config of a policy in our keys, for one in DI-engine's; warnings about keys are logged.

    The sections of the workers, which scripts pass to them, are left out.

    Raises:
        ValueError: If a key or value has no counterpart here.
    """
    require(family in KEYS, "policy", f"one of {', '.join(KEYS)} with DI-engine's keys", family)
    defaults = policy_defaults(family)
    pair = {"env": {}, "policy": plain(cfg)}, {"policy": {"type": family}}
    keys = {
        name: value
        for name, value in flat(merge(*pair, defaults)["policy"])
        if not name.startswith(LEFT) or name in NEEDED
    }
    if not defaults["on_policy"]:  # a script chooses the collector, and may collect whole episodes
        keys |= {"collect.collector.type": "sample"}
        keys.pop("collect.n_episode", None)
    known = dict(flat(defaults))
    given = {name for name, value in keys.items() if name not in known or known[name] != value}
    notes = Notes()
    config, network = policy_config(keys, given, family, notes)
    require(network is None, "policy.model.type", "left out: pass the network as the argument model", network)
    for line in notes.warnings:
        logger.warning(line)
    return deep_merge(implied(family), config)


def family_of(policy_class: Any) -> str:
    """Return the type of a policy's class, or of its nearest base that is registered.

    Raises:
        ValueError: If there is none.
    """
    for one in getattr(policy_class, "__mro__", ()):
        if "ding_type" in vars(one):
            return str(one.ding_type)
        name = POLICY_REGISTRY.name_of(one) if one.__module__.startswith("lightning_ding.policy.") else None
        if name:
            return name
    raise ValueError(f"policy must be the class of a policy, got {policy_class!r}")
