from .base import (
    ISerialEvaluator as ISerialEvaluator,
    create_serial_evaluator as create_serial_evaluator,
    get_serial_evaluator_cls as get_serial_evaluator_cls,
)
from .battle import BattleInteractionSerialEvaluator as BattleInteractionSerialEvaluator
from .interaction import InteractionSerialEvaluator as InteractionSerialEvaluator
from .metric import IMetric as IMetric, MetricSerialEvaluator as MetricSerialEvaluator
from .monitor import VectorEvalMonitor as VectorEvalMonitor
