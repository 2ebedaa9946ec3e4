"""Whether an env keeps to gymnasium's API: one error that names the env, in place of what numpy would say later."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lightning_ding.envs.process.space import layout_of

GUIDE = "see https://gymnasium.farama.org/introduction/migration_guide/"
SEED = 0


class BrokenEnvError(ValueError):
    """An env does not keep to gymnasium's API; the message names the env, the method and what it returned."""


def check_contract(make: Callable[[], gym.Env[Any, Any]]) -> None:
    """Make an env, reset it, step it once and close it; raise if what it returns cannot be used.

    The global random number generators are as before. An exception of the env's own is no finding: the run meets it,
    and treats it as its config says.

    Args:
        make: Makes an env of which nobody keeps anything.

    Raises:
        BrokenEnvError: If a space is missing, or ``reset`` or ``step`` returns something else than gymnasium's API and
            the env's spaces say.
    """
    with _same_random_numbers():
        env = make()
        try:
            for layer in (env.unwrapped, env):
                _check_layer(layer, _name_of(env))
        finally:
            env.close()


def _check_layer(env: Any, name: str) -> None:
    for kind in ("observation_space", "action_space"):
        space = getattr(env, kind, None)
        _require(isinstance(space, gym.Space), name, f"{kind} must be a gymnasium.Space, got {space!r}")
    try:
        answer = env.reset(seed=SEED)
    except TypeError as error:
        _require("seed" not in str(error), name, f"reset() must take seed and options, got {error}; {GUIDE}")
        return
    except Exception:
        return
    good = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict)
    _require(good, name, f"reset() must return (observation, info), got {_describe(answer)}; {GUIDE}")
    _check_observation(env, answer[0], "reset()", name)
    action_space = copy.deepcopy(env.action_space)  # which several envs may share
    action_space.seed(SEED)
    try:
        answer = env.step(_legal_action(action_space, answer[0]))
    except Exception:
        return
    _check_step(env, answer, name)


def _legal_action(space: Any, obs: Any) -> Any:
    """Return a random action, or the first legal one where the observation has an ``action_mask``."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if mask is None:
        return space.sample()
    if isinstance(space, spaces.Dict):  # a hybrid action: the mask is of its choice
        return {**space.sample(), "action_type": _legal_action(space["action_type"], obs)}
    is_single = isinstance(space, spaces.Discrete)
    sizes = [space.n] if is_single else np.full(space.n, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
    first = [np.argmax(part) for part in np.split(np.asarray(mask), np.cumsum(sizes)[:-1])]
    legal = np.asarray(first, dtype=space.dtype) + getattr(space, "start", 0)
    return legal[0] if is_single else legal


def _check_step(env: Any, answer: Any, name: str) -> None:
    wanted = "step() must return (observation, reward, terminated, truncated, info)"
    good = isinstance(answer, tuple) and len(answer) == 5
    old = "; a single `done` is the old API" if isinstance(answer, tuple) and len(answer) == 4 else ""
    _require(good, name, f"{wanted}, got {_describe(answer)}{old}; {GUIDE}")
    obs, reward, terminated, truncated, info = answer
    _check_observation(env, obs, "step()", name)
    _require(_is_number(reward), name, f"the reward of step() must be a number, got {_describe(reward)}")
    for what, value in (("terminated", terminated), ("truncated", truncated)):
        is_flag = isinstance(value, (bool, np.bool_, int, np.integer)) or getattr(value, "shape", None) == ()
        _require(is_flag, name, f"{what} of step() must be a bool, got {_describe(value)}")
    _require(isinstance(info, dict), name, f"the info of step() must be a dict, got {_describe(info)}")


def _check_observation(env: Any, obs: Any, method: str, name: str) -> None:
    """Raise if an observation cannot be put into an array of the space; its bounds are not looked at."""
    layout = layout_of(env.observation_space)
    if layout is None:  # of no fixed size
        return
    try:
        leaves = layout.split(obs)
    except (KeyError, IndexError, TypeError) as error:
        message = f"the observation of {method} must be in {env.observation_space}, got {_describe(obs)}"
        raise BrokenEnvError(f"{_beginning(name)}: {message}") from error
    for leaf, space in zip(leaves, layout.leaves, strict=True):
        try:
            array = np.asarray(leaf)
        except ValueError:  # lists of different lengths
            array = np.empty((), dtype=object)
        fits = array.shape == (space.shape or ()) and np.can_cast(array.dtype, space.dtype, "same_kind")
        message = f"the observation of {method} must have shape {space.shape} and dtype {space.dtype}"
        _require(fits, name, f"{message}, as {space} says, got {_describe(leaf)}")


def _is_number(value: Any) -> bool:
    try:
        return np.ndim(value) == 0 and float(value) is not None
    except (TypeError, ValueError):
        return False


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _name_of(env: gym.Env[Any, Any]) -> str:
    name = type(env.unwrapped).__name__
    return f"{name} ({env.spec.id})" if env.spec is not None else name


def _beginning(name: str) -> str:
    return f"the env {name} does not keep to gymnasium's API"


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise BrokenEnvError(f"{_beginning(name)}: {message}")


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave the global generators as they are, which an env may draw from although it has its own."""
    torch: Any = sys.modules.get("torch")  # an env process has none
    python, of_numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
        if of_torch is not None:
            torch.set_rng_state(of_torch)
