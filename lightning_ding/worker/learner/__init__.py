"""Learners and their hooks."""

from lightning_ding.worker.learner.base import BaseLearner
from lightning_ding.worker.learner.builtin_hooks import LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from lightning_ding.worker.learner.engine import LearnerEngine
from lightning_ding.worker.learner.factory import create_learner
from lightning_ding.worker.learner.hook import (
    LearnerHook,
    add_learner_hook,
    merge_hooks,
    sort_callbacks,
    with_priority,
)
from lightning_ding.worker.learner.hooks_by_config import build_learner_hook_by_cfg, register_learner_hook

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
    "merge_hooks",
    "register_learner_hook",
    "sort_callbacks",
    "with_priority",
]
