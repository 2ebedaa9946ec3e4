"""The modes of a policy: what workers may use of it, as immutable namedtuples of bound methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

STATE = "recurrent_state"
"""Column of a policy with memory: the state before the observation, shape (S,)."""
IS_FIRST = "is_first"
"""Column of a policy with memory: whether the state is the one at the start of an episode."""


class LearnMode(NamedTuple):
    """The methods of a policy that a learner uses.

    A custom training loop that calls ``forward`` replaces a datamodule, so it also has to do these things where they
    are used: add env steps to ``policy.progress.env_step``, which schedules read; return priorities to the buffer; add
    collected transitions to ``policy.normaliser`` and to the reward model, ``policy.learner.rewards``.
    """

    forward: Callable[..., dict[str, Any]]
    """Learn from a minibatch or, on-policy, from a rollout, and return the metrics, perhaps with ``priority``, (B,).
    Scheduled values are set before, and whether the update was finite is checked at once, see ``on_non_finite``."""
    reset: Callable[..., None]
    """Reset the learner's state of these slots; None means all."""
    info: Callable[[], str]
    """Return a description of the policy."""
    monitor_vars: Callable[[], list[str]]
    """Return the names of the metrics to log."""
    get_attribute: Callable[[str], Any]
    """Return a setting by its name, such as ``batch_size``."""
    set_attribute: Callable[[str, Any], None]
    """Change a setting by its name."""
    state_dict: Callable[[], dict[str, Any]]
    """Return the weights, and the states of optimizers and schedulers."""
    load_state_dict: Callable[[dict[str, Any]], None]
    """Restore what ``state_dict`` returned."""


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


def is_unknown_attribute(error: NotImplementedError | KeyError, name: str) -> bool:
    """Return whether an error of a policy's ``get_attribute`` says that the policy has no attribute of a name.

    Policies of users raise a KeyError with the name, or with nothing.
    """
    return isinstance(error, NotImplementedError) or not error.args or name in str(error.args[0])


def not_implemented(policy: object, method: str) -> NotImplementedError:
    """Return the error of a method that a subclass must implement; ``nn.Module`` has no abstract methods."""
    return NotImplementedError(f"{type(policy).__name__} must implement {method} to be used like this")
