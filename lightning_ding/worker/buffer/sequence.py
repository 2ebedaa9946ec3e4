"""Sequences of transitions for policies with memory.

Shapes: T steps of a sequence, B sequences of a minibatch, U minibatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.columns import Rows
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.buffer.sampling import check_sizes, require_enough
from lightning_ding.worker_config import ReplayBufferConfig

TRIES = 64  # draws before all rows are searched for possible beginnings


@dataclass(frozen=True)
class SequenceBufferConfig(ReplayBufferConfig):
    """Keys of the sequence buffer."""

    type: str = "sequence"
    sequence_length: int | None = None
    """Sequence and episode buffer: steps of a sequence, burn-in included, >= 1; None returns whole episodes."""
    burn_in: int = 0
    """Sequence and episode buffer: first steps of a sequence that are not learned from, in [0, sequence_length)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        length = self.sequence_length
        require(length is None or length >= 1, "sequence_length", ">= 1 or None", length)
        allowed = f"in [0, sequence_length) = [0, {length})" if length else "0 without sequence_length"
        require(0 <= self.burn_in < (length or 1), "burn_in", allowed, self.burn_in)


@BUFFER_REGISTRY.register("sequence")
class SequenceReplayBuffer(RingBuffer):
    """Draws sequences that never leave their episode; see :class:`RingBuffer` for the arguments.

    A sequence begins at a uniformly drawn transition that has at least ``burn_in`` followers, and ends after
    ``sequence_length`` steps, at the end of its episode, or where the next step has not been pushed yet.

    Example:
        >>> buffer = SequenceReplayBuffer({"sequence_length": 3, "burn_in": 2}, seed=0)
        >>> ends = {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, dtype=bool)}
        >>> obs = {"obs": np.array([[0.0], [1.0], [2.0]]), "next_obs": np.array([[1.0], [2.0], [3.0]])}
        >>> buffer.push({**obs, **ends, "reward": np.ones(3), "env_id": np.zeros(3, dtype=int)})
        >>> batch = buffer.sample(1)
        >>> batch["obs"].flatten().tolist(), batch["learn_mask"].flatten().tolist()
        ([0.0, 1.0, 2.0], [False, False, True])
    """

    gives_sequences = True
    config_class = SequenceBufferConfig
    config: SequenceBufferConfig

    def _set_up(self) -> None:
        length = self.config.sequence_length
        require(length is not None, "sequence_length", "set for a sequence buffer", length)
        self._length = length or 1

    @override
    def sample(  # noqa: D417 - IBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        sequence: int | None = None,
    ) -> dict[str, Any]:
        """Return a copy of sequences, drawn with replacement; see also :meth:`IBuffer.sample`.

        Args:
            sequence: Steps of a sequence T, above the burn-in; None means the config's ``sequence_length``.

        Returns:
            A nested dict of tensors, leading axes (T, B) or (U, T, B), with ``discount``, and two masks: ``mask`` is
            True where a step is real, and ``learn_mask`` where it is also after the burn-in. After its end a sequence
            repeats its last step.

        Raises:
            ValueError: If no transition has enough followers, or an argument is out of range.
        """
        check_sizes(batch_size, num_batches, n_step)
        burn_in = self.config.burn_in
        length = self._length if sequence is None else sequence
        require(length > burn_in, "sequence", f"above burn_in ({burn_in})", length)
        with self._lock:
            require_enough(self.count(), batch_size, replace=True)
            self._storage.require_windows("a sequence cannot be followed")
            rows, mask = self._follow(self._beginnings(batch_size * (num_batches or 1), burn_in), length)
            shape = (length, batch_size) if num_batches is None else (length, num_batches, batch_size)
            rows, mask = rows.reshape(shape), mask.reshape(shape)
            if num_batches is not None:
                rows, mask = rows.swapaxes(0, 1), mask.swapaxes(0, 1)
            batch = self._storage.gather(np.ascontiguousarray(rows), n_step, discount_factor)
            self._note_sample(rows.size, cur_learner_iter)
        return batch | masks(mask, burn_in)

    def _beginnings(self, amount: int, followers: int) -> Rows:
        """Return rows drawn uniformly among those with enough followers in their episode."""
        found: Rows = np.empty(0, dtype=np.int64)
        for _ in range(TRIES):
            rows = self._rng.integers(self._storage.count, size=amount - len(found))
            found = np.concatenate([found, rows[self._may_begin(rows, followers)]])
            if len(found) == amount:
                return found
        rows = np.arange(self._storage.count)
        rows = rows[self._may_begin(rows, followers)]
        if not len(rows):
            raise ValueError(f"burn_in must be below the length of an episode in the buffer, got {followers}")
        return np.concatenate([found, self._rng.choice(rows, amount - len(found))])

    def _may_begin(self, rows: Rows, followers: int) -> Any:
        dropped = self._dropped.mask  # no sequence reaches dropped rows later on, because whole episodes are dropped
        is_real = np.ones(len(rows), dtype=bool) if dropped is None else ~dropped[rows]
        for _ in range(followers):
            rows, continues = self._storage.follow(rows)
            is_real &= continues
        return is_real

    def _follow(self, rows: Rows, length: int) -> tuple[Rows, Any]:
        """Return sequences of rows, shape (length, n), padded with their last row, and where they are real."""
        storage = self._storage
        chain, is_real = np.empty((length, len(rows)), dtype=np.int64), np.ones((length, len(rows)), dtype=bool)
        chain[0] = rows
        for step in range(1, length):
            chain[step], continues = storage.follow(chain[step - 1])
            is_real[step] = is_real[step - 1] & continues
        return chain, is_real


def masks(mask: Any, burn_in: int) -> dict[str, torch.Tensor]:
    """Return ``mask`` and ``learn_mask`` of sequences, leading axes (T, B) or (U, T, B)."""
    learn = mask.copy()
    learn[..., :burn_in, :] = False
    return {"mask": torch.from_numpy(np.ascontiguousarray(mask)), "learn_mask": torch.from_numpy(learn)}
