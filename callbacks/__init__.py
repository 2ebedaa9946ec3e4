"""Callbacks: what a run does beside collecting and learning, one idea a file."""

if __name__ != "lightning_ding.callbacks":  # the folder is also importable from the repository root, as a second copy
    raise ImportError("import lightning_ding.callbacks, not callbacks")

from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
from lightning_ding.callbacks.defaults import default_callbacks
from lightning_ding.callbacks.final_evaluation import FinalEvaluation
from lightning_ding.callbacks.interrupt import StopOnSignal
from lightning_ding.callbacks.last_line import LastLine
from lightning_ding.callbacks.max_env_step import StopAtEnvStep
from lightning_ding.callbacks.max_train_iter import StopAtTrainIter
from lightning_ding.callbacks.metrics import MetricsLogger
from lightning_ding.callbacks.progress_bar import EnvStepProgressBar
from lightning_ding.callbacks.publish_weights import WeightPublisher
from lightning_ding.callbacks.report_learning import LearningReporter
from lightning_ding.callbacks.run_checkpoint import RunCheckpoint
from lightning_ding.callbacks.run_evaluator import RunEvaluator
from lightning_ding.callbacks.stop_value import StopAtReturn
from lightning_ding.callbacks.watchdog import Watchdog

__all__ = [
    "BestCheckpoint",
    "EnvStepProgressBar",
    "FinalEvaluation",
    "LastLine",
    "LearningReporter",
    "MetricsLogger",
    "RunCheckpoint",
    "RunEvaluator",
    "StopAtEnvStep",
    "StopAtReturn",
    "StopAtTrainIter",
    "StopOnSignal",
    "Watchdog",
    "WeightPublisher",
    "default_callbacks",
]
