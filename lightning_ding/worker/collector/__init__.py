"""Collectors: they act in environments and return transitions."""

from lightning_ding.worker.collector.base import ISerialCollector, create_serial_collector, get_serial_collector_cls
from lightning_ding.worker.collector.battle_episode import BattleEpisodeSerialCollector
from lightning_ding.worker.collector.battle_sample import BattleSampleSerialCollector
from lightning_ding.worker.collector.episode import EpisodeSerialCollector
from lightning_ding.worker.collector.sample import SampleSerialCollector
from lightning_ding.worker.transitions import to_tensor_transitions

__all__ = [
    "BattleEpisodeSerialCollector",
    "BattleSampleSerialCollector",
    "EpisodeSerialCollector",
    "ISerialCollector",
    "SampleSerialCollector",
    "create_serial_collector",
    "get_serial_collector_cls",
    "to_tensor_transitions",
]
