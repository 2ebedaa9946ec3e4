"""Ring storage of transitions in typed columns, with every observation kept once.

The observation after a step is, most of the time, the observation before the env's next step. A row therefore contains
its observation and a link: to the row that follows it in the same env, or to a spare slot if no row follows (the
episode ended, or the next step is not there yet). The observations of rows and slots are numbered consecutively:

    entries 0 to C - 1     observation of row i
    entries C to 2C - 1    spare slots, used from the front and freed when their row is overwritten

Memory that was never written costs nothing, because the operating system allocates pages on the first write. The
storage therefore grows to its full size without a pause, and spare slots use memory only for unfinished episodes.

A following row is linked only if it belongs to the same episode, where there is an ``episode_id``, and if its
observation equals the announced one. The storage therefore returns exactly the transitions that were pushed.

Shapes: C capacity, K transitions pushed, n steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from lightning_ding import nested
from lightning_ding.rl import n_step_return
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker.buffer.columns import ENDS, Columns, ObsColumn, Parts, Rows, Schema, has_ends, split_columns
from lightning_ding.worker.buffer.links import Links, steps
from lightning_ding.worker.buffer.memory import Memory


class RingStorage:
    """The newest C transitions.

    Args:
        capacity: Number of rows C, >= 1.
        frame_stack: Frames that observations of two or more dimensions stack along their first axis; 1 stores
            observations unchanged.
        memory: Allocator of the arrays.
        on_evict: Function called with the rows that are about to be overwritten.
    """

    def __init__(
        self,
        capacity: int,
        frame_stack: int = 1,
        memory: Memory | None = None,
        on_evict: Callable[[Rows], None] | None = None,
    ) -> None:
        self.capacity = capacity
        self.frame_stack = frame_stack
        self.keeps_double = False
        """Whether observations of double precision are stored as such."""
        self._memory = memory or Memory()
        self._on_evict = on_evict
        self.clear()

    def clear(self) -> None:
        """Remove everything, including the schema of a transition."""
        self.count = self.tail = self.push_count = 0
        self.schema: Schema | None = None
        """The schema of a transition; None before the first push."""
        self._newest: Rows = np.empty(0, dtype=np.int64)  # rows of the last transitions that were written at once
        self._allocate({}, {})

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions: rows in use, spare slots that were ever used, links."""
        rows = sum(column[: self.count].nbytes for column in self.columns.values())
        frames = sum(frames.nbytes(self.count, self._links.fresh - self.capacity) for frames in self.frames.values())
        return rows + frames + self._links.link[: self.count].nbytes

    # ------------------------------------------------------------------ writing

    def push(self, data: Mapping[str, Any], parts: Parts | None = None) -> int:
        """Add K transitions in chronological order; of more than C, the newest C.

        Args:
            data: Nested arrays with leading axis K. With ``env_id``, followers in the same env are recognised.
            parts: Result of ``Schema.split_usual`` for them; None if it was not called.

        Returns:
            K.

        Raises:
            ValueError: If the keys, shapes, types or lengths do not fit what is here already.
        """
        if parts is None:
            columns, obs, next_obs = split_columns(data, self.keeps_double)
            schema = self.schema or Schema(columns, obs)
            size = schema.check(columns, obs, next_obs)
            if self.schema is None:
                self._allocate(columns, obs)
                self.schema = schema
        else:
            columns, obs, next_obs, size = parts
        if size == 0:
            return 0
        has_envs = "env_id" in columns
        if obs and has_envs:
            self._links.order_of(columns["env_id"])  # it refuses negative numbers before anything is written
        pushed = size
        self.push_count += size
        if size > self.capacity:
            newest = slice(size - self.capacity, None)
            columns, obs, next_obs = ({k: v[newest] for k, v in part.items()} for part in (columns, obs, next_obs))
            size = self.capacity
        if not self._is_stacked or not has_envs:
            self._push(columns, obs, next_obs, size)
        else:
            for part in steps(columns["env_id"]):
                taken = [{k: v[part] for k, v in piece.items()} for piece in (columns, obs, next_obs)]
                self._push(taken[0], taken[1], taken[2], part.stop - part.start)
        return pushed

    def newest(self, amount: int) -> Rows:
        """Return the rows of the newest transitions, the oldest of them first."""
        if amount == len(self._newest):
            return self._newest
        rows = np.arange(self.tail - amount, self.tail)
        return rows if self.tail >= amount else rows % self.capacity

    def _push(self, columns: Columns, obs: Columns, next_obs: Columns, size: int) -> None:
        end = self.tail + size
        fits = end <= self.capacity
        rows = np.arange(self.tail, end) if fits else (self.tail + np.arange(size)) % self.capacity
        too_many = self.count + size - self.capacity
        if too_many > 0:
            evicted = rows if too_many == size else rows[size - too_many :]
            if self._on_evict is not None:
                self._on_evict(evicted)
            if self.frames:
                env_id = self.columns.get("env_id")
                self._links.evict(evicted, None if env_id is None else env_id[evicted])
        where = slice(self.tail, end) if fits else rows
        for name, column in self._column_items:
            column[where] = columns[name]
        if self.frames:
            self._links.write(rows, where, columns.get("env_id"), obs, next_obs)
        self._newest = rows
        self.tail = end % self.capacity
        self.count = min(self.count + size, self.capacity)

    def _allocate(self, columns: Columns, obs: Columns) -> None:
        """Allocate the arrays for batches like these, and note them in the forms that pushes and draws use."""
        depth = self.frame_stack
        stacked = {name for name, o in obs.items() if depth > 1 and o.ndim > 2 and o.shape[1] == depth}
        if depth > 1 and (columns or obs) and not stacked:
            shapes = {name: array.shape[1:] for name, array in obs.items()}
            raise ValueError(f"frame_stack must be the first axis of an observation, {shapes}, got {self.frame_stack}")
        row_bytes = sum(array[:0].itemsize * math.prod(array.shape[1:]) for array in [*columns.values(), *obs.values()])
        self._memory.warn_if_too_small(self.capacity * row_bytes // (self.frame_stack if stacked else 1))
        new = self._memory.zeros
        self.columns: Columns = {n: new((self.capacity, *c.shape[1:]), c.dtype) for n, c in columns.items()}
        kinds: dict[str, type[ObsColumn]] = dict.fromkeys(obs, ObsColumn)
        if stacked:
            from lightning_ding.worker.buffer.frames import StackedFrames

            kinds |= dict.fromkeys(stacked, StackedFrames)
        self.frames = {name: kinds[name](2 * self.capacity, o, self._memory) for name, o in obs.items()}
        self._links = Links(self.capacity, self.frames, self.columns.get("episode_id"))
        self._is_stacked = bool(stacked)
        self._column_items = list(self.columns.items())
        self._reads = [(name, f"next_{name}", frames.read) for name, frames in self.frames.items()]
        self._is_flat = "/" not in "".join((*self.columns, *self.frames))
        single = {name: column for name, column in self._column_items if column.size == self.capacity}
        numbers = {name: single[name].reshape(-1) for name in ("reward", *ENDS) if name in single}
        self._reward: Any = numbers.get("reward")
        self._ends = [numbers[name] for name in ENDS if name in numbers]
        self._terminated: Any = numbers.get("terminated")
        self.missing = [] if "env_id" in self.columns else ["env_id"]
        """Entries that transitions lack to define their order and the ends of episodes."""
        self.missing += [] if "reward" in numbers else ["reward (one number for each transition)"]
        self.missing += [] if has_ends(numbers) else ["terminated", "truncated"]
        self.missing += [] if self.frames else ["obs and next_obs"]

    # ------------------------------------------------------------------ reading

    def gather(self, rows: Rows, n_step: int, discount_factor: float, beginnings: Rows | None = None) -> dict[str, Any]:
        """Return a copy of the transitions in ``rows``, with the return of n steps.

        Args:
            rows: Rows of the ring, of any shape, which is the leading shape of the result.
            n_step: Number of steps n, >= 1. A window is shorter where its episode ends or the next step is missing.
            discount_factor: Discount factor gamma.
            beginnings: Rows in which sequences begin, if ``rows`` are sequences; the columns of a policy with memory,
                its state and whether that is the first one, are then returned for these rows only.

        Returns:
            The columns as tensors. ``reward`` is the discounted sum over the window; ``next_obs``, ``terminated`` and
            ``truncated`` are those of its last step; ``discount`` is gamma to the power of its length.

        Raises:
            ValueError: If n is above 1 and the transitions lack the entries that define their order and the ends of
                episodes.
        """
        flat: dict[str, Any] = {}
        of_first = rows if beginnings is None else beginnings
        for name, column in self._column_items:
            flat[name] = from_numpy(column.take(of_first if name in (STATE, IS_FIRST) else rows, 0))
        last = rows
        if "reward" in flat:
            discount = np.empty(rows.shape, dtype=np.float32)
            discount.fill(discount_factor)
            flat["discount"] = from_numpy(discount)
        if n_step > 1:
            self.require_windows()
            last = self._sum_rewards(flat, rows, n_step, discount_factor)
        if self._reads:
            links = self._links.link.take(last)
            for name, next_name, read in self._reads:
                flat[name] = from_numpy(read(rows))
                flat[next_name] = from_numpy(read(links))
        return flat if self._is_flat else nested.unflatten(flat)

    def gather_first(self, rows: Rows) -> dict[str, Any]:
        """Return a copy of the single steps in ``rows``, whatever the steps of the return are.

        Args:
            rows: Rows of the ring, of any shape, which is the leading shape of the result.

        Returns:
            ``reward_1``, ``terminated_1`` and ``next_obs_1``, as tensors.

        Raises:
            ValueError: If the transitions lack a reward, ``terminated`` or ``next_obs``.
        """
        missing = [name for name in ("reward", "terminated") if name not in self.columns]
        missing += [] if self.frames else ["next_obs"]
        if missing:
            raise ValueError(f"first_step must be False for transitions without {', '.join(missing)}")
        flat = {f"{name}_1": from_numpy(self.columns[name].take(rows, 0)) for name in ("reward", "terminated")}
        links = self._links.link.take(rows)
        flat |= {f"next_obs_1{name.removeprefix('obs')}": from_numpy(read(links)) for name, _, read in self._reads}
        return nested.unflatten(flat)

    def read_next(self, rows: Rows, name: str) -> NDArray[Any]:
        """Return a copy of one leaf of the observations after the steps in ``rows``, such as ``"obs/camera"``."""
        return self.frames[name].read(self._links.link.take(rows))

    def require_windows(self, what: str = "n_step must be 1") -> None:
        """Check that transitions have the entries that define their order and the ends of episodes.

        Args:
            what: Beginning of the message.

        Raises:
            ValueError: If an entry is missing; the message names the missing entries.
        """
        if self.missing:
            raise ValueError(f"{what} for transitions without {', '.join(self.missing)}")

    def _sum_rewards(self, flat: dict[str, Tensor], rows: Rows, n_step: int, discount_factor: float) -> Rows:
        """Replace reward, discount and the marks of ends by those of the windows; return the last row of each."""
        last = rows.copy()
        alive = np.ones((n_step, *rows.shape), dtype=bool)
        reward = np.zeros((n_step, *rows.shape), dtype=np.float32)
        reward[0] = self._reward[rows]
        for step in range(1, n_step):
            last, continues = self.follow(last)
            alive[step] = alive[step - 1] & continues
            reward[step] = self._reward[last]
        total, discount = n_step_return(
            torch.from_numpy(reward.reshape(n_step, -1)), torch.from_numpy(alive.reshape(n_step, -1)), discount_factor
        )
        flat["reward"], flat["discount"] = total.reshape(flat["reward"].shape), discount.reshape(rows.shape)
        for name in ENDS:
            if name in flat:
                flat[name] = torch.from_numpy(self.columns[name][last])
        return last

    def follow(self, rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the next row of the episode, or the row itself if there is none, and whether there is one."""
        link = self._links.link[rows]
        continues = link < self.capacity
        for mark in self._ends:
            over = mark[rows]
            continues &= ~(over if over.dtype.kind == "b" else over != 0)
        return np.where(continues, link, rows), continues

    def links(self, rows: Rows) -> Rows:
        """Return the row or the slot of the observation after each of the rows."""
        linked: Rows = self._links.link[rows]
        return linked

    def newest_rows(self) -> Rows:
        """Return a copy of the newest row of each env, shape (N,), -1 for an env without one."""
        return self._links.last_row.copy()

    def terminated(self, rows: Rows) -> NDArray[np.bool_]:
        """Return whether the env terminated the episode at these rows; False if transitions do not say it."""
        mark = self._terminated
        return np.zeros(rows.shape, dtype=bool) if mark is None else mark[rows].astype(bool)

    def ended(self, rows: Rows) -> NDArray[np.bool_]:
        """Return whether the episode ended at these rows."""
        over = np.zeros(rows.shape, dtype=bool)
        for mark in self._ends:
            over |= mark[rows].astype(bool)
        return over

    # ------------------------------------------------------------------ state

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the used part of all arrays as tensors, and the counters.

        Args:
            copy: Whether the tensors are copies; otherwise they are the storage's own memory.
        """
        slots = slice(self.capacity, self._links.fresh)
        arrays = {f"column/{name}": column[: self.count] for name, column in self.columns.items()}
        for name, frames in self.frames.items():
            arrays |= {f"frames/{name}:{part}": array for part, array in frames.state(self.count, slots).items()}
        arrays |= self._links.state(self.count)
        counters = {"capacity": self.capacity, "frame_stack": self.frame_stack, "count": self.count}
        counters |= {"tail": self.tail, "push_count": self.push_count, "fresh": self._links.fresh}
        tensors = {name: torch.from_numpy(array.copy() if copy else array) for name, array in arrays.items()}
        return {"tensors": tensors, "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a storage of the same capacity.

        Raises:
            ValueError: If the capacities or the frame stacks differ.
        """
        counters, tensors = state["counters"], {k: v.numpy() for k, v in state["tensors"].items()}
        for name, config_key in (("capacity", "replay_buffer_size"), ("frame_stack", "frame_stack")):
            if counters[name] != getattr(self, name):
                saved, own = counters[name], getattr(self, name)
                raise ValueError(f"{config_key} must be {saved}, as in the saved state, got {own}")
        self.clear()
        columns: Columns = {}
        leaves: dict[str, Columns] = {}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            if kind == "column":
                columns[name] = value
            elif kind == "frames":
                leaf, _, part = name.rpartition(":")
                leaves.setdefault(leaf, {})[part] = value
        if not columns and not leaves:
            return
        self._load(counters, columns, leaves, tensors)

    def _load(self, counters: Mapping[str, int], columns: Columns, leaves: dict[str, Columns], own: Columns) -> None:
        like = {name: leaf["row"] for name, leaf in leaves.items()}
        for name, leaf in leaves.items():
            if "pool" in leaf:  # the rows hold indices of frames
                like[name] = np.empty((0, self.frame_stack, *leaf["pool"].shape[1:]), leaf["pool"].dtype)
        self._allocate(columns, like)
        self.schema = Schema(columns, like)
        self.count, self.tail, self.push_count = (int(counters[name]) for name in ("count", "tail", "push_count"))
        self._links.load(own, self.count, int(counters["fresh"]))
        for name, column in self.columns.items():
            column[: self.count] = columns[name]
        for name, frames in self.frames.items():
            frames.load(leaves[name], self.count, slice(self.capacity, self._links.fresh))
