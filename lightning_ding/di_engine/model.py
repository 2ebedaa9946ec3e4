"""DI-engine's networks of ``ding.model`` with its names, which take its arguments.

The classes derive from those of :mod:`lightning_ding.model`, and are made at their first use. Arguments of this package
are taken as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from lightning_ding import model as ours
from lightning_ding.config import deep_merge, require
from lightning_ding.model import create_model, model_wrap
from lightning_ding.policy.base.spaces import network_section

CLASSES = {
    "C51DQN": "c51",
    "ContinuousQAC": "sac",
    "DQN": "dqn",
    "DRQN": "r2d2",
    "DiscreteQAC": "discrete_sac",
    "FQF": "fqf",
    "IQN": "iqn",
    "PG": "pg",
    "QACDIST": "d4pg",
    "QRDQN": "qrdqn",
    "RainbowDQN": "rainbow",
    "VAC": "ppo",
}
"""Policy whose table has the arguments of each class of DI-engine."""
OURS = {"QACDIST": "ContinuousQAC"}
"""Classes that have another name here."""
SAME = {"DecisionTransformer": "decision_transformer"}
"""Module of each class that takes the same arguments."""
__all__ = [*CLASSES, *SAME, "create_model", "model_wrap"]
WHOLE = ("obs_shape", "action_shape")
"""Arguments that may be dicts, and may be given by place."""


def __getattr__(name: str) -> Any:
    if name in SAME:
        return getattr(importlib.import_module(f"lightning_ding.model.{SAME[name]}"), name)
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = getattr(ours, OURS.get(name, name))
    family = CLASSES[name]

    class InForm(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            require(len(args) <= len(WHOLE), name, f"called with {WHOLE} by place and the others by name", args)
            super().__init__(**arguments(family, {**dict(zip(WHOLE, args, strict=False)), **kwargs}))

    InForm.__name__ = InForm.__qualname__ = name
    InForm.__module__ = __name__
    InForm.__doc__ = f"{base.__name__} of this package, which takes DI-engine's arguments."
    globals()[name] = InForm
    return InForm


def arguments(family: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a network of ours for those of DI-engine's; ours are returned unchanged.

    Args:
        family: Type of a policy that uses the network.
        given: The arguments by name.

    Raises:
        ValueError: If a value has no counterpart here, or a shape is missing.
    """
    from lightning_ding.di_engine.configs import nested
    from lightning_ding.di_engine.keys import KEYS
    from lightning_ding.di_engine.shared_keys import Notes, translate_key
    from lightning_ding.di_engine.translate import implied

    for name in WHOLE:
        require(given.get(name) is not None, name, "the shape of the env's space", given.get(name))
    if family == CLASSES["ContinuousQAC"] and given.get("action_space") in ("regression", "hybrid"):
        family = "td3" if given.get("twin_critic") else "ddpg"
    keys = {f"model.{name}": value for name, value in given.items()}
    made: dict[str, Any] = {}
    for name, value in keys.items():
        if name not in KEYS[family]:
            made[name] = value
            continue
        made |= translate_key(name, value, keys, KEYS[family][name], family, False, Notes())
    if family == CLASSES["ContinuousQAC"]:
        made["model.action_space"] = "reparameterization"
    section = deep_merge(implied(family).get("model", {}), nested(made)["model"])
    return network_section(section)
