"""Saving the state of the envs in a vector env, and restoring it in other envs.

An env or wrapper may have methods ``state_dict()`` and ``load_state_dict(state)`` for its own state, including its
random number generator. Otherwise its attributes are read and set. A vector wrapper may have methods
``episode_state()`` and ``load_episode_state(state)`` for its state of the running episodes. A state is plain data, see
:func:`~lightning_ding.envs.state.codec.to_plain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.state.codec import from_plain, to_plain
from lightning_ding.envs.state.fingerprint import check_fingerprints, env_fingerprints
from lightning_ding.envs.state.memo import Memo, NotPlainError

State = dict[str, Any]
ARGUMENTS = frozenset({"_saved_kwargs", "render_mode"})
NOT_READ = frozenset({"env_fns", "envs", "_check"})  # attributes of a SyncVectorEnv; its envs are read one by one


def env_state(env: VectorEnv) -> State:
    """Return the state of the envs in a vector env, and of its action space, as tensors and builtins.

    Args:
        env: A ``SyncVectorEnv`` or a vector env with ``state_dict``, optionally in vector wrappers.

    Raises:
        NotPlainError: If the state of an env cannot be saved; the message names the env and the attribute.
    """
    *wrappers, core = _chain(env)
    name = _name_of(core)
    if not _has_state_dict(core) and not isinstance(core, SyncVectorEnv):
        raise NotPlainError(f"the state of the envs in a {type(core).__name__} cannot be read")
    envs = _envs_in(core)
    memo = Memo([env, *wrappers, core, *(layer for one in envs for layer in _chain(one))])
    state: State = {"made": env_fingerprints([env, *envs])}
    state["envs"] = [[_read(layer, name, memo) for layer in _chain(one)] for one in envs]
    with memo.copies():  # a SyncVectorEnv holds the last observations of its envs, and replaces them at the next step
        state["core"] = _read(core, name, memo)
    state["wrappers"] = [_read_vector_wrapper(one, name, memo) for one in wrappers]
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
    *wrappers, core = _chain(env)
    name = _name_of(core)
    envs = _envs_in(core)
    if len(wrappers) != len(state["wrappers"]) or len(envs) != len(state["envs"]):
        was = f"{len(state['envs'])} in {len(state['wrappers'])} vector wrappers"
        raise NotPlainError(f"{name}: the number of envs must be as saved, {was}, got {len(envs)} in {len(wrappers)}")
    chains = [list(_chain(one)) for one in envs]
    for layers, saved in zip(chains, state["envs"], strict=True):
        if len(layers) != len(saved):
            wrong = f"must be as saved, {len(saved) - 1}, got {len(layers) - 1}"
            raise NotPlainError(f"{name}: the number of wrappers {wrong}")
    check_fingerprints(state.get("made", []), env_fingerprints([env, *envs]), name)
    decoded: dict[int, Any] = {}
    for layers, saved in zip(chains, state["envs"], strict=True):
        for layer, below in zip(layers, saved, strict=True):
            _write(layer, below, name, decoded)
    _write(core, state["core"], name, decoded)
    for wrapper, saved in zip(wrappers, state["wrappers"], strict=True):
        _write(wrapper, saved, name, decoded)


def _envs_in(core: Any) -> Sequence[Any]:
    """Return the envs whose states are read one by one."""
    return core.envs if isinstance(core, SyncVectorEnv) and not _has_state_dict(core) else ()


def _chain(env: Any) -> Iterator[Any]:
    """Yield an env and everything that it wraps, outermost first."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def _name_of(core: Any) -> str:
    """Return the name of an env in errors."""
    first = core.envs[0] if isinstance(core, SyncVectorEnv) else core
    spec = getattr(first, "spec", None)
    return spec.id if spec is not None else type(getattr(first, "unwrapped", first)).__name__


def _has_state_dict(layer: Any) -> bool:
    return callable(getattr(layer, "state_dict", None)) and callable(getattr(layer, "load_state_dict", None))


def _read_vector_wrapper(wrapper: Any, name: str, memo: Memo) -> State:
    if hasattr(wrapper, "episode_state"):
        state = to_plain(wrapper.episode_state(), f"{name}: episode_state() of {type(wrapper).__name__}")
        return {"class": type(wrapper).__name__, "asked": state}
    return _read(wrapper, name, memo)


def _read(layer: Any, name: str, memo: Memo) -> State:
    path = f"{name}: {type(layer).__name__}"
    state: State = {"class": type(layer).__name__}
    if _has_state_dict(layer):
        return {**state, "asked": to_plain(layer.state_dict(), f"{path}.state_dict()")}
    excluded = ARGUMENTS | (NOT_READ if isinstance(layer, SyncVectorEnv) else frozenset())
    below = list(_chain(layer))
    own = {key: value for key, value in vars(layer).items() if key not in excluded}
    own = {key: value for key, value in own.items() if not any(value is one for one in below)}
    return {**state, "attributes": {key: to_plain(value, f"{path}.{key}", memo) for key, value in own.items()}}


def _write(layer: Any, state: State, name: str, decoded: dict[int, Any]) -> None:
    path = f"{name}: {type(layer).__name__}"
    if state["class"] != type(layer).__name__:
        raise NotPlainError(f"{path} was a {state['class']} when saved")
    if "asked" in state:
        load = layer.load_episode_state if hasattr(layer, "load_episode_state") else layer.load_state_dict
        load(from_plain(state["asked"], None, path))
        return
    for key, coded in state["attributes"].items():
        value = from_plain(coded, vars(layer).get(key), f"{path}.{key}", decoded)
        if value is not vars(layer).get(key):
            object.__setattr__(layer, key, value)
