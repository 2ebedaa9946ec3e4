"""Learners by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.registry import LEARNER_REGISTRY
from lightning_ding.worker.factory import get_class
from lightning_ding.worker.learner.base import BaseLearner


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """Return the learner that ``cfg.type`` names, ``base`` if it names none, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is not registered.
    """
    learner: BaseLearner = get_class(LEARNER_REGISTRY, cfg, "base")(cfg, **kwargs)
    return learner
