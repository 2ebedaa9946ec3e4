"""Which policies a distributed run can train: those that learn from what collectors collect, and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.config import require
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.registry import POLICY_REGISTRY

NAME = "main.policy"
TAKEN = ("optional", "refused")
"""Values of a policy's ``demonstrations`` with which it learns without any."""


def check_policy(policy: Mapping[str, Any]) -> None:
    """Check that a distributed run can train a policy.

    Args:
        policy: ``type`` and config of the policy.

    Raises:
        ValueError: If it cannot; the message names those that it can train, or what to do instead.
    """
    found, kind = get_policy_cls(policy), str(policy["type"])
    others = " or ".join(repr(name) for name in _like_on_policy())
    require(not found.on_policy, NAME, f"one that learns from replay, such as {others} of the on-policy family", kind)
    these = f"one of {', '.join(known_policies())} in a distributed run (`lightning-ding fit` trains this one on "
    require(found.trains_on == "envs", NAME, f"{these}its data set)", kind)
    require(_demonstrations(found) in TAKEN, NAME, f"{these}data.demonstrations)", kind)
    made = create_policy(policy, enable_field=["command"])
    require(made.get_attribute("n_sample") is not None, NAME, "one that collects", kind)
    model, allowed = made.config.reward_model.type, "None in a distributed run, which trains no reward model"
    require(model is None, f"{NAME}.reward_model.type", allowed, model)


def known_policies() -> list[str]:
    """Return the names of the registered policies that a distributed run can train, sorted.

    Example:
        >>> {"dqn", "impala", "sac"} <= set(known_policies())
        True
        >>> {"bc", "cql", "dqfd", "ppo"} & set(known_policies())
        set()
    """
    fits = {name for name, one in _classes().items() if not one.on_policy and one.trains_on == "envs"}
    return sorted(name for name in fits if _demonstrations(_classes()[name]) in TAKEN)


def _like_on_policy() -> list[str]:
    """Return the registered policies that belong to the on-policy family and nevertheless learn from replay."""
    return [name for name in known_policies() if issubclass(_classes()[name], OnPolicyPolicy)]


def _demonstrations(found: Any) -> str:
    return str(getattr(found, "demonstrations", "optional"))


def _classes() -> dict[str, Any]:
    return {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
