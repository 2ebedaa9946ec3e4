from .builtin_hooks import (
    LoadCkptHook as LoadCkptHook,
    LogReduceHook as LogReduceHook,
    LogShowHook as LogShowHook,
    SaveCkptHook as SaveCkptHook,
)
from .engine import LearnerEngine as LearnerEngine
from .hooks import (
    LearnerHook as LearnerHook,
    add_learner_hook as add_learner_hook,
    build_learner_hook_by_cfg as build_learner_hook_by_cfg,
    engine_of as engine_of,
    merge_hooks as merge_hooks,
    register_learner_hook as register_learner_hook,
)
from .learner import BaseLearner as BaseLearner, create_learner as create_learner
from .priority import sort_callbacks as sort_callbacks, with_priority as with_priority
