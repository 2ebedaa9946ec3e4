"""Prioritised replay of sequences (Kapturowski et al. 2019, section 2.3, https://openreview.net/forum?id=r1lyTjAqYX).

A sequence has the priority of the transition where it begins. With a ``period``, all other transitions have the weight
0 in the draws; without one, which the paper does not have, a sequence may begin at any transition.

Shapes: T steps of a sequence, B sequences of a minibatch, U minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import Self, override

from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.utils.modes import IS_FIRST
from lightning_ding.worker.buffer.advanced import AdvancedBufferConfig, AdvancedReplayBuffer
from lightning_ding.worker.buffer.chains import Mask, Window
from lightning_ding.worker.buffer.columns import Parts, Rows
from lightning_ding.worker.buffer.sampling import NotEnoughError
from lightning_ding.worker.buffer.sequence import ChainedBuffer, SequenceBufferConfig, masks, window_of
from lightning_ding.worker.buffer.sum_tree import Floats

NONE: Rows = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class PrioritisedSequenceBufferConfig(SequenceBufferConfig, AdvancedBufferConfig):
    """Keys of the prioritised sequence buffer: those of the advanced and of the sequence buffer."""

    type: str = "prioritised_sequence"


@BUFFER_REGISTRY.register("prioritised_sequence")
class PrioritisedSequenceReplayBuffer(ChainedBuffer, AdvancedReplayBuffer):
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

    config_class = PrioritisedSequenceBufferConfig
    config: PrioritisedSequenceBufferConfig

    @override
    def _set_up(self) -> None:
        super()._set_up()
        self._window = Window(1, 0, None, False)  # the sequences that are being drawn
        self._out: Mask = np.zeros(self._storage.capacity, dtype=bool)  # rows that have left the draws
        self._growing: Rows = NONE  # beginnings of sequences that are not over

    @override
    def sample(  # noqa: D417 - AdvancedReplayBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        *,
        sequence: int | None = None,
        burn_in: int | None = None,
        period: int | None = None,
        across_episodes: bool = False,
        across_time_limits: bool = False,
        as_list: bool = False,
        **options: Any,
    ) -> Any:
        """Return a copy of sequences; see also :meth:`AdvancedReplayBuffer.sample`.

        Args:
            sequence: Steps of a sequence T, above the burn-in; None means the config's ``sequence_length``.
            burn_in: First steps of a sequence that are not learned from, in [0, sequence); None means the config's.
            period: As of :meth:`SequenceReplayBuffer.sample`. A sequence gets the largest priority once it is over.
            across_episodes: As of :meth:`SequenceReplayBuffer.sample`.
            across_time_limits: As of :meth:`SequenceReplayBuffer.sample`.
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
        window = window_of(self.config, sequence, burn_in, period, across_episodes, across_time_limits)
        with self._lock:
            if self._storage.count:
                self._storage.require_windows("a sequence cannot be followed")
                self._draw_from(window)
            return super().sample(batch_size, cur_learner_iter, sample_range, **options)

    @override
    def _gather(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        chain, mask = self._follow(rows.reshape(-1), self._window)
        axes = (self._window.length, *rows.shape)
        chain, mask = (np.moveaxis(x.reshape(axes), 0, -2) for x in (chain, mask))
        batch = self._storage.gather(np.ascontiguousarray(chain), n_step, discount_factor, rows)
        return batch | masks(mask, self._window.burn_in)

    # ------------------------------------------------------------------ which rows have a weight

    def _draw_from(self, window: Window) -> None:
        """Give a weight to the beginnings of these sequences, and to no other rows."""
        had_period, self._window, is_new = self._window.period is not None, window, window != self._window
        if is_new and (had_period or window.period is not None):
            rows = self._drawable(np.arange(self._storage.count))
            begins = rows if window.period is None else self._beginnings(rows, window)
            self._growing = self._not_over(rows)
            self._tree.write(rows, 0.0)
            self._tree.write(begins, self._weight_of(begins))
        if len(self._growing) and not self._tree.total > 0:  # there are no others
            begins = self._beginnings(self._growing, window)
            self._tree.write(begins, self._weight_of(begins))

    def _not_over(self, rows: Rows) -> Rows:
        """Return those of the rows where sequences begin to which further steps may be added."""
        if self._window.period is None:
            return NONE
        rows = rows[self._chains.begins(rows, self._window)]
        return rows[self._chains.grows(rows, self._window)]

    def _weight_of(self, rows: Rows) -> Floats:
        return self._priority[rows].astype(np.float64) ** self.config.alpha

    @override
    def _push(self, batch: Mapping[str, Any], parts: Parts | None) -> None:
        before, growing = self._storage.push_count, self._growing
        super()._push(batch, parts)
        amount = min(self._storage.push_count - before, self._storage.capacity)
        if self._window.period is None or not amount or self._storage.missing:
            return
        new = self._storage.newest(amount)
        self._tree.write(new, 0.0)
        stays = (growing - new[0]) % self._storage.capacity >= amount  # the others were overwritten
        growing = np.concatenate([growing[stays], new[self._chains.begins(new, self._window)]])
        grows = self._chains.grows(growing, self._window)
        self._growing = growing[grows]
        over = growing[~grows & ~self._out[growing]]
        over = over[self._may_begin(over, self._window)]
        if "priority" in batch:
            self._tree.write(over, self._weight_of(over))
        elif len(over):
            weight, alpha = self._tree.largest or 1.0, self.config.alpha
            self._priority[over] = weight ** (1 / alpha) if alpha > 0 else 1.0
            self._tree.write(over, weight)

    def _forget(self, rows: Rows) -> None:
        super()._forget(rows)
        self._out[rows] = False

    def _take_out(self, rows: Rows) -> None:
        super()._take_out(rows)
        self._out[rows] = True

    @override
    def _drawable(self, rows: Rows) -> Rows:
        return rows[~self._out[rows]]

    @override
    def _is_kept(self, rows: Rows) -> Mask:
        return ~self._out[rows]

    @override
    def _write(self, rows: Rows, priority: Floats) -> None:
        super()._write(rows, priority)
        if self._window.period is not None:  # they may have been drawn with another period
            self._tree.write(rows[~self._chains.begins(rows, self._window)], 0.0)

    @override
    def _rows_of_age(self, ages: slice) -> Rows:
        rows = self._drawable(self._storage.newest(self._storage.count))[ages]
        return rows[self._tree.read(rows) > 0]

    @override
    def _draw_rows(self, shape: tuple[int, ...], among: Rows | None) -> Rows:
        if among is None and not self._tree.total > 0:
            raise NotEnoughError(f"batch_size must be at most the 0 sequences {self._kept}, got {shape[-1]}")
        return super()._draw_rows(shape, among)

    @override
    def _require_uses(self, amount: int, among: Rows | None) -> None:
        begins = np.flatnonzero(self._tree.read(slice(0, self._storage.count)) > 0) if among is None else among
        super()._require_uses(amount, begins)

    @override
    def _stale_among(self, rows: Rows, train_iter: int) -> Rows:
        """Return the rows that leave the draws: the stale ones, and those whose episode ended within their burn-in."""
        stale = super()._stale_among(rows, train_iter)
        burn_in = self._window.burn_in
        if not burn_in or not rows.size or self._window.period is not None:  # such rows have no weight with a period
            return stale
        first = self._storage.columns.get(IS_FIRST)
        unique = np.unique(rows)
        candidates = unique if first is None else unique[~first[unique].astype(bool)]
        last, is_real = candidates, np.ones(len(candidates), dtype=bool)
        for _ in range(burn_in):
            last, continues = self._storage.follow(last)
            is_real &= continues
        over: Rows = candidates[~is_real & self._storage.ended(last)]
        return np.union1d(stale, over) if len(stale) else over

    # ------------------------------------------------------------------ state

    @override
    def _take_from(self, source: Self, rows: Rows, offsets: Mapping[str, int]) -> None:
        newest = self._storage.newest_rows()
        super()._take_from(source, rows, offsets)
        new = self._storage.newest(len(rows))
        self._chains.add(new, newest)
        self._chains.take_places(new, source._chains, rows)
        self._tree.write(new, self._weight_of(new))  # the next draw finds the beginnings among them

    @override
    def _state(self, copy: bool) -> dict[str, Any]:
        state = super()._state(copy)
        state["tensors"]["own/out"] = torch.from_numpy(np.flatnonzero(self._out[: self._storage.count]))
        state["counters"]["window"] = list(self._window)
        return state

    @override
    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state)
        self._window = Window(*state["counters"].get("window", (1, 0, None, False)))
        out, weight = state["tensors"].get("own/out"), state["tensors"]["own/weight"].numpy()
        self._out[:] = False
        self._out[np.flatnonzero(weight == 0) if out is None else out.numpy()] = True  # older states have no periods
        self._gone = int(np.count_nonzero(self._out))
        self._growing = self._not_over(self._drawable(np.arange(self._storage.count)))
