"""Callbacks: stopping, saving, logging and evaluating around the rounds of a run."""

if __name__ != "lightning_ding.callbacks":  # the folder is also importable from the repository root, as a second copy
    raise ImportError("import lightning_ding.callbacks, not callbacks")

from lightning_ding.callbacks.best_checkpoint import BestCheckpoint
from lightning_ding.callbacks.curriculum import Curriculum
from lightning_ding.callbacks.defaults import default_callbacks
from lightning_ding.callbacks.episode_record import EpisodeRecord
from lightning_ding.callbacks.evaluation_interval import EvaluationInterval
from lightning_ding.callbacks.initial_weights import InitialWeights
from lightning_ding.callbacks.last_line import LastLine
from lightning_ding.callbacks.metrics import MetricsLogger, write_metrics
from lightning_ding.callbacks.progress_bar import EnvStepProgressBar
from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.callbacks.run_checkpoint import RunCheckpoint
from lightning_ding.callbacks.run_evaluator import RunEvaluator
from lightning_ding.callbacks.self_play import SelfPlay
from lightning_ding.callbacks.stop import FinalEvaluation, Limits, StopAtEnvStep, StopAtReturn, StopAtTrainIter
from lightning_ding.callbacks.stop_on_signal import StopOnSignal
from lightning_ding.callbacks.torch_threads import TorchThreads
from lightning_ding.callbacks.watchdog import Watchdog

__all__ = [
    "BestCheckpoint",
    "Curriculum",
    "EnvStepProgressBar",
    "EpisodeRecord",
    "EvaluationInterval",
    "FinalEvaluation",
    "InitialWeights",
    "LastLine",
    "LearningReporter",
    "Limits",
    "MetricsLogger",
    "RunCheckpoint",
    "RunEvaluator",
    "SelfPlay",
    "StopAtEnvStep",
    "StopAtReturn",
    "StopAtTrainIter",
    "StopOnSignal",
    "TorchThreads",
    "Watchdog",
    "WeightPublisher",
    "default_callbacks",
    "write_metrics",
]
