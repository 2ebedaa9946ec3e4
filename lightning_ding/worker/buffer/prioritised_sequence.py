"""Prioritised replay of sequences (Kapturowski et al. 2019, section 2.3, https://openreview.net/forum?id=r1lyTjAqYX).

Where this differs from the paper: a sequence may begin at any transition, not at every fortieth one, so it has the
priority of its first transition.

Shapes: T steps of a sequence, B sequences of a minibatch, U minibatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.modes import IS_FIRST
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.advanced import AdvancedBufferConfig, AdvancedReplayBuffer
from lightning_ding.worker.buffer.columns import Rows
from lightning_ding.worker.buffer.sequence import SequenceBufferConfig, follow, masks, window_of


@dataclass(frozen=True)
class PrioritisedSequenceBufferConfig(SequenceBufferConfig, AdvancedBufferConfig):
    """Keys of the prioritised sequence buffer: those of the advanced and of the sequence buffer."""

    type: str = "prioritised_sequence"


@BUFFER_REGISTRY.register("prioritised_sequence")
class PrioritisedSequenceReplayBuffer(AdvancedReplayBuffer):
    """Draws sequences in proportion to priority^alpha of the transitions where they begin.

    A sequence never leaves its episode. It ends after ``sequence_length`` steps, at the end of its episode, or where
    the next step has not been pushed yet. A transition whose episode ended within its burn-in leaves the draws, unless
    it is marked as the first of its episode by ``is_first``: a sequence from there needs no burn-in.

    See :class:`RingBuffer` for the arguments.

    Example:
        >>> buffer = PrioritisedSequenceReplayBuffer({"sequence_length": 3, "alpha": 1.0}, seed=0)
        >>> ends = {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, dtype=bool)}
        >>> obs = {"obs": np.array([[0.0], [1.0], [2.0]]), "next_obs": np.array([[1.0], [2.0], [3.0]])}
        >>> order = {"env_id": np.zeros(3, dtype=int), "priority": np.array([0.0, 9.0, 0.0])}
        >>> buffer.push({**obs, **ends, "reward": np.ones(3), **order})
        >>> batch = buffer.sample(1)
        >>> batch["obs"].flatten().tolist(), batch["mask"].flatten().tolist(), batch["priority"].tolist()
        ([1.0, 2.0, 2.0], [True, True, False], [9.000009536743164])
    """

    gives_sequences = True
    config_class = PrioritisedSequenceBufferConfig
    config: PrioritisedSequenceBufferConfig
    _window: tuple[int, int] = (1, 0)  # steps of the sequences that are being drawn, and of their burn-in

    @override
    def sample(  # noqa: D417 - AdvancedReplayBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        *,
        sequence: int | None = None,
        burn_in: int | None = None,
        as_list: bool = False,
        **options: Any,
    ) -> Any:
        """Return a copy of sequences; see also :meth:`AdvancedReplayBuffer.sample`.

        Args:
            sequence: Steps of a sequence T, above the burn-in; None means the config's ``sequence_length``.
            burn_in: First steps of a sequence that are not learned from, in [0, sequence); None means the config's.
            as_list: Must be False.
            options: ``num_batches``, ``n_step`` and ``discount_factor``.

        Returns:
            A nested dict of tensors. The pushed entries, ``discount``, ``mask`` and ``learn_mask`` have the leading
            axes (T, B) or (U, T, B), as of :meth:`SequenceReplayBuffer.sample`. ``IS``, ``priority``,
            ``replay_unique_id``, ``replay_buffer_idx`` and the columns of a policy with memory, ``recurrent_state`` and
            ``is_first``, have (B,) or (U, B).

        Raises:
            ValueError: If there are too few transitions, or an argument is out of range.
        """
        require(not as_list, "as_list", "False: only a sequence buffer without priorities returns lists", as_list)
        with self._lock:
            self._window = window_of(self.config, sequence, burn_in)
            if self._storage.count:
                self._storage.require_windows("a sequence cannot be followed")
            return super().sample(batch_size, cur_learner_iter, sample_range, **options)

    @override
    def _gathered(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        length, burn_in = self._window
        chain, mask = follow(self._storage, rows.reshape(-1), length)
        axes = (length, *rows.shape)
        chain, mask = (np.moveaxis(x.reshape(axes), 0, -2) for x in (chain, mask))
        batch = self._storage.gather(np.ascontiguousarray(chain), n_step, discount_factor, rows)
        return batch | masks(mask, burn_in)

    @override
    def _stale_among(self, rows: Rows, train_iter: int) -> Rows:
        """Return the rows that leave the draws: the stale ones, and those whose episode ended within their burn-in."""
        stale = super()._stale_among(rows, train_iter)
        if not self._window[1] or not rows.size:
            return stale
        first = self._storage.columns.get(IS_FIRST)
        unique = np.unique(rows)
        candidates = unique if first is None else unique[~first[unique].astype(bool)]
        last, is_real = candidates, np.ones(len(candidates), dtype=bool)
        for _ in range(self._window[1]):
            last, continues = self._storage.follow(last)
            is_real &= continues
        over: Rows = candidates[~is_real & self._storage.ended(last)]
        return np.union1d(stale, over) if len(stale) else over
