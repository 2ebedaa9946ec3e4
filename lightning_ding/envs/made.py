"""How envs were made: in words that are the same in another process."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from lightning_ding.envs.shared import NotPlainError
from lightning_ding.envs.vector import _Maker

Made = list[dict[str, str]]
SEEN_ONLY = frozenset({"render_mode"})
"""Arguments that change what is seen of an env, and nothing in it."""
DEPTH = 10


def how_it_was_made(envs: Sequence[Any]) -> Made:
    """Return for each env, also a vector env, what is known of its arguments and those of its wrappers.

    Returns:
        Descriptions by where the arguments went.
    """
    return [_made(env) for env in envs]


def check_made_alike(saved: Made, now: Made, name: str) -> None:
    """Raise if envs were made in another way than those that were saved; an older state does not say it.

    Raises:
        NotPlainError: If so; the message says the first thing that differs.
    """
    for was, given in zip(saved, now, strict=False):
        for place in [*was, *(given.keys() - was.keys())]:
            old, new = was.get(place, "nothing"), given.get(place, "nothing")
            if old != new:
                raise NotPlainError(f"{name}: {place} was made with {old}, now with {new}")


def _made(env: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        if "_saved_kwargs" in vars(env):
            found[f"{len(found)} {type(env).__name__}"] = describe(vars(env)["_saved_kwargs"])
        env = env.env
    if isinstance(env, SyncVectorEnv):
        found |= {"envs": describe(list(env.env_fns)), "autoreset": str(env.autoreset_mode)}
    spec = getattr(env, "spec", None)
    if spec is not None and isinstance(env, gym.Env):
        found[type(env).__name__] = f"{spec.id} {describe(spec.kwargs)}"
    return found


def describe(value: Any, depth: int = 0) -> str:
    """Return words for an argument, without anything that differs from process to process.

    Args:
        value: Anything; of what is neither data nor a function or class, only its class is said.
        depth: How deep it lies in something else.
    """
    below = functools.partial(describe, depth=depth + 1)
    if depth > DEPTH:
        return "..."
    if isinstance(value, _Maker):
        return ", ".join([below(value.env), below(value.kwargs), *map(below, value.wrappers)])
    if isinstance(value, functools.partial):
        return f"{below(value.func)}({below(value.args)}, {below(value.keywords)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {below(one)}" for key, one in value.items() if key not in SEEN_ONLY) + "}"
    if isinstance(value, (list, tuple)):
        return _alike("[" if isinstance(value, list) else "(", [below(one) for one in value])
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"array({value.shape}, {value.dtype}, {zlib.crc32(value.tobytes())})"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, gym.Space)):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _alike(bracket: str, parts: list[str]) -> str:
    """Return the parts of a sequence, once if they are all the same."""
    if len(parts) > 1 and len(set(parts)) == 1:
        return f"{len(parts)} of {parts[0]}"
    return bracket + ", ".join(parts) + {"[": "]", "(": ")"}[bracket]
