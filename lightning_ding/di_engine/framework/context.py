"""Contexts: what the middleware of a task hand to each other in a step, as attributes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import Self


@dataclass
class Context:
    """The data of one step of a task; any attribute may be set.

    Example:
        >>> ctx = Context()
        >>> ctx.seen, ctx.lost = 3, 4
        >>> ctx.keep("seen")
        >>> after = ctx.renew()
        >>> after.total_step, after.seen, after.has_attr("lost")
        (1, 3, False)
    """

    KEPT: ClassVar[tuple[str, ...]] = ()
    """Attributes that every context of this class hands to the next step."""

    total_step: int = 0
    """Steps of the task before this one."""

    def __post_init__(self) -> None:
        self._kept_keys = set(self.KEPT)

    def renew(self) -> Self:
        """Return the context of the next step, with the kept attributes."""
        new = type(self)()
        for name in self._kept_keys:
            if self.has_attr(name):
                setattr(new, name, getattr(self, name))
        new._kept_keys |= self._kept_keys
        new.total_step = self.total_step + 1
        return new

    def keep(self, *keys: str) -> None:
        """Hand these attributes to the next step, and to those after it."""
        self._kept_keys |= set(keys)

    def has_attr(self, key: str) -> bool:
        """Return whether there is an attribute of this name."""
        return hasattr(self, key)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no middleware has set {name!r} of the {type(self).__name__} in this step")


@dataclass
class RLContext(Context):
    """Entries that middleware reads and sets to learn and to evaluate."""

    train_iter: int = 0
    """Updates so far."""
    train_data: Any = None
    """Data to learn from: columns, or a list of transitions; None if there are too few."""
    train_output: Any = None
    """Report of the last update, or a list of those of all updates of this step."""
    eval_value: float = -math.inf
    """Mean return of the evaluation of this step; minus infinity if there was none."""
    last_eval_iter: int = -1
    """Updates at the last evaluation; -1 before the first one."""
    last_eval_value: float = -math.inf
    """Mean return of the last evaluation."""
    eval_output: dict[str, Any] = field(default_factory=dict)
    """The results of the evaluation of this step."""
    info_for_logging: dict[str, Any] = field(default_factory=dict)
    """Further numbers for a user's logger."""
    wandb_url: str = ""
    """Not used here."""


@dataclass
class OnlineRLContext(RLContext):
    """The context of a task that learns from envs."""

    KEPT: ClassVar[tuple[str, ...]] = (
        *("env_step", "env_episode", "train_iter", "last_eval_iter", "last_eval_value", "wandb_url"),
    )

    env_step: int = 0
    """Env steps so far."""
    env_episode: int = 0
    """Episodes that ended so far."""
    collect_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the policy's collect mode, such as ``eps``."""
    trajectories: Any = None
    """Transitions of this step, those of an env in chronological order, one env after the other."""
    trajectory_end_idx: list[int] = field(default_factory=list)
    """Index of the last transition of each env in ``trajectories``."""
    episodes: Any = None
    """Episodes of this step, each a list of transitions."""


@dataclass
class OfflineRLContext(RLContext):
    """The context of a task that learns from a data set."""

    KEPT: ClassVar[tuple[str, ...]] = (
        *("trained_env_step", "train_epoch", "train_iter", "last_eval_iter", "last_eval_value", "wandb_url"),
    )

    trained_env_step: int = 0
    """Transitions that were drawn so far."""
    train_epoch: int = 0
    """Passes over the data set so far."""
