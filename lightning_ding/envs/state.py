"""Where the envs of a vector env are: reading it, and putting other envs there.

An env or a wrapper may have ``state_dict()`` and ``load_state_dict(state)`` for what it remembers itself, its random
number generator included, and then it is asked. Otherwise its attributes are read. A vector wrapper may have
``episode_state()`` and ``load_episode_state(state)`` for what it remembers of the episodes under way. A state is plain
data, see :func:`~lightning_ding.envs.plain.to_plain`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper

from lightning_ding.envs.made import check_made_alike, how_it_was_made
from lightning_ding.envs.plain import from_plain, to_plain
from lightning_ding.envs.shared import Met, NotPlainError

State = dict[str, Any]
HOW_IT_WAS_MADE = frozenset({"_saved_kwargs", "render_mode"})
READ_ELSEWHERE = frozenset({"env_fns", "envs"})  # of a SyncVectorEnv


def env_state(env: VectorEnv) -> State:
    """Return where the envs of a vector env are, as tensors and builtins, with the state of its random actions.

    Args:
        env: A ``SyncVectorEnv``, or a vector env that has ``state_dict`` itself; in vector wrappers or not.

    Raises:
        NotPlainError: If an env cannot give its state; the message names the env and the attribute.
    """
    *wrappers, core = _chain(env)
    name = _name_of(core)
    if not _is_asked(core) and not isinstance(core, SyncVectorEnv):
        raise NotPlainError(f"a {type(core).__name__} does not give the state of its envs")
    envs = _envs_in(core)
    met = Met([env, *wrappers, core, *(layer for one in envs for layer in _chain(one))])
    state: State = {"made": how_it_was_made([env, *envs])}
    state["envs"] = [[_read(layer, name, met) for layer in _chain(one)] for one in envs]
    with met.copies():  # of a SyncVectorEnv, the observations that it got last: it takes others at the next step
        state["core"] = _read(core, name, met)
    state["wrappers"] = [_read_wrapper(one, name, met) for one in wrappers]
    met.check_memory()
    return state


def load_env_state(env: VectorEnv, state: State) -> None:
    """Put the envs of a vector env where those of another one were; they have been reset before.

    Args:
        env: A vector env made in the same way.
        state: What ``env_state`` returned.

    Raises:
        NotPlainError: If the state is of other envs. Some of them are moved then: reset them.
    """
    *wrappers, core = _chain(env)
    name = _name_of(core)
    envs = _envs_in(core)
    if len(wrappers) != len(state["wrappers"]) or len(envs) != len(state["envs"]):
        was = f"{len(state['envs'])} in {len(state['wrappers'])} vector wrappers"
        raise NotPlainError(f"{name} must be as many envs as were saved, {was}, got {len(envs)} in {len(wrappers)}")
    chains = [list(_chain(one)) for one in envs]
    for layers, saved in zip(chains, state["envs"], strict=True):
        if len(layers) != len(saved):
            raise NotPlainError(f"{name} must be in {len(saved) - 1} wrappers, as when saved, got {len(layers) - 1}")
    check_made_alike(state.get("made", []), how_it_was_made([env, *envs]), name)
    made: dict[int, Any] = {}
    for layers, saved in zip(chains, state["envs"], strict=True):
        for layer, below in zip(layers, saved, strict=True):
            _write(layer, below, name, made)
    _write(core, state["core"], name, made)
    for wrapper, saved in zip(wrappers, state["wrappers"], strict=True):
        _write(wrapper, saved, name, made)


def _envs_in(core: Any) -> Sequence[Any]:
    """Return the envs that are read one by one."""
    return core.envs if isinstance(core, SyncVectorEnv) and not _is_asked(core) else ()


def _chain(env: Any) -> Iterator[Any]:
    """Yield an env and what it wraps, outermost first."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def _name_of(core: Any) -> str:
    """Return what an env is called in an error."""
    first = core.envs[0] if isinstance(core, SyncVectorEnv) else core
    spec = getattr(first, "spec", None)
    return spec.id if spec is not None else type(getattr(first, "unwrapped", first)).__name__


def _is_asked(layer: Any) -> bool:
    return callable(getattr(layer, "state_dict", None)) and callable(getattr(layer, "load_state_dict", None))


def _read_wrapper(wrapper: Any, name: str, met: Met) -> State:
    if hasattr(wrapper, "episode_state"):
        state = to_plain(wrapper.episode_state(), f"{name}: episode_state() of {type(wrapper).__name__}")
        return {"class": type(wrapper).__name__, "asked": state}
    return _read(wrapper, name, met)


def _read(layer: Any, name: str, met: Met) -> State:
    path = f"{name}: {type(layer).__name__}"
    state: State = {"class": type(layer).__name__}
    if _is_asked(layer):
        return {**state, "asked": to_plain(layer.state_dict(), f"{path}.state_dict()")}
    passed_over = HOW_IT_WAS_MADE | (READ_ELSEWHERE if isinstance(layer, SyncVectorEnv) else frozenset())
    below = list(_chain(layer))
    own = {key: value for key, value in vars(layer).items() if key not in passed_over}
    own = {key: value for key, value in own.items() if not any(value is one for one in below)}
    return {**state, "attributes": {key: to_plain(value, f"{path}.{key}", met) for key, value in own.items()}}


def _write(layer: Any, state: State, name: str, made: dict[int, Any]) -> None:
    path = f"{name}: {type(layer).__name__}"
    if state["class"] != type(layer).__name__:
        raise NotPlainError(f"{path} was a {state['class']} when saved")
    if "asked" in state:
        load = layer.load_episode_state if hasattr(layer, "load_episode_state") else layer.load_state_dict
        load(from_plain(state["asked"], None, path))
        return
    for key, coded in state["attributes"].items():
        value = from_plain(coded, vars(layer).get(key), f"{path}.{key}", made)
        if value is not vars(layer).get(key):
            object.__setattr__(layer, key, value)
