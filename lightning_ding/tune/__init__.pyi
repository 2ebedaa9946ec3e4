from .config import TuneConfig as TuneConfig
from .study import Study as Study, TuneResult as TuneResult, tune as tune
