from .best_checkpoint import BestCheckpoint as BestCheckpoint
from .curriculum import Curriculum as Curriculum
from .defaults import (
    LastLine as LastLine,
    TorchThreads as TorchThreads,
    default_callbacks as default_callbacks,
)
from .episode_record import EpisodeRecord as EpisodeRecord
from .evaluation_interval import EvaluationInterval as EvaluationInterval
from .imagined_video import ImaginedVideo as ImaginedVideo
from .initial_weights import InitialWeights as InitialWeights
from .metrics import MetricsLogger as MetricsLogger, write_metrics as write_metrics
from .progress_bar import EnvStepProgressBar as EnvStepProgressBar
from .remote import LearningReporter as LearningReporter, WeightPublisher as WeightPublisher
from .run_checkpoint import RunCheckpoint as RunCheckpoint
from .run_evaluator import RunEvaluator as RunEvaluator
from .self_play import SelfPlay as SelfPlay
from .stop import (
    FinalEvaluation as FinalEvaluation,
    Limits as Limits,
    StopAtEnvStep as StopAtEnvStep,
    StopAtReturn as StopAtReturn,
    StopAtTrainIter as StopAtTrainIter,
)
from .stop_on_signal import StopOnSignal as StopOnSignal
from .watchdog import Watchdog as Watchdog
