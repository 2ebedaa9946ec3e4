"""Short names of wrappers for configs, with the versions for single envs and for vector envs.

Names are those of gymnasium's wrappers, except for what gymnasium lacks: rewards that also report the raw ones, masks
of legal actions, and the parts of :func:`~lightning_ding.envs.make_atari`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.vector import VectorEnv, VectorRewardWrapper

from lightning_ding.config import require
from lightning_ding.envs.wrappers import ActionMask, PreviousStep

Wrapper = Callable[..., Any]


class Named(NamedTuple):
    """Meaning of a short name."""

    single: Wrapper | str
    """Wrapper of an env, or ``module:name`` in this package; its other parameters are the arguments in a config."""
    vector: Wrapper | str | None = None
    """Wrapper of a vector env with the same arguments, for ``mode="native"``; None if there is none."""
    is_for_training: bool = False
    """Whether evaluations leave it out, because it changes returns or the ends of episodes."""
    changes_reward: bool = False
    """Whether it changes rewards and reports the raw ones."""
    repeats_action: bool = False
    """Whether a step is several steps of the env inside, of which it reports the last info only."""


def _reward(wrapper: str) -> Named:
    return Named(wrapper, wrapper, is_for_training=True, changes_reward=True)


def _found(wrapper: Wrapper | str | None) -> Any:
    """Return the wrapper of a ``Named``, from its module."""
    if not isinstance(wrapper, str):
        return wrapper
    module, _, name = wrapper.partition(":")
    return getattr(import_module(f"lightning_ding.envs.{module}"), name)


BY_NAME: dict[str, Named] = {
    "action_mask": Named(ActionMask),
    "atari_preprocessing": Named(wrappers.AtariPreprocessing, repeats_action=True),
    "clip_action": Named(wrappers.ClipAction, wrappers.vector.ClipAction),
    "clip_reward": _reward("rewards:clip_reward"),
    "discretize_action": Named(wrappers.DiscretizeAction),
    "discretize_observation": Named(wrappers.DiscretizeObservation),
    "dtype": Named(wrappers.DtypeObservation, wrappers.vector.DtypeObservation),
    "episodic_life": Named("atari:EpisodicLife", is_for_training=True),
    "filter_observation": Named(wrappers.FilterObservation, wrappers.vector.FilterObservation),
    "fire_at_start": Named("atari:FireAtStart"),
    "flatten": Named(wrappers.FlattenObservation, wrappers.vector.FlattenObservation),
    "frame_stack": Named("atari:FrameStackObservation"),
    "grayscale": Named(wrappers.GrayscaleObservation, wrappers.vector.GrayscaleObservation),
    "max_and_skip": Named(wrappers.MaxAndSkipObservation, repeats_action=True),
    "previous_step": Named(PreviousStep),
    "repeat_action": Named(wrappers.RepeatAction, repeats_action=True),
    "rescale_action": Named(wrappers.RescaleAction, wrappers.vector.RescaleAction),
    "rescale_observation": Named(wrappers.RescaleObservation, wrappers.vector.RescaleObservation),
    "reshape": Named(wrappers.ReshapeObservation, wrappers.vector.ReshapeObservation),
    "resize": Named(wrappers.ResizeObservation, wrappers.vector.ResizeObservation),
    "scale_reward": _reward("rewards:scale_reward"),
    "sign_reward": _reward("rewards:sign_reward"),
    "sticky_action": Named(wrappers.StickyAction),
    "time_aware": Named(wrappers.TimeAwareObservation),
    "time_limit": Named(wrappers.TimeLimit),
}
"""The wrappers by short name."""


def wrap_by_name(env: Any, wrapper: str, arguments: Mapping[str, Any]) -> Any:
    """Return an env or vector env in the wrapper of a short name.

    Args:
        env: A gymnasium env or vector env.
        wrapper: A key of ``BY_NAME``.
        arguments: Arguments of the wrapper.

    Raises:
        ValueError: If the env is a vector env, and the wrapper has no version for one.
        ImportError: If the wrapper needs a package that is not installed.

    Example:
        >>> wrap_by_name(gym.make("CartPole-v1"), "frame_stack", {"stack_size": 2}).observation_space.shape
        (2, 4)
    """
    named = BY_NAME[wrapper]
    make = _found(named.vector if isinstance(env, VectorEnv) else named.single)
    allowed = "one with a version for vector envs, with mode='native'"
    require(make is not None, "wrappers", allowed, wrapper)
    try:
        return make(env, **arguments)
    except gym.error.DependencyNotInstalled as error:
        extra = "atari" if "cv2" in str(error) or "opencv" in str(error) else "video"
        wanted = f"the wrapper {wrapper!r} needs the extra {extra!r}: pip install 'lightning_ding[{extra}]'"
        raise ImportError(f"{wanted} ({error})") from error


def named_wrapper(wrapper: str, arguments: Any, name: str = "wrappers") -> Callable[[Any], Any]:
    """Return the callable of a short name with its arguments.

    Args:
        wrapper: A key of ``BY_NAME``.
        arguments: Mapping of arguments, or None for none; lists become tuples, which YAML lacks.
        name: Name of the argument in errors.

    Raises:
        TypeError: If the arguments are no mapping, or not those of the wrapper.
    """
    parameters = inspect.signature(_found(BY_NAME[wrapper].single))
    known = ", ".join(list(parameters.parameters)[1:]) or "none"
    if not isinstance(arguments, (Mapping, type(None))):
        raise TypeError(f"{name}: the arguments of {wrapper} must be a mapping ({known}), got {arguments!r}")
    given = {key: _as_tuple(value) for key, value in (arguments or {}).items()}
    try:
        parameters.bind_partial(None, **given)  # an unknown argument is reported before a missing one
        parameters.bind(None, **given)
    except TypeError as error:
        raise TypeError(f"{name}: {wrapper} {error}; its arguments are {known}") from error
    return functools.partial(wrap_by_name, wrapper=wrapper, arguments=given)


def check_order(found: Iterable[Any], name: str = "wrappers") -> None:
    """Raise if a wrapper that repeats actions is around one that changes rewards, whose raw rewards it would lose."""
    inside: str | None = None
    for one in found:
        short = short_name(one)
        if short is None:
            continue
        if BY_NAME[short].repeats_action:
            require(inside is None, name, f"in an order with {short!r} before {inside!r}", f"{inside!r} first")
        if BY_NAME[short].changes_reward:
            inside = short


def as_list(wrappers: Any) -> list[Any]:
    """Return wrappers as a list, which may be given as one name, mapping or callable."""
    is_one = isinstance(wrappers, (str, Mapping)) or callable(wrappers)
    return [wrappers] if is_one else list(wrappers)


def for_evaluation(wrappers: Any) -> tuple[Any, ...]:
    """Return the wrappers without the named ones that evaluations leave out.

    Args:
        wrappers: Wrappers in any form that :func:`~lightning_ding.envs.named.find_wrappers` takes or returns.

    Example:
        >>> for_evaluation(["grayscale", "clip_reward", {"frame_stack": {"stack_size": 4}}])
        ('grayscale', {'frame_stack': {'stack_size': 4}})
    """
    shorts = ((one, short_name(one)) for one in as_list(wrappers))
    return tuple(one for one, short in shorts if short is None or not BY_NAME[short].is_for_training)


def warn_of_changed_returns(found: Iterable[Any]) -> None:
    """Warn of wrappers that change the rewards of evaluations too.

    Args:
        found: Callables that :func:`~lightning_ding.envs.named.find_wrappers` returned.
    """
    for one in found:
        kind = one.func if isinstance(one, functools.partial) else one
        if isinstance(kind, type) and issubclass(kind, (gym.RewardWrapper, VectorRewardWrapper)):
            warnings.warn(
                f"wrappers: {kind.__name__} changes the rewards that evaluations measure too; put it into "
                "train_wrappers, or use the short name clip_reward, scale_reward or sign_reward, since evaluations "
                "leave those out",
                stacklevel=3,
            )


def short_name(wrapper: Any) -> str | None:
    """Return the key of ``BY_NAME`` that a wrapper names, in any form; None if it names none."""
    if isinstance(wrapper, functools.partial) and wrapper.func is wrap_by_name:
        return str(wrapper.keywords["wrapper"])
    if isinstance(wrapper, Mapping):
        wrapper = next(iter(wrapper)) if len(wrapper) == 1 else None
    return wrapper if isinstance(wrapper, str) and wrapper in BY_NAME else None


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
