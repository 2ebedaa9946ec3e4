"""Fingerprints of envs, which are equal in all processes if the envs were created in the same way."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.checks import EnvMaker
from lightning_ding.envs.state.memo import NotPlainError

Fingerprint = list[dict[str, str]]
RENDER_ARGUMENTS = frozenset({"render_mode"})
"""Arguments that change only the rendering of an env."""
DEPTH = 10
MODULE = re.compile(r"\blightning_ding\.(?:\w+\.)+(?=\w)")
"""The module of a class or function of this package, which may differ from that in a saved state."""


def env_fingerprints(envs: Sequence[Any]) -> Fingerprint:
    """Return for each env or vector env descriptions of arguments, by the env or wrapper that takes them."""
    return [_fingerprint(env) for env in envs]


def check_fingerprints(saved: Fingerprint, now: Fingerprint, name: str) -> None:
    """Check that envs were created in the same way as the saved ones; states of older versions have no fingerprints.

    A class or function of this package may have moved to another module.

    Raises:
        NotPlainError: If the fingerprints differ; the message names the first difference.
    """
    for was, given in zip(saved, now, strict=False):
        for place in [*was, *(given.keys() - was.keys())]:
            old, new = was.get(place, "nothing"), given.get(place, "nothing")
            if MODULE.sub("", old) != MODULE.sub("", new):
                raise NotPlainError(f"{name}: {place} was made with {old}, now with {new}")


def _fingerprint(env: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        if "_saved_kwargs" in vars(env):
            found[f"{len(found)} {type(env).__name__}"] = describe(vars(env)["_saved_kwargs"])
        env = env.env
    if isinstance(env, SyncVectorEnv):
        found |= {"envs": describe(list(env.env_fns)), "autoreset": str(env.autoreset_mode)}
    spec = getattr(env, "spec", None)
    if spec is not None and isinstance(env, (gym.Env, VectorEnv)):
        found[type(env).__name__] = f"{spec.id} {describe(spec.kwargs)}"
    return found


def describe(value: Any, depth: int = 0) -> str:
    """Return a description of an argument, around which are ``depth`` objects, that does not depend on the process.

    Objects that are neither data nor functions nor classes are described by their class alone.
    """
    below = functools.partial(describe, depth=depth + 1)
    if depth > DEPTH:
        return "..."
    if isinstance(value, EnvMaker):
        return ", ".join([below(value.env), below(value.kwargs), *map(below, value.wrappers)])
    if isinstance(value, functools.partial):
        return f"{below(value.func)}({below(value.args)}, {below(value.keywords)})"
    if isinstance(value, Mapping):
        shown = [f"{key}: {below(one)}" for key, one in value.items() if key not in RENDER_ARGUMENTS]
        return "{" + ", ".join(shown) + "}"
    if isinstance(value, (list, tuple)):
        return _alike("[" if isinstance(value, list) else "(", [below(one) for one in value])
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"array({value.shape}, {value.dtype}, {zlib.crc32(value.tobytes())})"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, gym.Space)):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _alike(bracket: str, parts: list[str]) -> str:
    """Return a description of a sequence, short if all its parts are equal."""
    if len(parts) > 1 and len(set(parts)) == 1:
        return f"{len(parts)} of {parts[0]}"
    return bracket + ", ".join(parts) + {"[": "]", "(": ")"}[bracket]
