"""Saving the state of the envs in a vector env or an env process, and restoring it in other envs.

An env or wrapper may have methods ``state_dict()`` and ``load_state_dict(state)`` for its own state, including its
random number generator. Otherwise its attributes are read and set, and with them what it shares with others, see
:mod:`~lightning_ding.envs.state.surroundings`. A vector wrapper may have methods
``episode_state()`` and ``load_episode_state(state)`` for its state of the running episodes. A state is plain data, see
:func:`~lightning_ding.envs.state.codec.to_plain`.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.checks import EnvMaker
from lightning_ding.envs.state import attributes
from lightning_ding.envs.state.codec import from_plain, to_plain
from lightning_ding.envs.state.memo import Memo, NotPlainError, size_of
from lightning_ding.envs.state.origins import chain, envs_in, has_state_dict, layers_of
from lightning_ding.envs.state.surroundings import (
    attributes_at_creation,
    load_surroundings,
    read_surroundings,
)

State = dict[str, Any]
Fingerprint = list[dict[str, str]]
RENDER_ARGUMENTS = frozenset({"render_mode"})
"""Arguments that change only the rendering of an env."""
DEPTH = 10
MODULE = re.compile(r"\blightning_ding\.(?:\w+\.)+(?=\w)")
"""The module of a class or function of this package, which may differ from that in a saved state."""
ARGUMENTS = frozenset({"_saved_kwargs", "render_mode"})
NOT_READ = frozenset(
    {"env_fns", "envs", "_check", "_converts", "_position", "_memory"}
)  # attributes of a SyncVectorEnv; its envs are read one by one


def env_state(env: VectorEnv) -> State:
    """Return the state of the envs in a vector env, and of its action space, as tensors and builtins.

    The attributes of a native vector env are read as those of a single env are.

    Args:
        env: Any vector env, optionally in vector wrappers.

    The entry ``lost`` has descriptions of shared variables that have changed and cannot be saved.

    Raises:
        NotPlainError: If the state of an env cannot be saved; the message names the env and the attribute.
    """
    *wrappers, core = chain(env)
    name = _name_of(core)
    envs = envs_in(core)
    layers = layers_of(env)
    memo = Memo(layers)
    state: State = {
        "made": [_fingerprint(one) for one in (env, *envs)],
        "surroundings": read_surroundings(layers, memo),
    }
    state["envs"] = [[_read(layer, name, memo) for layer in chain(one)] for one in envs]
    is_sync = isinstance(core, SyncVectorEnv)  # it holds the last observations of its envs until the next step
    with memo.copies() if is_sync else nullcontext():
        state["core"] = _read(core, name, memo)
    state["wrappers"] = [_read_vector_wrapper(one, name, memo) for one in wrappers]
    state["lost"] = [*state["surroundings"].pop("lost"), *getattr(core, "lost_variables", ())]
    memo.check_memory()
    return state


def load_env_state(env: VectorEnv, state: State) -> None:
    """Restore a saved state in the envs of a vector env.

    Args:
        env: A vector env that was created in the same way, and has been reset.
        state: A state that ``env_state`` returned.

    Raises:
        NotPlainError: If the state belongs to different envs. The envs must be reset then, because a part of the state
            may have been restored.
    """
    *wrappers, core = chain(env)
    name = _name_of(core)
    envs = envs_in(core)
    _check_class(core, state["core"], name)
    if len(wrappers) != len(state["wrappers"]) or len(envs) != len(state["envs"]):
        was = f"{len(state['envs'])} in {len(state['wrappers'])} vector wrappers"
        raise NotPlainError(f"{name}: the number of envs must be as saved, {was}, got {len(envs)} in {len(wrappers)}")
    _check_wrappers(envs, state["envs"], name)
    check_fingerprints(state.get("made", []), [_fingerprint(one) for one in (env, *envs)], name)
    decoded: dict[int, Any] = {}
    if "surroundings" in state:  # not in states of older versions
        load_surroundings(layers_of(env), state["surroundings"], decoded)
    _write_all(envs, state["envs"], name, decoded)
    _write(core, state["core"], name, decoded)
    for wrapper, saved in zip(wrappers, state["wrappers"], strict=True):
        _write(wrapper, saved, name, decoded)


def state_sizes(state: Mapping[str, Any]) -> Counter[str]:
    """Return the approximate number of bytes of each attribute in a state of ``env_state``, summed over the envs."""
    sizes: Counter[str] = Counter()
    for label, coded in state.get("surroundings", {}).get("values", {}).items():
        sizes[label] += size_of(coded)
    layers = [layer for one in state.get("envs", ()) for layer in one]
    for layer in [*layers, *state.get("wrappers", ()), *([state["core"]] if "core" in state else ())]:
        for name, coded in layer.get("attributes", {}).items():
            sizes[f"{layer['class']}.{name}"] += size_of(coded)
        if "asked" in layer:
            processes = list(_processes(layer))
            for one in processes:
                sizes.update(state_sizes(one))
            if not processes:
                sizes[f"{layer['class']}.state_dict()"] += size_of(layer["asked"])
    return sizes


def _processes(layer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the states of env processes."""
    if layer["class"] == "ProcessVectorEnv":
        yield from from_plain(layer["asked"])["processes"]


def _write_all(envs: Sequence[Any], states: Sequence[Sequence[State]], name: str, decoded: dict[int, Any]) -> None:
    for env, saved in zip(envs, states, strict=True):
        for layer, below in zip(chain(env), saved, strict=True):
            _write(layer, below, name, decoded)


def _check_wrappers(envs: Sequence[Any], states: Sequence[Sequence[State]], name: str) -> None:
    for env, saved in zip(envs, states, strict=True):
        now = len(list(chain(env)))
        if now != len(saved):
            raise NotPlainError(f"{name}: the number of wrappers must be as saved, {len(saved) - 1}, got {now - 1}")


def _check_class(layer: Any, state: State, name: str) -> None:
    if state["class"] != type(layer).__name__:
        raise NotPlainError(f"{name}: {type(layer).__name__} was a {state['class']} when saved")


def _name_of(core: Any) -> str:
    """Return the name of an env in errors."""
    first = core.envs[0] if isinstance(core, SyncVectorEnv) else core
    spec = getattr(first, "spec", None)
    return spec.id if spec is not None else type(getattr(first, "unwrapped", first)).__name__


def _read_vector_wrapper(wrapper: Any, name: str, memo: Memo) -> State:
    if hasattr(wrapper, "episode_state"):
        state = to_plain(wrapper.episode_state(), f"{name}: episode_state() of {type(wrapper).__name__}")
        return {"class": type(wrapper).__name__, "asked": state}
    return _read(wrapper, name, memo)


def _read(layer: Any, name: str, memo: Memo) -> State:
    path = f"{name}: {type(layer).__name__}"
    state: State = {"class": type(layer).__name__}
    if has_state_dict(layer):
        return {**state, "asked": to_plain(layer.state_dict(), f"{path}.state_dict()")}
    own = {key: to_plain(value, f"{path}.{key}", memo) for key, value in _own_attributes(layer).items()}
    return {**state, "attributes": own, "at_creation": attributes_at_creation(layer)}


def _write(layer: Any, state: State, name: str, decoded: dict[int, Any]) -> None:
    _check_class(layer, state, name)
    path = f"{name}: {type(layer).__name__}"
    if "asked" in state:
        load = layer.load_episode_state if hasattr(layer, "load_episode_state") else layer.load_state_dict
        load(from_plain(state["asked"], None, path))
        return
    old = _own_attributes(layer)
    for key in _deleted(layer, old, state):
        object.__delattr__(layer, key)
    for key, coded in state["attributes"].items():
        value = from_plain(coded, old.get(key), f"{path}.{key}", decoded)
        if value is not old.get(key):
            object.__setattr__(layer, key, value)


def _own_attributes(layer: Any) -> State:
    """Return the attributes of an env or wrapper that are part of its state, by name."""
    excluded = ARGUMENTS | (NOT_READ if isinstance(layer, SyncVectorEnv) else frozenset())
    below = list(chain(layer))
    own = {key: value for key, value in attributes(layer).items() if key not in excluded}
    return {key: value for key, value in own.items() if not any(value is one for one in below)}


def _deleted(layer: Any, own: State, state: State) -> list[str]:
    """Return the attributes that an env or wrapper does not have in a state.

    If a new env has an attribute from its creation on, and did not have it in the saved run, its code has changed: the
    attribute is kept.
    """
    before, now = state.get("at_creation"), attributes_at_creation(layer)
    if before is None or now is None:
        return []
    new = set(now) - set(before)
    return [key for key in own if key not in state["attributes"] and key not in new]


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
    """Return descriptions of arguments by the env or wrapper that takes them; equal in all processes."""
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
        parts = [below(one) for one in value]
        if len(parts) > 1 and len(set(parts)) == 1:
            return f"{len(parts)} of {parts[0]}"
        text = ", ".join(parts)
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"array({value.shape}, {value.dtype}, {zlib.crc32(value.tobytes())})"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, gym.Space)):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
