"""Writing metrics to the loggers of a run, whose disk may be full."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from weakref import WeakSet

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger

logger = logging.getLogger(__name__)

_failed: WeakSet[Logger] = WeakSet()


def write_metrics(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Give metrics to every logger; one that cannot write is named once, and tried again the next time.

    Args:
        trainer: Whose loggers.
        metrics: By name.
        step: The env step.
    """
    for one in trainer.loggers:
        try:
            one.log_metrics(dict(metrics), step=step)
        except OSError as error:
            if one not in _failed:
                _failed.add(one)
                text = "%s could not write metrics at env step %d: %s; the run goes on without them"
                logger.error(text, type(one).__name__, step, error)
