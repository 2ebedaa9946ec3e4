"""The modes of a policy: what workers may use of it, as immutable namedtuples of bound methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

STATE = "recurrent_state"
"""Column of a policy with memory: the state before the observation, shape (S,)."""
IS_FIRST = "is_first"
"""Column of a policy with memory: whether the state is the one at the start of an episode."""


class LearnMode(NamedTuple):
    """The methods of a policy that a learner uses."""

    forward: Callable[..., dict[str, Any]]
    reset: Callable[..., None]
    info: Callable[[], str]
    monitor_vars: Callable[[], list[str]]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class CollectMode(NamedTuple):
    """The methods of a policy that a collector uses."""

    forward: Callable[..., Any]
    process_transition: Callable[..., dict[str, Any]]
    get_train_sample: Callable[..., Any]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class EvalMode(NamedTuple):
    """The methods of a policy that an evaluator uses."""

    forward: Callable[..., Any]
    reset: Callable[..., None]
    get_attribute: Callable[[str], Any]
    set_attribute: Callable[[str, Any], None]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class CommandMode(NamedTuple):
    """The methods of a policy that a commander uses: settings of the other modes for the current state of the run."""

    get_setting_learn: Callable[[dict[str, Any]], dict[str, Any]]
    get_setting_collect: Callable[[dict[str, Any]], dict[str, Any]]
    get_setting_eval: Callable[[dict[str, Any]], dict[str, Any]]


def enabled_fields(known: Sequence[str], asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the modes to initialise, in the order of ``known``; all if ``asked`` is None.

    Raises:
        ValueError: If ``asked`` contains an unknown mode.
    """
    unknown = set(asked or ()) - set(known)
    if unknown:
        raise ValueError(f"enable_field must be among {tuple(known)}, got {sorted(unknown)}")
    return tuple(field for field in known if asked is None or field in asked)


def not_implemented(policy: object, method: str) -> NotImplementedError:
    """Return the error of a method that a subclass must implement; ``nn.Module`` has no abstract methods."""
    return NotImplementedError(f"{type(policy).__name__} must implement {method} to be used like this")
