"""Sequences of transitions for policies with memory.

Shapes: T steps of a sequence, B sequences of a minibatch, U minibatches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec

import numpy as np
import torch
from typing_extensions import override

from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.utils.modes import IS_FIRST
from lightning_ding.worker.arguments import also_named
from lightning_ding.worker.buffer.chains import Chains, Window
from lightning_ding.worker.buffer.columns import Parts, Rows
from lightning_ding.worker.buffer.forms import to_sequences
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.buffer.sampling import NotEnoughError, check_sizes, draw, require_enough
from lightning_ding.worker.config import ReplayBufferConfig

P = ParamSpec("P")
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


def _in_full(function: Callable[P, Any]) -> Callable[P, Any]:
    """Return ``sample``, refusing two positional arguments: the second is a length here, and an iteration elsewhere."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        if len(args) == 3 and "cur_learner_iter" not in kwargs:  # self is one of them
            order = "the positional arguments of a sequence buffer's sample are batch_size, sequence, cur_learner_iter"
            raise TypeError(f"{order}: pass all three, or name the second one, which is {args[2]!r}")
        return function(*args, **kwargs)

    return call


class ChainedBuffer(RingBuffer):
    """A ring buffer that knows which of its rows follow each other; the common part of the sequence buffers."""

    gives_sequences = True

    @override
    def _set_up(self) -> None:
        super()._set_up()
        self._chains = Chains(self._storage)
        self._steps_drawn = self._steps_padded = 0

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions and their places in sequences."""
        return super().nbytes + self._chains.nbytes

    @property
    @override
    def padding(self) -> float:
        return self._steps_padded / max(1, self._steps_drawn)

    def pop_metrics(self) -> dict[str, float]:
        """Return what the buffer without sequences returns, and the share of padding in all sequences drawn so far."""
        return super().pop_metrics() | {"padding": self.padding}

    @override
    def _push(self, batch: Mapping[str, Any], parts: Parts | None) -> None:
        newest, before = self._storage.newest_rows(), self._storage.push_count
        super()._push(batch, parts)
        amount = min(self._storage.push_count - before, self._storage.capacity)
        if amount and not self._storage.missing:
            self._chains.add(self._storage.newest(amount), newest)

    @override
    def _state(self, copy: bool) -> dict[str, Any]:
        state = super()._state(copy)
        arrays = self._chains.state().items()
        state["tensors"] |= {name: torch.from_numpy(array.copy() if copy else array) for name, array in arrays}
        state["counters"]["steps_drawn"] = [self._steps_drawn, self._steps_padded]
        return state

    @override
    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state)
        self._chains.load({name: array.numpy() for name, array in state["tensors"].items()})
        self._steps_drawn, self._steps_padded = state["counters"].get("steps_drawn", (0, 0))  # not in older states

    def _follow(self, rows: Rows, window: Window) -> tuple[Rows, Any]:
        """Return sequences of rows, shape (T, n), padded with their last row, and where they are real."""
        shape = (window.length, len(rows))
        found, is_real = np.empty(shape, dtype=np.int64), np.ones(shape, dtype=bool)
        found[0] = rows
        for step in range(1, window.length):
            after, continues = self._chains.follow(found[step - 1], window)
            if window.across_episodes:
                continues &= self._is_kept(after)
            found[step] = np.where(continues, after, found[step - 1])
            is_real[step] = is_real[step - 1] & continues
        self._steps_drawn += is_real.size
        self._steps_padded += is_real.size - int(np.count_nonzero(is_real))
        return found, is_real

    def _beginnings(self, rows: Rows, window: Window) -> Rows:
        """Return those of the rows where sequences begin with a step that is learned from.

        With a ``period``, sequences to which further steps may be added are left out, unless all are such.
        """
        if window.period is not None:
            rows = rows[self._chains.begins(rows, window)]
        rows = rows[self._may_begin(rows, window)]
        if window.period is None:
            return rows
        whole: Rows = rows[~self._chains.grows(rows, window)]
        return whole if len(whole) else rows

    def _may_begin(self, rows: Rows, window: Window) -> Any:
        """Return which rows have a follower after the burn-in, or are the first of their episode, and are kept."""
        kept, first = self._is_kept(rows), self._storage.columns.get(IS_FIRST)
        may_be_short = np.zeros(len(rows), dtype=bool) if first is None else first[rows].astype(bool)
        has_followers = np.ones(len(rows), dtype=bool)
        for _ in range(window.burn_in):
            rows, continues = self._chains.follow(rows, window)
            has_followers &= continues
        return kept & (has_followers | may_be_short)

    def _is_kept(self, rows: Rows) -> Any:
        """Return which rows were not dropped."""
        dropped = self._dropped.mask
        return np.ones(len(rows), dtype=bool) if dropped is None else ~dropped[rows]


@BUFFER_REGISTRY.register("sequence")
class SequenceReplayBuffer(ChainedBuffer):
    """Draws sequences of steps of one env; see :class:`RingBuffer` for the arguments.

    A sequence begins at a uniformly drawn transition that has at least ``burn_in`` followers, or that ``is_first``
    marks as the first of its episode. It ends after ``sequence_length`` steps, at the end of its episode, or where
    the next step has not been pushed yet. See :meth:`sample` for sequences with fixed beginnings, and for sequences
    that cross the ends of episodes.

    Example:
        >>> buffer = SequenceReplayBuffer({"sequence_length": 3, "burn_in": 2}, seed=0)
        >>> ends = {"terminated": np.array([False, False, True]), "truncated": np.zeros(3, dtype=bool)}
        >>> obs = {"obs": np.array([[0.0], [1.0], [2.0]]), "next_obs": np.array([[1.0], [2.0], [3.0]])}
        >>> buffer.push({**obs, **ends, "reward": np.ones(3), "env_id": np.zeros(3, dtype=int)})
        >>> batch = buffer.sample(1)
        >>> batch["obs"].flatten().tolist(), batch["learn_mask"].flatten().tolist()
        ([0.0, 1.0, 2.0], [False, False, True])
    """

    config_class = SequenceBufferConfig
    config: SequenceBufferConfig

    @_in_full
    @also_named(batch="batch_size")
    @override
    def sample(  # type: ignore[override] # noqa: D417 - the documented order; IBuffer.sample describes the other arguments
        self,
        batch_size: int,
        sequence: int | None = None,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        replace: bool = True,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        as_list: bool = False,
        burn_in: int | None = None,
        period: int | None = None,
        across_episodes: bool = False,
        across_time_limits: bool = False,
    ) -> Any:
        """Return a copy of sequences; see also :meth:`IBuffer.sample`.

        Args:
            sequence: Steps of a sequence T, above the burn-in; None means the config's ``sequence_length``.
            sample_range: Range of transitions in which sequences begin, by age, the oldest first; None means all.
            replace: Allow sequences of a minibatch to begin at the same transition.
            burn_in: First steps of a sequence that are not learned from, in [0, sequence); None means the config's.
            period: Steps between the beginnings of two sequences, >= 1, counted from the first step of each episode.
                Sequences that are not over are drawn only while there are no others. None lets them begin at any step.
            across_episodes: Whether a sequence continues after a terminated step with the next episode of its env.
                ``period`` then counts from the last time limit or missing step.
            across_time_limits: Whether a sequence continues after a time limit as well; only with ``across_episodes``
                and without a ``period``.

        Returns:
            A nested dict of tensors, leading axes (T, B) or (U, T, B), with ``discount``, and two masks: ``mask`` is
            True where a step is real, and ``learn_mask`` where it is also after the burn-in. After its end a sequence
            repeats its last step. The columns of a policy with memory, ``recurrent_state`` and ``is_first``, are those
            of the first step, leading axes (B,) or (U, B). With ``as_list``, a list of B lists of T dicts, or a list of
            U of them.

        Raises:
            ValueError: If no transition has enough followers, or an argument is out of range.
            TypeError: If there are two positional arguments, because that is ambiguous.
        """
        check_sizes(batch_size, num_batches, n_step, cur_learner_iter)
        window = window_of(self.config, sequence, burn_in, period, across_episodes, across_time_limits)
        with self._lock:
            require_enough(self.count(), batch_size, replace=True)
            self._storage.require_windows("a sequence cannot be followed")
            if sample_range is None and replace and period is None:
                begin = self._any_beginnings(batch_size * (num_batches or 1), window)
            else:
                begin = self._chosen_beginnings(num_batches or 1, batch_size, window, sample_range, replace)
            rows, mask = self._follow(begin, window)
            length, burn_in = window.length, window.burn_in
            shape = (length, batch_size) if num_batches is None else (length, num_batches, batch_size)
            rows, mask = rows.reshape(shape), mask.reshape(shape)
            if num_batches is not None:
                rows, mask = rows.swapaxes(0, 1), mask.swapaxes(0, 1)
            first = None if as_list else np.ascontiguousarray(rows[..., 0, :])
            batch = self._storage.gather(np.ascontiguousarray(rows), n_step, discount_factor, first)
            self._note_sample(rows.size, cur_learner_iter)
        batch |= masks(mask, burn_in)
        return to_sequences(batch, num_batches, n_step) if as_list else batch

    def _chosen_beginnings(
        self, num_batches: int, batch_size: int, window: Window, ages: slice | None, replace: bool
    ) -> Rows:
        """Return rows drawn uniformly among those of some ages where sequences begin, shape (U * B,)."""
        rows = self._storage.newest(self._storage.count)[slice(None) if ages is None else ages]
        rows = self._beginnings(rows, window)
        require_enough(len(rows), batch_size, replace, "transitions that can begin a sequence", "kept")
        drawn: Rows = rows[draw(self._rng, num_batches, batch_size, len(rows), replace)].reshape(-1)
        return drawn

    def _any_beginnings(self, amount: int, window: Window) -> Rows:
        """Return rows drawn uniformly among all that may begin a sequence, mostly without looking at each of them."""
        found: Rows = np.empty(0, dtype=np.int64)
        for _ in range(TRIES):
            rows = self._rng.integers(self._storage.count, size=amount - len(found))
            found = np.concatenate([found, rows[self._may_begin(rows, window)]])
            if len(found) == amount:
                return found
        rows = self._beginnings(np.arange(self._storage.count), window)
        if not len(rows):
            allowed = "burn_in must be below the length of an episode in the buffer"
            raise NotEnoughError(f"{allowed}, got {window.burn_in}")
        return np.concatenate([found, self._rng.choice(rows, amount - len(found))])


def window_of(
    config: Any,
    sequence: int | None,
    burn_in: int | None,
    period: int | None = None,
    across_episodes: bool = False,
    across_time_limits: bool = False,
) -> Window:
    """Return which sequences are drawn, where None means the length and the burn-in of the buffer's config.

    Raises:
        ValueError: If there is no length, it is not above the burn-in, the period is out of range, or time limits are
            crossed with a period or where terminations are not.
    """
    burn_in = config.burn_in if burn_in is None else burn_in
    length = config.sequence_length if sequence is None else sequence
    if length is None:
        raise ValueError("sequence must be given to sample(), or sequence_length in the buffer's config, got None")
    require(length > burn_in, "sequence", f"above burn_in ({burn_in})", length)
    require(period is None or period >= 1, "period", ">= 1 or None", period)
    may_cross = not across_time_limits or (across_episodes and period is None)
    require(may_cross, "across_time_limits", "False without across_episodes or with a period", across_time_limits)
    return Window(length, burn_in, period, bool(across_episodes), bool(across_time_limits))


def masks(mask: Any, burn_in: int) -> dict[str, torch.Tensor]:
    """Return ``mask`` and ``learn_mask`` of sequences, leading axes (T, B) or (U, T, B)."""
    learn = mask.copy()
    learn[..., :burn_in, :] = False
    return {"mask": torch.from_numpy(np.ascontiguousarray(mask)), "learn_mask": torch.from_numpy(learn)}
