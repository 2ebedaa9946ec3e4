"""Prepare a Trainer for a run with a datamodule that collects, and handle the arguments of datamodules."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_ding.callbacks import Limits, Watchdog
from lightning_ding.callbacks.continued_loggers import note_checkpoint
from lightning_ding.callbacks.defaults import add_checkpoint_callbacks
from lightning_ding.callbacks.evaluation_interval import prepare_intervals
from lightning_ding.callbacks.metrics import prepare_loggers

SLOW = 5.0  # seconds
FIXED = frozenset(
    {
        *("env_id", "mode", "wrappers", "env_kwargs", "env_timeout", "train_wrappers", "eval_wrappers", "eval_env_id"),
        *("eval_env_kwargs", "import_names", "info_keys", "monitor", "eval_every", "checkpoint_every"),
        *("norm_obs", "norm_reward", "demonstrations"),
    }
)
"""Options that are checked or translated by the constructor, so that a later value would have no effect or only half
of it. Others, such as ``max_env_step``, may be set between two fits."""
NOT_KEPT = frozenset({"demonstrations"})
"""Those of them that are no attributes."""


@runtime_checkable
class ChecksCallbacks(Protocol):
    """A policy that can check whether the callbacks of a Trainer work with it."""

    def check_callbacks(self, trainer: Trainer) -> None:
        """Raise for the first callback that cannot work."""
        ...


def set_up_trainer(trainer: Trainer, limits: Limits) -> None:
    """Prepare a Trainer for a run with a datamodule that collects.

    Refuse callbacks that cannot work and loggers that cannot write, prepare the intervals of evaluations, add the
    checkpoint callbacks of this project, so that ``ckpt_path="last"`` finds them, and remove Lightning's default limit
    of 1000 epochs if the run has its own limit.

    Args:
        trainer: The Trainer; its module is attached already.
        limits: Limits of the run, from the datamodule and the policy's config.

    Raises:
        ValueError: For ``trainer.predict``, a callback that cannot work, or two kinds of intervals.
        OSError: If the folder of a logger cannot be written.
    """
    if trainer.state.fn == "predict":
        raise ValueError(
            "trainer.predict needs a data set, which an env does not provide: use trainer.test to evaluate the "
            "policy, policy(observations) to get actions, or pass a DataLoader of observations"
        )
    policy = trainer.lightning_module
    if isinstance(policy, ChecksCallbacks):
        policy.check_callbacks(trainer)
    note_checkpoint(trainer)
    prepare_loggers(trainer)
    prepare_intervals(trainer)
    add_checkpoint_callbacks(trainer)
    limits.lift_default_epochs(trainer)


def check_fields(policy: Any, names: Iterable[str], reader: str) -> None:
    """Raise if the config of a policy lacks a field, such as one that derives from ``PolicyConfig`` alone.

    Args:
        policy: The policy.
        names: Dotted names of the fields.
        reader: Name of the class that reads them.

    Raises:
        ValueError: Naming the field.
    """
    for name in names:
        found: Any = policy.config
        for part in name.split("."):
            kind, found = type(found).__name__, getattr(found, part, None)
            if found is None:
                raise ValueError(
                    f"the config of {type(policy).__name__} must have the field {name!r}, which {reader} reads, but "
                    f"its {kind} has no {part!r}: derive config_class from the config of another algorithm, or add it"
                )


def start_watchdogs(trainer: Trainer, stage: str) -> None:
    """Start the watchdogs of a Trainer, so that they watch how envs are made too.

    Lightning sets up the callbacks after the datamodule, and calls ``setup`` of a watchdog a second time, which starts
    it again.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Watchdog):
            callback.setup(trainer, trainer.lightning_module, stage)


@contextmanager
def said_if_slow(what: str, seconds: float = SLOW) -> Iterator[None]:
    """Log one line if the body of the ``with`` statement takes longer, while it still runs.

    Args:
        what: Description of the body, such as "making 2 envs".
        seconds: Longest time without the line, > 0.
    """
    timer = threading.Timer(seconds, rank_zero_info, (f"{what} takes longer than {seconds:g} s",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def plain(value: Any) -> Any:
    """Return an argument as None, booleans, numbers, strings, lists and dicts; callables are given by their names.

    Example:
        >>> plain({"env_id": partial(dict, a=1), "wrappers": (plain,), "seed": np.int64(3)})
        {'env_id': 'builtins.dict', 'wrappers': ['lightning_ding.datamodules.trainer_setup.plain'], 'seed': 3}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, partial):
        return plain(value.func)
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(below) for below in value]
    return getattr(value, "id", None) or str(value)  # an EnvSpec has an id


class FixedOptions:
    """Refuses to set an option that is read once, instead of ignoring it."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute.

        Raises:
            AttributeError: For an option that only the constructor takes.
        """
        if name in FIXED and (name in vars(self) or name in NOT_KEPT):
            raise AttributeError(
                f"{name} cannot be set later: pass it to the constructor of a new {type(self).__name__}"
            )
        super().__setattr__(name, value)
