"""Learners and their hooks."""

from lightning_ding.worker.learner.builtin_hooks import LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from lightning_ding.worker.learner.engine import LearnerEngine
from lightning_ding.worker.learner.hooks import (
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    engine_of,
    merge_hooks,
    register_learner_hook,
    sort_callbacks,
    with_priority,
)
from lightning_ding.worker.learner.learner import BaseLearner, create_learner

__all__ = [
    "BaseLearner",
    "LearnerEngine",
    "LearnerHook",
    "LoadCkptHook",
    "LogReduceHook",
    "LogShowHook",
    "SaveCkptHook",
    "add_learner_hook",
    "build_learner_hook_by_cfg",
    "create_learner",
    "engine_of",
    "merge_hooks",
    "register_learner_hook",
    "sort_callbacks",
    "with_priority",
]
