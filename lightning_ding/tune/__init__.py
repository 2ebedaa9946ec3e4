"""Search for hyper-parameters with Optuna (extra ``tune``)."""

from lightning_ding.tune.config import TuneConfig
from lightning_ding.tune.study import Study, TuneResult, tune

__all__ = ["Study", "TuneConfig", "TuneResult", "tune"]
