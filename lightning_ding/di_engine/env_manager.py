"""The env managers of DI-engine's configs, translated to the modes of this project's vector envs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_ding.config import nearest, require
from lightning_ding.envs.vector import VectorMode

MODES: dict[str, VectorMode] = {
    "async_subprocess": "async",
    "base": "sync",
    "base_v2": "sync",
    "env_pool": "async",
    "gym_vector": "async",
    "subprocess": "async",
    "subprocess_v2": "async",
}
"""The mode for each type of env manager."""
NOT_NEEDED: dict[str, str] = {
    "connect_timeout": "env processes have the time limits of env_timeout",
    "context": "env processes are started by this package",
    "copy_on_get": "observations are always copied",
    "reset_inplace": "envs are always reset in their process",
    "shared_memory": "env processes always share memory for observations of a fixed size",
    "step_wait_timeout": "a step waits for all envs",
    "wait_num": "a step waits for all envs",
}
"""Entries for the technique of DI-engine's managers, and what is done here in their place."""


@dataclass
class Managed:
    """The translated section of an env manager."""

    mode: VectorMode
    datamodule: dict[str, Any] = field(default_factory=dict)
    """Arguments of the datamodule."""
    collector: dict[str, Any] = field(default_factory=dict)
    """Entries of the policy's ``collect.collector``."""
    translated: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def translate_manager(section: Mapping[str, Any]) -> Managed:
    """Return the mode of the vector env, and arguments for the entries that have an effect here.

    Args:
        section: ``env_manager`` of the create config, updated by ``env.manager`` of the main config.

    Raises:
        ValueError: If there is no such type, or an entry asks for something that cannot be done.

    Example:
        >>> managed = translate_manager({"type": "subprocess", "step_timeout": 5})
        >>> managed.mode, managed.datamodule
        ('async', {'env_timeout': (None, 5)})
    """
    left = {name: value for name, value in section.items() if name != "cfg_type"}
    kind = left.pop("type", "base")
    require(kind in MODES, "env_manager.type", f"one of {sorted(MODES)}", kind)
    managed = Managed(MODES[kind])
    managed.translated.append(f"env_manager.type {kind!r} -> mode {managed.mode!r}")
    _refuse_other_episodes(left)
    _take_retries(left, managed)
    _take_timeouts(left, managed, kind)
    for name in sorted(left):
        if name in NOT_NEEDED:
            managed.translated.append(f"env.manager.{name} {left[name]!r} -> not needed: {NOT_NEEDED[name]}")
            continue
        known = [*NOT_NEEDED, "auto_reset", "episode_num", "max_retry", "reset_timeout", "retry_type", "step_timeout"]
        hint = nearest(name, known)
        hint = f"; {hint}" if hint.startswith("did") else ""
        managed.warnings.append(f"env.manager.{name} has no effect: no env manager of DI-engine reads it{hint}")
    return managed


def _refuse_other_episodes(left: dict[str, Any]) -> None:
    episodes, resets = left.pop("episode_num", math.inf), left.pop("auto_reset", True)
    require(episodes == math.inf, "env.manager.episode_num", "inf; max_env_step limits a run", episodes)
    require(bool(resets), "env.manager.auto_reset", "True, because collectors need envs that reset themselves", resets)


def _take_retries(left: dict[str, Any], managed: Managed) -> None:
    retries, kind, waits = (
        left.pop("max_retry", 1),
        left.pop("retry_type", "reset"),
        left.pop("retry_waiting_time", 0.1),
    )
    require(isinstance(retries, int) and retries >= 1, "env.manager.max_retry", "an int >= 1", retries)
    require(kind in ("reset", "renew"), "env.manager.retry_type", "'reset' or 'renew'", kind)
    if retries == 1:
        return
    managed.collector["env_fault"] = "drop"
    managed.translated.append(
        f"env.manager.max_retry {retries} -> collect.collector.env_fault 'drop': an env that fails starts a new episode"
    )
    if waits != 0.1:
        managed.warnings.append("env.manager.retry_waiting_time has no effect: an env that fails restarts at once")


def _take_timeouts(left: dict[str, Any], managed: Managed, kind: str) -> None:
    """Read the time limits, which need env processes."""
    given = [name for name in ("reset_timeout", "step_timeout") if name in left]
    limits = (left.pop("reset_timeout", None), left.pop("step_timeout", None))
    for name, limit in zip(("reset_timeout", "step_timeout"), limits, strict=True):
        is_limit = limit is None or (isinstance(limit, (int, float)) and limit > 0)
        require(is_limit, f"env.manager.{name}", "> 0 seconds or None", limit)
    if managed.mode == "async" and given:
        managed.datamodule["env_timeout"] = limits
        managed.translated.append(f"env.manager.{' and '.join(given)} -> env_timeout {limits}")
    elif limits != (None, None):
        named = " and ".join(f"env.manager.{name}" for name in given)
        managed.warnings.append(f"{named} has no effect with the env manager {kind!r}: only env processes have limits")
