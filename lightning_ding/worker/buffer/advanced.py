"""Prioritised replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952), with limits on use, age and rate.

Where this differs from the paper: beta is annealed by updates or env steps, not by calls of ``sample``; new transitions
get the largest priority of those that stay in the buffer, not the largest ever seen; importance weights are divided by
the largest that any transition in the buffer could have, not by the largest of the minibatch.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self, override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.arguments import also_named
from lightning_ding.worker.buffer.columns import Parts, Rows
from lightning_ding.worker.buffer.forms import to_lists, to_number_ids
from lightning_ding.worker.buffer.priorities import Beta, checked_priorities
from lightning_ding.worker.buffer.rate_limiter import RateLimiter, ThroughputConfig
from lightning_ding.worker.buffer.ring_buffer import RingBuffer, to_rows
from lightning_ding.worker.buffer.sampling import NotEnoughError, check_sizes, require_enough
from lightning_ding.worker.buffer.sum_tree import Floats, SumTree
from lightning_ding.worker.config import ReplayBufferConfig

ADDED = frozenset({"IS", "priority", "replay_unique_id", "replay_buffer_idx"})  # entries that sample() adds
VERSIONS = frozenset({"policy_version", "collect_iter"})  # two names of one column
ONE = np.int32(1)
EPSILON = 1e-5  # added to every priority, so that every transition can be drawn


@dataclass(frozen=True)
class AdvancedBufferConfig(ReplayBufferConfig):
    """Keys of the advanced buffer."""

    type: str = "advanced"
    alpha: float = 0.6
    """Advanced buffer: exponent of the priorities, in [0, 1]; 0 draws uniformly."""
    beta: float = 0.4
    """Advanced buffer: exponent of the importance weights at the start, in [0, 1]; 1 corrects the bias fully."""
    anneal_step: float = 100_000
    """Advanced buffer: time at which beta reaches 1, in anneal_unit, >= 0; 0 keeps beta constant."""
    anneal_unit: Literal["train_iter", "env_step", "budget"] = "train_iter"
    """Advanced buffer: unit of anneal_step: updates, env steps, or shares of the run's max_env_step."""
    max_use: int | float | None = None
    """Advanced buffer: number of times a transition is sampled before it leaves, >= 1; None or inf for no limit."""
    max_staleness: int | float | None = None
    """Advanced buffer: age in updates of its policy at which a transition leaves, >= 1; None or inf for no limit."""
    thruput_controller: ThroughputConfig = field(default_factory=ThroughputConfig)
    """Advanced buffer: limits of the rates at which it is filled and sampled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha", "in [0, 1]", self.alpha)
        require(0 <= self.beta <= 1, "beta", "in [0, 1]", self.beta)
        require(self.anneal_step >= 0, "anneal_step", ">= 0", self.anneal_step)
        anneals = self.anneal_step > 0 or self.anneal_unit == "train_iter"
        require(anneals, "anneal_unit", "left at its default with anneal_step 0", self.anneal_unit)
        for name in ("max_use", "max_staleness"):
            value = getattr(self, name)
            if value == math.inf:
                object.__setattr__(self, name, None)
            elif value is not None:
                require(isinstance(value, int) and value >= 1, name, "an int >= 1 or None", value)


@BUFFER_REGISTRY.register("advanced")
class AdvancedReplayBuffer(RingBuffer):
    """Draws transitions in proportion to priority^alpha; see :class:`RingBuffer` for the arguments.

    A transition leaves when it is overwritten, was sampled ``max_use`` times, or its policy is ``max_staleness`` or
    more updates old.

    Example:
        >>> buffer = AdvancedReplayBuffer({"replay_buffer_size": 100, "alpha": 1.0}, seed=0)
        >>> buffer.push({"reward": np.arange(4.0)})
        >>> batch = buffer.sample(4)
        >>> buffer.update({**batch, "priority": torch.tensor([0.0, 0.0, 0.0, 9.0])})
        >>> buffer.sample(2)["reward"].tolist()
        [3.0, 3.0]
    """

    is_prioritised = True
    can_merge = True
    config_class = AdvancedBufferConfig
    config: AdvancedBufferConfig

    def _set_up(self) -> None:
        size = self.config.replay_buffer_size
        self.runs_out = self.config.max_use is not None or self.config.max_staleness is not None
        self._tree = SumTree(size)
        self._priority: NDArray[np.float32] = np.zeros(size, dtype=np.float32)
        counted = size if self.config.max_use is not None else 0
        self._use: NDArray[np.int32] = np.zeros(counted, dtype=np.int32)
        self._first_id = 0  # id of the first transition pushed since the last clear
        self._gone = 0  # rows that are still in the ring but cannot be drawn any more
        self._first_fresh = 0  # id below which all have left
        self._train_iter = 0
        self._beta = Beta(self.config.beta, self.config.anneal_step, self.config.anneal_unit)
        self._newest_sample: Rows = np.empty(0, dtype=np.int64)
        self._stratum: Floats = np.empty(0)  # numbers of the strata of the last minibatch
        self._limiter = RateLimiter(self.config.thruput_controller, self._lock)
        self._is_limited = self.config.thruput_controller.is_active
        limits = [name for name in ("max_use", "max_staleness") if getattr(self.config, name) is not None]
        self._kept = f"kept within {' and '.join(limits)}" if limits else "kept"

    @property
    def beta(self) -> float:
        """Exponent of the importance weights after the updates and env steps so far; it grows on if it is set."""
        return self._beta.at(self._train_iter, self.env_step, self.budget)

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta.set(value, self._train_iter, self.env_step, self.budget)

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions and their priorities."""
        rows = slice(0, self._storage.count)
        return super().nbytes + self._tree.nbytes + self._priority[rows].nbytes + self._use[rows].nbytes

    def count(self) -> int:
        """Return the number of transitions that can be drawn."""
        return self._storage.count - self._gone

    @also_named(size="batch_size")
    @override
    def sample(  # noqa: D417 - IBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        as_list: bool = False,
        first_step: bool = False,
    ) -> Any:
        """Return a copy of transitions drawn in proportion to priority^alpha, one of each B-th of the total weight.

        See also :meth:`IBuffer.sample`. ``cur_learner_iter`` decides beta and staleness.

        Args:
            sample_range: Range of transitions to draw from, by age, the oldest first; None draws from all.
            first_step: Add ``reward_1``, ``terminated_1`` and ``next_obs_1``, those of the first of the n steps.

        Returns:
            A nested dict of tensors, leading axes (B,) or (U, B): the pushed entries, ``discount``, ``IS`` (eq. 1 of
            section 3.4, in (0, 1]), ``priority``, and ``replay_unique_id`` and ``replay_buffer_idx``, by which
            :meth:`update` identifies the transitions. With ``as_list``, a list of B dicts of the same entries, or a
            list of U of them; there a ``replay_unique_id`` is a string that begins with the name of the buffer.

        Raises:
            ValueError: If there are fewer than B transitions or uses left, or an argument is out of range.
            TimeoutError: If a limit of ``thruput_controller`` made it wait too long.
        """
        check_sizes(batch_size, num_batches, n_step, cur_learner_iter)
        with self._lock:
            self._train_iter = cur_learner_iter
            self._drop_stale(cur_learner_iter)
            if self._is_limited:
                self._limiter.wait_to_sample(batch_size * (num_batches or 1), batch_size, self.count)
            shape = (batch_size,) if num_batches is None else (num_batches, batch_size)
            rows, weight, smallest = self._draw_fresh(shape, cur_learner_iter, sample_range)
            self._newest_sample = rows.flatten()  # a copy, because the rows are returned
            batch = self._gather(rows, n_step, discount_factor)
            if first_step:
                batch |= self._storage.gather_first(rows)
            batch["IS"] = torch.from_numpy(((weight / smallest) ** -self.beta).astype(np.float32))
            batch["priority"] = torch.from_numpy(self._priority[rows])
            batch["replay_unique_id"] = torch.from_numpy(self._id_of(rows))
            batch["replay_buffer_idx"] = torch.from_numpy(rows)
            self._limiter.sampled += rows.size
            self._note_sample(rows.size, cur_learner_iter)
            if self._is_limited:
                self._lock.notify_all()
        return to_lists(batch, num_batches, n_step, self._instance_name) if as_list else batch

    def update(self, info: Mapping[str, Any]) -> None:
        """Set the priorities of sampled transitions; transitions that have left are skipped.

        Args:
            info: ``priority`` >= 0, ``replay_unique_id`` and ``replay_buffer_idx``, all of one shape, or lists of one
                length. If a transition occurs twice, the last one counts. Without ``priority`` nothing happens.

        Raises:
            ValueError: If a priority is negative or not finite, or the shapes differ.
            KeyError: If an id or an index is missing.
        """
        if "priority" not in info:
            return
        missing = [key for key in ("replay_unique_id", "replay_buffer_idx") if key not in info]
        if missing:
            raise KeyError(f"update needs {' and '.join(missing)} in addition to priority, as sample returned them")
        priority = checked_priorities(info["priority"])
        ids = to_rows(to_number_ids(info["replay_unique_id"], self._instance_name))
        rows = to_rows(info["replay_buffer_idx"])
        if not len(priority) == len(rows) == len(ids):
            sizes = (len(priority), len(ids), len(rows))
            raise ValueError(f"priority, replay_unique_id and replay_buffer_idx must have one size, got {sizes}")
        with self._lock:
            size = self._storage.capacity
            if len(rows) and not -1 < rows.min() <= rows.max() < size:
                raise ValueError(f"replay_buffer_idx must be in [0, {size}), got {rows.min()} to {rows.max()}")
            here = self._id_of(rows) == ids
            if self._gone:
                here &= self._tree.read(rows) > 0
            if not here.all():
                rows, priority = rows[here], priority[here]
            self._write(rows, priority + EPSILON)

    def clear(self) -> None:
        """Remove all transitions and their schema; ids continue, so that late priorities are skipped."""
        with self._lock:
            size = self._storage.capacity
            self._first_id += self._storage.push_count + size  # rows that are not written yet have no old id
            super().clear()
            self._tree.clear()
            self._gone = 0
            self._newest_sample = self._newest_sample[:0]

    def pop_metrics(self) -> dict[str, float]:
        """Return the rates, and the means of use, staleness and priority over the newest minibatch."""
        with self._lock:
            metrics = super().pop_metrics() | {"beta": self.beta, "waited_seconds": self._limiter.waited_seconds}
            rows = self._newest_sample
            if len(rows):
                metrics["priority_mean"] = float(self._priority[rows].mean())
                if self.config.max_use is not None:
                    metrics["use_mean"] = float(self._use[rows].mean())
                if not VERSIONS.isdisjoint(self._storage.columns):
                    metrics["staleness_mean"] = float((self._train_iter - self._policy_version(rows)).mean())
            return metrics

    # ------------------------------------------------------------------ writing

    @override
    def _push(self, batch: Mapping[str, Any], parts: Parts | None) -> None:
        given = checked_priorities(batch["priority"]) if "priority" in batch else None
        if not ADDED.isdisjoint(batch):
            batch = {key: value for key, value in batch.items() if key not in ADDED}
        if given is not None:
            amount = nested.length(batch)
            require(len(given) == amount, "priority", f"one number for each of {amount} transitions", len(given))
        if self.config.max_staleness is not None:
            is_dated = not VERSIONS.isdisjoint(batch)
            require(is_dated, "data", "transitions with a policy_version or a collect_iter", sorted(batch))
        if self._is_limited:
            self._limiter.wait_to_push(nested.length(batch))
        before = self._storage.push_count
        super()._push(batch, parts)
        amount = self._storage.push_count - before
        self._limiter.pushed += amount
        size = min(amount, self._storage.capacity)
        if not size:
            return
        rows = self._storage.newest(size)
        if self.config.max_use is not None:
            self._use[rows] = 0
        if given is not None:
            self._write(rows, given[-size:] + EPSILON)
        else:
            weight = self._tree.largest_without(rows) or 1.0  # the rows still have the weights of the replaced ones
            self._priority[rows] = weight ** (1 / self.config.alpha) if self.config.alpha > 0 else 1.0
            self._tree.write(rows, weight)

    def _write(self, rows: Rows, priority: Floats) -> None:
        self._priority[rows] = priority
        self._tree.write(rows, priority**self.config.alpha)

    def _forget(self, rows: Rows) -> None:
        """Count rows that are overwritten or cleared; some of them may already have been removed."""
        if self._gone:
            here = self._drawable(rows)
            self._gone -= len(rows) - len(here)
            rows = here
        super()._forget(rows)

    def _take_out(self, rows: Rows) -> None:
        """Remove rows that stay in the ring from the draws: they are dropped, used up or stale."""
        if len(rows):
            super()._forget(rows)
            self._tree.write(rows, 0.0)
            self._gone += len(rows)

    def _drawable(self, rows: Rows) -> Rows:
        return rows[self._tree.read(rows) > 0]

    def _merge(self, sources: Sequence[Self]) -> None:
        super()._merge(sources)
        self._train_iter = max(source._train_iter for source in sources)

    def _take_from(self, source: Self, rows: Rows, offsets: Mapping[str, int]) -> None:
        super()._take_from(source, rows, offsets)
        new = self._storage.newest(len(rows))
        self._priority[new] = source._priority[rows]
        self._tree.write(new, source._tree.read(rows))
        if self.config.max_use is not None:
            self._use[new] = source._use[rows]

    # ------------------------------------------------------------------ drawing

    def _draw_fresh(self, shape: tuple[int, ...], train_iter: int, ages: slice | None) -> tuple[Rows, Floats, float]:
        """Return rows that are neither stale nor used up, their weights, and the smallest of all weights."""
        while True:
            among = None if ages is None else self._rows_of_age(ages)
            count = self.count() if among is None else len(among)
            require_enough(count, shape[-1], self.gives_sequences, kept=self._kept)
            smallest = self._tree.smallest if among is None else float(self._tree.read(among).min())
            rows = self._draw_rows(shape, among)
            stale = self._stale_among(rows, train_iter)
            if not len(stale):
                break
            self._take_out(stale)
        weight = self._tree.read(rows)
        if self.config.max_use is not None:
            rows, weight = self._use_up(rows, weight, among)
            np.add.at(self._use, rows.reshape(-1), ONE)  # with another type numpy is far slower
            used = np.unique(rows)
            self._take_out(used[self._use[used] >= self.config.max_use])
        return rows, weight, smallest

    def _draw_rows(self, shape: tuple[int, ...], among: Rows | None) -> Rows:
        """Return rows drawn in proportion to their weights, one from each B-th of the total."""
        if len(self._stratum) != shape[-1]:
            self._stratum = np.arange(shape[-1], dtype=np.float64)
        strata = (self._stratum + self._rng.random(shape)) * (1 / shape[-1])
        if among is None:
            return self._tree.find(strata.reshape(-1)).reshape(shape)
        cumulative = self._tree.read(among).cumsum()
        place = np.searchsorted(cumulative, strata * cumulative[-1], side="right")
        drawn: Rows = among[np.minimum(place, len(among) - 1)]
        return drawn

    def _use_up(self, rows: Rows, weight: Floats, among: Rows | None) -> tuple[Rows, Floats]:
        """Return the rows with those replaced by new draws that occur more often than they have uses left."""
        max_use, flat, weights = self.config.max_use or 0, rows.reshape(-1).copy(), weight.reshape(-1).copy()
        self._require_uses(len(flat), among)
        removed: dict[int, float] = {}
        while True:
            order = np.argsort(flat, kind="stable")
            ordered = flat[order]
            begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            rank = np.arange(len(flat)) - np.repeat(begins, np.diff(np.append(begins, len(flat))))
            too_often = order[rank >= max_use - self._use[ordered]]
            if not len(too_often):
                break
            full = np.unique(flat[too_often])  # these have no use left in this minibatch
            removed |= dict(zip(full.tolist(), self._tree.read(full).tolist(), strict=True))
            self._tree.write(full, 0.0)
            again = among if among is None else among[self._tree.read(among) > 0]
            flat[too_often] = self._draw_rows((len(too_often),), again)
            weights[too_often] = self._tree.read(flat[too_often])
        self._tree.write(np.array(list(removed), dtype=np.int64), np.array(list(removed.values())))
        return flat.reshape(rows.shape), weights.reshape(rows.shape)

    def _require_uses(self, amount: int, among: Rows | None) -> None:
        if amount <= (self.count() if among is None else len(among)):
            return  # each of them has a use left
        rows = np.flatnonzero(self._tree.read(slice(0, self._storage.count)) > 0) if among is None else among
        left = int((self.config.max_use or 0) * len(rows) - self._use[rows].sum())
        if left < amount:
            raise NotEnoughError(f"batch_size must be at most the {left} uses left before max_use, got {amount}")

    def _rows_of_age(self, ages: slice) -> Rows:
        """Return the rows in a range of ages that can be drawn."""
        rows = self._storage.newest(self._storage.count)
        return rows[self._tree.read(rows) > 0][ages] if self._gone else rows[ages]

    def _drop_stale(self, train_iter: int) -> None:
        """Remove the oldest transitions that are too stale; they are checked in chronological order."""
        if self.config.max_staleness is None:
            return
        storage = self._storage
        if self.config.max_use is not None:  # then transitions of any age may have left
            rows = np.arange(storage.count)
            self._take_out(self._stale_among(self._drawable(rows), train_iter))
            return
        newest = self._first_id + storage.push_count  # the id after that of the newest transition
        self._first_fresh = max(self._first_fresh, newest - storage.count)
        for first in range(self._first_fresh, newest, 1024):
            last = min(first + 1024, newest)
            rows = (storage.tail - newest + np.arange(first, last)) % storage.capacity
            here = self._drawable(rows)
            stale = self._stale_among(here, train_iter)
            self._take_out(stale)
            if first == self._first_fresh and len(stale) == len(here):
                self._first_fresh = last
            if train_iter - self._policy_version(rows[-1:])[0] < self.config.max_staleness:
                break

    def _stale_among(self, rows: Rows, train_iter: int) -> Rows:
        if self.config.max_staleness is None or not rows.size:
            return np.empty(0, dtype=np.int64)
        unique = np.unique(rows)
        return unique[train_iter - self._policy_version(unique) >= self.config.max_staleness]

    def _policy_version(self, rows: Rows) -> Rows:
        columns = self._storage.columns
        versions: Rows = columns["policy_version" if "policy_version" in columns else "collect_iter"][rows]
        return versions

    def _id_of(self, rows: Rows) -> Rows:
        """Return the ids that transitions got when they were pushed."""
        storage = self._storage
        begin = self._first_id + storage.push_count - storage.tail  # the id of row 0, if the ring began there
        return begin + rows - storage.capacity * (rows >= storage.tail)

    # ------------------------------------------------------------------ state

    def _state(self, copy: bool) -> dict[str, Any]:
        state, rows = super()._state(copy), slice(0, self._storage.count)
        own: dict[str, NDArray[Any]] = {"priority": self._priority[rows], "use": self._use[rows]}
        own["weight"] = self._tree.read(rows)
        state["tensors"] |= {f"own/{k}": torch.from_numpy(v.copy() if copy else v) for k, v in own.items()}
        state["counters"] |= {"first_id": self._first_id, "train_iter": self._train_iter, "alpha": self.config.alpha}
        state["counters"] |= {"envstep": self.env_step} | ({"beta": self._beta.given} if self._beta.given else {})
        return state

    def _load_state(self, state: Mapping[str, Any]) -> None:
        rows = np.arange(self._storage.count)
        own = {name: state["tensors"][f"own/{name}"].numpy() for name in ("priority", "use", "weight")}
        weight = own["weight"]
        if state["counters"]["alpha"] != self.config.alpha:
            weight = np.where(weight > 0, own["priority"].astype(np.float64) ** self.config.alpha, 0.0)
        self._tree.clear()
        self._tree.write(rows, weight)
        self._priority[rows] = own["priority"]
        if self.config.max_use is not None:
            self._use[:] = 0
            self._use[: len(own["use"])] = own["use"]
        self._gone = int(np.count_nonzero(own["weight"] == 0))
        self._first_fresh = 0
        self._first_id, self._train_iter = (int(state["counters"][name]) for name in ("first_id", "train_iter"))
        self.env_step = int(state["counters"].get("envstep", -1))  # older states do not hold it
        given = state["counters"].get("beta")
        self._beta.given = None if given is None else (given[0], given[1])
        self._newest_sample = self._newest_sample[:0]


@dataclass(frozen=True)
class LAPBufferConfig(AdvancedBufferConfig):
    """Keys of the buffer of loss-adjusted priorities."""

    type: str = "lap"
    alpha: float = 0.4
    """As in the advanced buffer, with the value of the paper."""


@BUFFER_REGISTRY.register("lap")
class LAPReplayBuffer(AdvancedReplayBuffer):
    """The advanced buffer with the exponent of LAP (Fujimoto et al. 2020, https://arxiv.org/abs/2007.06049)."""

    config_class = LAPBufferConfig
