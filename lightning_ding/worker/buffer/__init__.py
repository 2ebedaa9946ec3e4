"""Replay buffers."""

from lightning_ding.worker.buffer.base import IBuffer
from lightning_ding.worker.buffer.factory import create_buffer, get_buffer_cls
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer

__all__ = ["IBuffer", "NaiveReplayBuffer", "create_buffer", "get_buffer_cls"]
