from .base import (
    ISerialCollector as ISerialCollector,
    create_serial_collector as create_serial_collector,
    get_serial_collector_cls as get_serial_collector_cls,
)
from .battle_episode import BattleEpisodeSerialCollector as BattleEpisodeSerialCollector
from .battle_sample import BattleSampleSerialCollector as BattleSampleSerialCollector
from .episode import EpisodeSerialCollector as EpisodeSerialCollector
from .sample import SampleSerialCollector as SampleSerialCollector
