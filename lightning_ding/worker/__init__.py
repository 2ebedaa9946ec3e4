"""Workers: collectors, evaluators, buffers and learners. They use a policy's modes and contain no algorithm."""

# ruff: noqa: F403 - the packages below define ``__all__``

from lightning_ding.worker import buffer, collector, evaluator, learner
from lightning_ding.worker.aggregator import LearnerAggregator, merge_info
from lightning_ding.worker.base import create_comm_collector, create_comm_learner
from lightning_ding.worker.buffer import *
from lightning_ding.worker.collector import *
from lightning_ding.worker.commander import BaseSerialCommander
from lightning_ding.worker.evaluator import *
from lightning_ding.worker.learner import *

__all__ = ["BaseSerialCommander", "LearnerAggregator", "create_comm_collector", "create_comm_learner", "merge_info"]
__all__ += buffer.__all__
__all__ += collector.__all__
__all__ += evaluator.__all__
__all__ += learner.__all__
