"""Evaluators: they measure a policy."""

from lightning_ding.worker.evaluator.base import ISerialEvaluator
from lightning_ding.worker.evaluator.factory import create_serial_evaluator
from lightning_ding.worker.evaluator.interaction import InteractionSerialEvaluator
from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor

__all__ = ["ISerialEvaluator", "InteractionSerialEvaluator", "VectorEvalMonitor", "create_serial_evaluator"]
