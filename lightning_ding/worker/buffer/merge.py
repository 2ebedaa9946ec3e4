"""Taking over what the buffers of another number of ranks saved.

Shapes: K transitions of a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_ding.worker.buffer.advanced import AdvancedReplayBuffer
from lightning_ding.worker.buffer.base import IBuffer
from lightning_ding.worker.buffer.form import Rows
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer
from lightning_ding.worker.buffer.stored import StoredBuffer

PARTS = 64  # in which buffers take turns, so that of several full ones the newest of each are kept


def load_merged(buffer: IBuffer, files: Sequence[Path], seed: np.random.SeedSequence) -> tuple[int, int]:
    """Fill an empty buffer with what several buffers saved, oldest first; if it is too much, the newest stay.

    Numbers of envs and episodes of the second file and on are moved up, so that no two episodes have the same.

    Args:
        buffer: Of the type and size of those that were saved.
        files: What ``save_data`` wrote, at least one. Only naive and advanced buffers can take more than the first.
        seed: Of the draws, because several buffers may begin with the same file.

    Returns:
        How many of the files were taken, and the first episode id that no transition has.
    """
    can_merge = type(buffer) in (NaiveReplayBuffer, AdvancedReplayBuffer)
    taken = list(files) if can_merge else list(files[:1])
    if len(taken) == 1:
        buffer.load_data(taken[0])
    else:
        _merge(buffer, [_load(buffer, file) for file in taken])  # type: ignore[arg-type]
    if isinstance(buffer, StoredBuffer):
        buffer._rng = np.random.default_rng(seed)
    return len(taken), next_episode_id(buffer)


def next_episode_id(buffer: IBuffer) -> int:
    """Return the first episode id that no transition of a buffer has."""
    return _behind(buffer, "episode_id")


def _load(like: Any, file: Path) -> StoredBuffer:
    buffer: StoredBuffer = type(like)(like.config)
    buffer.load_data(file)
    return buffer


def _merge(buffer: StoredBuffer, sources: Sequence[StoredBuffer]) -> None:
    rows = [_alive(source) for source in sources]
    offsets = {name: np.cumsum([0, *(_behind(one, name) for one in sources)]) for name in ("env_id", "episode_id")}
    size = max(1, buffer.config.replay_buffer_size // PARTS)
    for part in reversed(range(-(-max(map(len, rows)) // size))):  # counted from the newest
        for number, (source, own) in enumerate(zip(sources, rows, strict=True)):
            some = own[max(0, len(own) - (part + 1) * size) : max(0, len(own) - part * size)]
            if len(some):
                moved = {name: int(offset[number]) for name, offset in offsets.items()}
                _push(buffer, source, some, moved)
    if isinstance(buffer, AdvancedReplayBuffer):
        buffer._train_iter = max(source._train_iter for source in sources)  # type: ignore[attr-defined]


def _push(buffer: StoredBuffer, source: StoredBuffer, rows: Rows, moved: dict[str, int]) -> None:
    """Add transitions of another buffer with their priorities, past the limits on rates."""
    batch = source._storage.gather(rows, 1, 1.0)
    batch.pop("discount", None)
    for name, offset in moved.items():
        if name in batch:
            batch[name] = torch.as_tensor(batch[name]) + offset
    StoredBuffer._push(buffer, batch)
    if isinstance(buffer, AdvancedReplayBuffer) and isinstance(source, AdvancedReplayBuffer):
        new = buffer._storage.newest(len(rows))
        buffer._priority[new] = source._priority[rows]
        buffer._tree.write(new, source._tree.read(rows))
        if buffer.config.max_use is not None:
            buffer._use[new] = source._use[rows]


def _alive(buffer: StoredBuffer) -> Rows:
    """Return the rows that can be drawn, the oldest first."""
    return buffer._drawable(buffer._storage.newest(buffer._storage.count))


def _behind(buffer: Any, name: str) -> int:
    """Return the first number behind those in a column."""
    storage = getattr(buffer, "_storage", None)
    if storage is None or not storage.count or name not in storage.columns:
        return 0
    return int(storage.columns[name][: storage.count].max()) + 1
