"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and know no algorithm."""

from lightning_ding.worker.aggregator import LearnerAggregator, merge_info
from lightning_ding.worker.buffer import IBuffer, NaiveReplayBuffer, create_buffer, get_buffer_cls
from lightning_ding.worker.collector import (
    EpisodeSerialCollector,
    ISerialCollector,
    SampleSerialCollector,
    create_serial_collector,
    get_serial_collector_cls,
    to_tensor_transitions,
)
from lightning_ding.worker.commander import BaseSerialCommander
from lightning_ding.worker.evaluator import (
    IMetric,
    InteractionSerialEvaluator,
    ISerialEvaluator,
    MetricSerialEvaluator,
    VectorEvalMonitor,
    create_serial_evaluator,
    get_serial_evaluator_cls,
)
from lightning_ding.worker.learner import (
    BaseLearner,
    LearnerEngine,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    create_learner,
    merge_hooks,
    register_learner_hook,
    sort_callbacks,
    with_priority,
)

__all__ = [
    "BaseLearner",
    "BaseSerialCommander",
    "EpisodeSerialCollector",
    "IBuffer",
    "IMetric",
    "ISerialCollector",
    "ISerialEvaluator",
    "InteractionSerialEvaluator",
    "LearnerAggregator",
    "LearnerEngine",
    "LearnerHook",
    "MetricSerialEvaluator",
    "NaiveReplayBuffer",
    "SampleSerialCollector",
    "VectorEvalMonitor",
    "add_learner_hook",
    "build_learner_hook_by_cfg",
    "create_buffer",
    "create_learner",
    "create_serial_collector",
    "create_serial_evaluator",
    "get_buffer_cls",
    "get_serial_collector_cls",
    "get_serial_evaluator_cls",
    "merge_hooks",
    "merge_info",
    "register_learner_hook",
    "sort_callbacks",
    "to_tensor_transitions",
    "with_priority",
]
