"""The uniform replay buffer.

Shapes: B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.arguments import also_named
from lightning_ding.worker.buffer.columns import Rows
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.buffer.sampling import check_sizes, draw, require_enough


@BUFFER_REGISTRY.register("naive")
class NaiveReplayBuffer(RingBuffer):
    """Stores the newest transitions and draws them uniformly; see :class:`RingBuffer` for the arguments.

    Example:
        >>> import numpy as np
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=0)
        >>> buffer.push({"reward": np.arange(5.0), "env_id": np.zeros(5, dtype=int)})
        >>> buffer.count(), buffer.sample(2)["reward"].shape
        (5, torch.Size([2]))
    """

    can_merge = True

    @also_named(size="batch_size")
    @override
    def sample(  # noqa: D417 - IBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        replace: bool = False,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        as_list: bool = False,
        first_step: bool = False,
    ) -> Any:
        """Return a copy of uniformly drawn transitions; see also :meth:`IBuffer.sample`.

        Args:
            sample_range: Range of transitions to draw from, by age: ``slice(-10, None)`` are the newest ten,
                ``slice(0, 10)`` the oldest. None draws from all.
            replace: Allow a transition to occur in a minibatch more than once.
            first_step: Add ``reward_1``, ``terminated_1`` and ``next_obs_1``, those of the first of the n steps.

        Raises:
            ValueError: If there are fewer than B transitions to draw from and ``replace`` is false, or none at all, or
                an argument is out of range.
        """
        check_sizes(batch_size, num_batches, n_step, cur_learner_iter)
        with self._lock:
            if sample_range is None:
                rows = self._draw(num_batches or 1, batch_size, replace)
            else:
                rows = self._draw_aged(num_batches or 1, batch_size, replace, sample_range)
            self._note_sample((num_batches or 1) * batch_size, cur_learner_iter)
            batch = self._gather(rows if num_batches else rows[0], n_step, discount_factor)
            if first_step:
                batch |= self._gather_first(rows if num_batches else rows[0])
        if not as_list:
            return batch
        from lightning_ding.worker.buffer.forms import to_lists

        return to_lists(batch, num_batches, n_step)

    def _gather_first(self, rows: Rows) -> dict[str, Any]:
        """Return a copy of the first steps after ``rows``, shape (B,) or (U, B)."""
        return self._storage.gather_first(rows)

    def _draw(self, num_batches: int, batch_size: int, replace: bool) -> Rows:
        """Return rows, shape (U, B)."""
        require_enough(self.count(), batch_size, replace)
        count, dropped = self._storage.count, self._dropped.mask
        return draw(self._rng, num_batches, batch_size, count, replace, None if dropped is None else dropped[:count])

    def _draw_aged(self, num_batches: int, batch_size: int, replace: bool, ages: slice) -> Rows:
        """Return rows in a range of ages, shape (U, B)."""
        storage = self._storage
        kept: Rows | range = range(storage.tail - storage.count, storage.tail)  # rows, the oldest first
        if self._dropped.count:
            kept = self._drawable(storage.newest(storage.count))
        among = kept[ages]
        require_enough(len(among), batch_size, replace)
        places = draw(self._rng, num_batches, batch_size, len(among), replace)
        if isinstance(among, range):
            return (among.start + among.step * places) % storage.capacity
        return among[places]
