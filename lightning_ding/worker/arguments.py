"""Checks of arguments that several workers take, and the modes of the policies that are given to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.utils.foreign import foreign
from lightning_ding.utils.modes import CollectMode, CommandMode, EvalMode, LearnMode
from lightning_ding.worker.config import CollectorConfig

P = ParamSpec("P")
R = TypeVar("R")


def also_named(**others: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that lets a method take arguments by further names.

    Args:
        others: For each further name, the name in the method's signature.

    Example:
        >>> @also_named(size="batch_size")
        ... def sample(batch_size):
        ...     return batch_size
        >>> sample(4), sample(batch_size=5), sample(size=6)
        (4, 5, 6)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for other in () if others.keys().isdisjoint(kwargs) else others.keys() & kwargs.keys():
                if others[other] in kwargs:
                    raise TypeError(f"{function.__name__}() got {others[other]} twice, also as {other}")
                kwargs[others[other]] = kwargs.pop(other)
            return function(*args, **kwargs)

        return call

    return decorate


def check_amount(name: str, value: Any) -> int:
    """Return an amount as an int.

    Args:
        name: Name of the argument for the message.
        value: A Python or numpy integer, >= 1.

    Raises:
        ValueError: If the amount is not an integer >= 1; a bool is not an integer.

    Example:
        >>> check_amount("n_sample", np.int64(3))
        3
    """
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    require(is_integer and value >= 1, name, "an int >= 1", value)
    return int(value)


def attribute_or_self(one: Any, name: str) -> Any:
    """Return an attribute of an object, or the object itself if there is no such attribute.

    Raises:
        AttributeError: If the attribute is a property that raises it.
    """
    return getattr(one, name) if hasattr(type(one), name) else getattr(one, name, one)


def check_integers(**values: Any) -> None:
    """Check arguments, given by name, that must be integers.

    Raises:
        TypeError: If an argument is neither a Python nor a numpy integer; a bool is not an integer.
    """
    for name, value in values.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, got {value!r}")


def check_switches(**values: Any) -> None:
    """Check arguments, given by name, that must be bools.

    Raises:
        TypeError: If an argument is neither a Python nor a numpy bool.
    """
    for name, value in values.items():
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} must be a bool, got {value!r}")


def check_policy_kwargs(policy_kwargs: Any, of_players: bool = False) -> None:
    """Check the keyword arguments of a policy's ``forward``.

    Args:
        policy_kwargs: A mapping from names to values, or None; with ``of_players`` also a sequence of mappings.
        of_players: Whether several policies act.

    Raises:
        TypeError: If they are not of the allowed form, or a name is not a str.
    """
    if policy_kwargs is None or (type(policy_kwargs) is dict and {*map(type, policy_kwargs)} <= {str}):
        return  # the usual cases, checked in every round
    is_sequence = of_players and isinstance(policy_kwargs, Sequence) and not isinstance(policy_kwargs, (str, bytes))
    parts = list(policy_kwargs) if is_sequence else [policy_kwargs]
    if not all(isinstance(part, Mapping) and all(isinstance(name, str) for name in part) for part in parts):
        allowed = "a mapping of keyword arguments" + (", or a sequence with one for each player" if of_players else "")
        raise TypeError(f"policy_kwargs must be {allowed}, or None, got {policy_kwargs!r}")


def check_level_seeds(level_seeds: Sequence[int] | None, num_envs: int) -> NDArray[np.int64] | None:
    """Return the level that each of N envs plays, shape (N,); None if none were given.

    Raises:
        ValueError: If there is not one int for each env.
    """
    if level_seeds is None:
        return None
    seeds = np.asarray(level_seeds)
    is_right = seeds.shape == (num_envs,) and seeds.dtype.kind in "iu"
    require(is_right, "level_seeds", f"one int for each of {num_envs} envs", level_seeds)
    return seeds.astype(np.int64)


def check_level_switch(waiting: str, has_levels: bool, level_seeds: Any) -> None:
    """Check that a call does not switch levels on or off while data of the last call wait to be returned.

    Args:
        waiting: Description of the data that wait.
        has_levels: Whether these data have levels.
        level_seeds: Levels given to this call; None for no levels.

    Raises:
        ValueError: If only the waiting data or only the call has levels.
    """
    if has_levels != (level_seeds is not None):
        raise ValueError(f"level_seeds must be given or not as for {waiting} from the last call, got {level_seeds!r}")


def learn_mode_of(policy: Any) -> LearnMode:
    """Return the learn mode of a policy, or the mode itself if that is given."""
    return cast(LearnMode, attribute_or_self(policy, "learn_mode"))


def collect_mode_of(policy: Any) -> CollectMode:
    """Return the collect mode of a policy, or the mode itself if that is given."""
    return cast(CollectMode, attribute_or_self(policy, "collect_mode"))


def eval_mode_of(policy: Any) -> EvalMode:
    """Return the eval mode of a policy, or the mode itself if that is given."""
    return cast(EvalMode, attribute_or_self(policy, "eval_mode"))


def command_mode_of(policy: Any) -> CommandMode:
    """Return the command mode of a policy, or the mode itself if that is given."""
    return cast(CommandMode, attribute_or_self(policy, "command_mode"))


def adapted(mode: Any, config: CollectorConfig) -> Any:
    """Return a collect mode as it is, and an adapter of any other object with its functions.

    The adapter gives the policy observations, and takes its outputs and transitions, env by env.

    Raises:
        ValueError: If the config has an option that does nothing for a policy that acts on batches.
        TypeError: If the mode lacks a function.
    """
    if not isinstance(mode, CollectMode):
        return foreign("by_env").ByEnv(mode, config)
    reasons = {
        "deepcopy_obs": "the arrays that such a policy gets are never overwritten",
        "transform_obs": "it makes its tensors itself",
    }
    for name, reason in reasons.items():
        allowed = f"False for a policy that acts on batches, because {reason}"
        require(not getattr(config, name), name, allowed, getattr(config, name))
    return mode
