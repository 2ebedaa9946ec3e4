"""Workers: collectors, evaluators and buffers. They use a policy's modes and know no algorithm."""

from lightning_ding.worker.buffer import IBuffer, NaiveReplayBuffer, create_buffer, get_buffer_cls
from lightning_ding.worker.collector import (
    ISerialCollector,
    SampleSerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
)
from lightning_ding.worker.evaluator import (
    InteractionSerialEvaluator,
    ISerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
)

__all__ = [
    "IBuffer",
    "ISerialCollector",
    "ISerialEvaluator",
    "InteractionSerialEvaluator",
    "NaiveReplayBuffer",
    "SampleSerialCollector",
    "VectorEvalMonitor",
    "create_buffer",
    "create_serial_collector",
    "create_serial_evaluator",
    "get_buffer_cls",
    "get_serial_collector_cls",
]
