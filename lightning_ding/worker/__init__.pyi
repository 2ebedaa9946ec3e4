import typing

import lightning_ding.di_engine.commander as _commander

from .aggregator import LearnerAggregator as LearnerAggregator, merge_info as merge_info
from .buffer import (
    AdvancedReplayBuffer as AdvancedReplayBuffer,
    EpisodeReplayBuffer as EpisodeReplayBuffer,
    HERReplayBuffer as HERReplayBuffer,
    IBuffer as IBuffer,
    ImaginationReplayBuffer as ImaginationReplayBuffer,
    LAPReplayBuffer as LAPReplayBuffer,
    NaiveReplayBuffer as NaiveReplayBuffer,
    NotEnoughError as NotEnoughError,
    PrioritisedSequenceReplayBuffer as PrioritisedSequenceReplayBuffer,
    SequenceReplayBuffer as SequenceReplayBuffer,
    create_buffer as create_buffer,
    get_buffer_cls as get_buffer_cls,
)
from .collector import (
    BattleEpisodeSerialCollector as BattleEpisodeSerialCollector,
    BattleSampleSerialCollector as BattleSampleSerialCollector,
    EpisodeSerialCollector as EpisodeSerialCollector,
    ISerialCollector as ISerialCollector,
    SampleSerialCollector as SampleSerialCollector,
    create_serial_collector as create_serial_collector,
    get_serial_collector_cls as get_serial_collector_cls,
)
from .evaluator import (
    BattleInteractionSerialEvaluator as BattleInteractionSerialEvaluator,
    IMetric as IMetric,
    InteractionSerialEvaluator as InteractionSerialEvaluator,
    ISerialEvaluator as ISerialEvaluator,
    MetricSerialEvaluator as MetricSerialEvaluator,
    VectorEvalMonitor as VectorEvalMonitor,
    create_serial_evaluator as create_serial_evaluator,
    get_serial_evaluator_cls as get_serial_evaluator_cls,
)
from .learner import (
    BaseLearner as BaseLearner,
    LearnerEngine as LearnerEngine,
    LearnerHook as LearnerHook,
    LoadCkptHook as LoadCkptHook,
    LogReduceHook as LogReduceHook,
    LogShowHook as LogShowHook,
    SaveCkptHook as SaveCkptHook,
    add_learner_hook as add_learner_hook,
    build_learner_hook_by_cfg as build_learner_hook_by_cfg,
    create_learner as create_learner,
    engine_of as engine_of,
    merge_hooks as merge_hooks,
    register_learner_hook as register_learner_hook,
    sort_callbacks as sort_callbacks,
    with_priority as with_priority,
)
from .transitions import to_tensor_transitions as to_tensor_transitions

BaseSerialCommander = _commander.BaseSerialCommander

def __getattr__(name: str) -> typing.Any: ...  # the workers of distributed runs
