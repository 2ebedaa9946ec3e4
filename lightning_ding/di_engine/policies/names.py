"""DI-engine's names of what every policy has, and the keys of every config in its form."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from lightning_ding.model import create_model
from lightning_ding.utils.ranks import rank_and_world_size

BASE_CONFIG: dict[str, Any] = {
    "on_policy": False,
    "cuda": False,
    "multi_gpu": False,
    "bp_update_sync": True,
    "traj_len_inf": False,
    "model": {},
    "learn": {},
    "collect": {},
    "eval": {},
    "other": {},
}
"""Keys that the config of every policy in DI-engine's form has."""


def base() -> dict[str, Any]:
    """Return a new config with these keys."""
    return copy.deepcopy(BASE_CONFIG)


def _first_optimizer(policy: Any) -> Any:
    if not policy.updater.optimizers:
        raise AttributeError(f"{type(policy).__name__} has no optimizer: its learn mode is not initialised")
    return policy.updater.optimizers[0]


ALIASES: dict[str, Callable[[Any], Any]] = {
    "_bp_update_sync": lambda policy: True,
    "_cfg": lambda policy: policy.cfg,
    "_collect_model": lambda policy: policy.model,
    "_cuda": lambda policy: torch.device(policy.device).type == "cuda",
    "_enable_field": lambda policy: policy.enable_field,
    "_eval_model": lambda policy: policy.model,
    "_learn_model": lambda policy: policy.model,
    "_model": lambda policy: policy.model,
    "_on_policy": lambda policy: policy.on_policy,
    "_optimizer": _first_optimizer,
    "_rank": lambda policy: rank_and_world_size()[0],
    "_target_model": lambda policy: policy.target_model,
}
"""DI-engine's names of what every policy has; ``_device`` is Lightning's attribute of that name."""


def create_own_model(policy: Any, cfg: Mapping[str, Any], model: nn.Module | None = None) -> nn.Module:
    """Return ``model``, or without one the network that ``cfg["model"]`` describes (DI-engine's ``_create_model``).

    Names of DI-engine's modules in ``default_model()`` are left out if a network of that name is registered here.

    Raises:
        RuntimeError: If ``model`` is not an ``nn.Module``.
        KeyError: If no network of the name is registered.
    """
    if model is not None:
        if not isinstance(model, nn.Module):
            raise RuntimeError(f"model must be an nn.Module or None, got {type(model).__name__}")
        return model
    section = dict(cfg["model"])
    if "type" not in section:
        section["type"], section["import_names"] = policy.default_model()
    names = section.get("import_names") or ()
    return create_model(section | {"import_names": [name for name in names if name.partition(".")[0] != "ding"]})


METHODS: dict[str, Callable[..., Any]] = {
    "_create_model": create_own_model,
    "_get_attribute": lambda policy, name: policy.get_attribute(name),
    "_get_batch_size": lambda policy: policy.batch_size,
    "_get_n_episode": lambda policy: policy.n_episode,
    "_get_n_sample": lambda policy: policy.n_sample,
    "_set_attribute": lambda policy, name, value: policy.set_attribute(name, value),
}


def named(policy: Any, name: str) -> Any:
    """Return an attribute or a method of a policy under DI-engine's name.

    Raises:
        AttributeError: If DI-engine does not have the name.
    """
    if name in METHODS:
        return functools.partial(METHODS[name], policy)
    if name in ALIASES:
        return ALIASES[name](policy)
    raise AttributeError(f"{type(policy).__name__!r} object has no attribute {name!r}")
