"""The attributes of a policy that workers read by name, with ``get_attribute`` and ``set_attribute`` of a mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _from_config(policy: Any, section: str, name: str) -> Any:
    """Return a config value; None if the algorithm has no such section or key."""
    return getattr(getattr(policy.config, section, None), name, None)


SAMPLE_OPTIONS = {"n_step": "nstep", "discount_factor": "discount_factor"}
"""Arguments of a replay buffer's ``sample``, and the attributes that hold them."""
COMPUTED: dict[str, Callable[[Any], Any]] = {
    "acts_on_reward": lambda policy: bool(getattr(policy, "acts_on_reward", False)),
    "batch_size": lambda policy: int(_from_config(policy, "learn", "batch_size")),
    "cfg": lambda policy: policy.cfg,
    "cuda": lambda policy: torch.device(policy.device).type == "cuda",
    "cur_lr": lambda policy: policy.cur_lr(),
    "demonstrations": lambda policy: getattr(policy, "demonstrations", "optional"),
    "device": lambda policy: torch.device(policy.device),
    "keeps_double": lambda policy: policy.normaliser.keeps_double,
    "has_memory": lambda policy: getattr(policy, "has_memory", False),
    "keeps_noise": lambda policy: bool(_from_config(policy, "model", "use_sde")),
    "module": lambda policy: policy,
    "n_episode": lambda policy: _from_config(policy, "collect", "n_episode"),
    "n_sample": lambda policy: _from_config(policy, "collect", "n_sample"),
    "nstep": lambda policy: 1,
    "on_policy": lambda policy: policy.on_policy,
    "priority": lambda policy: bool(getattr(policy.config, "priority", False)),
    "pretraining_updates": lambda policy: 0,
    "progress": lambda policy: policy.progress,
    "random_collect_size": lambda policy: 0,
    "sample_options": lambda policy: {name: policy.get_attribute(of) for name, of in SAMPLE_OPTIONS.items()},
    "unroll_len": lambda policy: int(_from_config(policy, "collect", "unroll_len") or 1),
}
"""Attributes of every policy; an algorithm adds methods ``_get_<name>``, or attributes ``_<name>`` that can be set."""


def get(policy: Any, name: str) -> Any:
    """Return an attribute: the result of ``_get_<name>()``, or an entry of ``COMPUTED``, or ``_<name>``.

    Raises:
        NotImplementedError: If the policy has none of them; the message names the attribute.
    """
    if hasattr(policy, f"_get_{name}"):
        return getattr(policy, f"_get_{name}")()
    if name in COMPUTED:
        return COMPUTED[name](policy)
    if hasattr(policy, f"_{name}"):
        return getattr(policy, f"_{name}")
    raise NotImplementedError(f"{type(policy).__name__} has no attribute {name!r} for workers")


def set_(policy: Any, name: str, value: Any) -> None:
    """Set ``_<name>``.

    Raises:
        AttributeError: If the attribute is computed, so that setting it would have no effect.
    """
    if hasattr(policy, f"_get_{name}") or name in COMPUTED:
        raise AttributeError(f"{name!r} is computed by {type(policy).__name__}; change its config instead")
    setattr(policy, f"_{name}", value)
