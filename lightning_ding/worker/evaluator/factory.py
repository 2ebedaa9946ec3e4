"""Serial evaluators by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.worker.evaluator.base import ISerialEvaluator
from lightning_ding.worker.factory import get_class


def get_serial_evaluator_cls(cfg: Any) -> type[ISerialEvaluator]:
    """Return the class that ``cfg.type`` names; ``interaction`` if it names none.

    Raises:
        KeyError: If the type is not registered.
    """
    found: type[ISerialEvaluator] = get_class(SERIAL_EVALUATOR_REGISTRY, cfg, default_type="interaction")
    return found


def create_serial_evaluator(cfg: Any, **kwargs: Any) -> ISerialEvaluator:
    """Return the evaluator that ``cfg.type`` names, made with ``cfg`` and ``kwargs``; ``interaction`` if it names none.

    Raises:
        KeyError: If the type is not registered.
    """
    return get_serial_evaluator_cls(cfg)(cfg, **kwargs)  # type: ignore[call-arg]
