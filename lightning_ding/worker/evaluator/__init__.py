"""Evaluators: they measure a policy."""

from lightning_ding.worker.evaluator.base import ISerialEvaluator, create_serial_evaluator, get_serial_evaluator_cls
from lightning_ding.worker.evaluator.battle import BattleInteractionSerialEvaluator
from lightning_ding.worker.evaluator.interaction import InteractionSerialEvaluator
from lightning_ding.worker.evaluator.metric import IMetric, MetricSerialEvaluator
from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor

__all__ = [
    "BattleInteractionSerialEvaluator",
    "IMetric",
    "ISerialEvaluator",
    "InteractionSerialEvaluator",
    "MetricSerialEvaluator",
    "VectorEvalMonitor",
    "create_serial_evaluator",
    "get_serial_evaluator_cls",
]
