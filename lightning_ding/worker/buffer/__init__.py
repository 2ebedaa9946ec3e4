"""Replay buffers."""

from lightning_ding.worker.buffer.advanced import AdvancedReplayBuffer
from lightning_ding.worker.buffer.base import IBuffer, create_buffer, get_buffer_cls
from lightning_ding.worker.buffer.episode import EpisodeReplayBuffer
from lightning_ding.worker.buffer.her import HERReplayBuffer
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer
from lightning_ding.worker.buffer.prioritised_sequence import PrioritisedSequenceReplayBuffer
from lightning_ding.worker.buffer.sampling import NotEnoughError
from lightning_ding.worker.buffer.sequence import SequenceReplayBuffer

__all__ = [
    "AdvancedReplayBuffer",
    "EpisodeReplayBuffer",
    "HERReplayBuffer",
    "IBuffer",
    "NaiveReplayBuffer",
    "NotEnoughError",
    "PrioritisedSequenceReplayBuffer",
    "SequenceReplayBuffer",
    "create_buffer",
    "get_buffer_cls",
]
