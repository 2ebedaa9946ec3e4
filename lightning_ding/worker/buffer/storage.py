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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.rl import n_step_return
from lightning_ding.worker.buffer.columns import ENDS, Columns, ObsColumn, Rows, Schema, has_ends, split_columns
from lightning_ding.worker.buffer.files import Memory
from lightning_ding.worker.buffer.frames import StackedFrames

NONE: Rows = np.empty(0, dtype=np.int64)


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
        self._memory = memory or Memory()
        self._on_evict = on_evict
        self.clear()

    def clear(self) -> None:
        """Remove everything, including the schema of a transition."""
        self.count = 0
        self.tail = 0
        self.push_count = 0
        self.columns: Columns = {}
        self.frames: dict[str, ObsColumn] = {}
        self.link: Rows = np.empty(0, dtype=np.int64)
        self._schema: Schema | None = None
        self._is_stacked = False
        self._env_key: tuple[str, bytes] | None = None  # type and envs of the last batch
        self._envs_are_distinct = False
        self._last_row: Rows = np.full(0, -1, dtype=np.int64)  # the newest row of each env, -1 for none
        self._free: Rows = np.empty(0, dtype=np.int64)  # freed slots, the last one on top
        self._fresh = self.capacity  # the first slot that was never used
        self._note_windows()

    @property
    def schema(self) -> Schema | None:
        """The schema of a transition; None before the first push."""
        return self._schema

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions: rows in use, spare slots that were ever used, links."""
        rows = sum(column[: self.count].nbytes for column in self.columns.values())
        frames = sum(frames.nbytes(self.count, self._fresh - self.capacity) for frames in self.frames.values())
        return rows + frames + self.link[: self.count].nbytes

    # ------------------------------------------------------------------ writing

    def push(self, data: Mapping[str, Any]) -> int:
        """Add K transitions in chronological order; of more than C, the newest C.

        Args:
            data: Nested arrays with leading axis K. With ``env_id``, followers in the same env are recognised.

        Returns:
            K.

        Raises:
            ValueError: If the keys, shapes, types or lengths do not fit what is here already.
        """
        columns, obs, next_obs = split_columns(data)
        schema = self._schema or Schema(columns, obs)
        size = schema.check(columns, obs, next_obs)
        if self._schema is None:
            self._allocate(columns, obs)
            self._schema = schema
        if size == 0:
            return 0
        if obs and "env_id" in columns:
            self._is_distinct(columns["env_id"])  # it refuses negative numbers before anything is written
        pushed = size
        self.push_count += size
        if size > self.capacity:
            newest = slice(size - self.capacity, None)
            columns, obs, next_obs = ({k: v[newest] for k, v in part.items()} for part in (columns, obs, next_obs))
            size = self.capacity
        if not self._is_stacked or "env_id" not in columns:
            self._push(columns, obs, next_obs, size)
        else:
            for part in _steps(columns["env_id"]):
                taken = [{k: v[part] for k, v in piece.items()} for piece in (columns, obs, next_obs)]
                self._push(taken[0], taken[1], taken[2], part.stop - part.start)
        return pushed

    def newest(self, amount: int) -> Rows:
        """Return the rows of the newest transitions, the oldest of them first."""
        rows = np.arange(self.tail - amount, self.tail)
        return rows if self.tail >= amount else rows % self.capacity

    def _push(self, columns: Columns, obs: Columns, next_obs: Columns, size: int) -> None:
        fits = self.tail + size <= self.capacity
        rows = np.arange(self.tail, self.tail + size) if fits else (self.tail + np.arange(size)) % self.capacity
        if self.count + size > self.capacity:
            self._evict(rows[size - (self.count + size - self.capacity) :])
        where = slice(self.tail, self.tail + size) if fits else rows
        for name, column in self.columns.items():
            column[where] = columns[name]
        if self.frames:
            self._write_frames(rows, where, columns.get("env_id"), obs, next_obs)
        self.tail = (self.tail + size) % self.capacity
        self.count = min(self.count + size, self.capacity)

    def _write_frames(
        self, rows: Rows, where: slice | Rows, env_id: NDArray[Any] | None, obs: Columns, next_obs: Columns
    ) -> None:
        waiting: Rows | None = None  # rows whose next observation needs a slot; None for all
        known = freed = NONE
        if env_id is not None and self._is_distinct(env_id):
            known, freed = self._link_to_newest(rows, env_id, obs)
            self._last_row[env_id] = rows
        elif env_id is not None:
            first, last, waiting = self._link_within(rows, env_id, obs, next_obs)
            some = {name: leaf[first] for name, leaf in obs.items()}
            known, freed = self._link_to_newest(rows[first], env_id[first], some)
            known = first[known]
            self._last_row[env_id[last]] = rows[last]
        slots = self._exchange(freed, len(rows) if waiting is None else len(waiting))
        unlinked = rows if waiting is None else rows[waiting]
        self.link[unlinked] = slots
        for name, frames in self.frames.items():
            frames.write_rows(where, rows, obs[name], known, freed)
            frames.write_slots(slots, next_obs[name] if waiting is None else next_obs[name][waiting], unlinked)

    def _link_within(
        self, rows: Rows, env_id: NDArray[Any], obs: Columns, next_obs: Columns
    ) -> tuple[Rows, Rows, Rows]:
        """Link rows within the batch; return the first and last of each env, and those without a following row."""
        order = np.argsort(env_id, kind="stable")
        same = np.append(env_id[order][1:] == env_id[order][:-1], False)
        before, after = order[same], order[np.flatnonzero(same) + 1]
        follows = _equal(next_obs, before, obs, after) & self._same_episode(rows[before], rows[after])
        self.link[rows[before[follows]]] = rows[after[follows]]
        waiting = np.ones(len(rows), dtype=bool)
        waiting[before[follows]] = False
        return order[np.append(True, ~same[:-1])], order[~same], np.flatnonzero(waiting)

    def _link_to_newest(self, rows: Rows, env_id: NDArray[Any], obs: Columns) -> tuple[Rows, Rows]:
        """Link the newest row of each env to the first new one if that was announced, and free its slot.

        Returns:
            Indices of the new rows that were announced, and the slots that announced them.
        """
        newest = self._last_row[env_id]
        follows = newest >= 0
        slots = self.link[newest]  # for an env without a row it is that of any row
        if "episode_id" in self.columns:
            follows &= self._same_episode(newest, rows)
        for name, frames in self.frames.items():
            follows &= _rows_equal(frames.read(slots), obs[name])
        known = follows.nonzero()[0]
        if len(known) < len(rows):
            newest, slots, rows = newest[known], slots[known], rows[known]
        self.link[newest] = rows
        return known, slots

    def _same_episode(self, before: Rows, after: Rows) -> NDArray[np.bool_] | bool:
        episode_id = self.columns.get("episode_id")
        return True if episode_id is None else np.asarray(episode_id[before] == episode_id[after])

    def _is_distinct(self, env_id: NDArray[Any]) -> bool:
        """Return whether a batch holds each env once, in ascending order; mostly they are those of the last batch."""
        key = (env_id.dtype.char, env_id.tobytes())
        if key != self._env_key:
            self._know_envs(env_id)
            self._env_key = key
            self._envs_are_distinct = bool((env_id[1:] > env_id[:-1]).all())
        return self._envs_are_distinct

    def _evict(self, rows: Rows) -> None:
        if self._on_evict is not None:
            self._on_evict(rows)
        if not self.frames:
            return
        links = self.link[rows]
        slots = links[links >= self.capacity]
        for frames in self.frames.values():
            frames.release(rows)
            frames.release(slots)
        self._give_back(slots)
        if "env_id" in self.columns:
            env_id = self.columns["env_id"][rows]
            gone = self._last_row[env_id] == rows
            self._last_row[env_id[gone]] = -1

    def _give_back(self, slots: Rows) -> None:
        if len(slots):
            self._free = np.concatenate([self._free, slots])

    def _exchange(self, freed: Rows, amount: int) -> Rows:
        """Free slots and return as many as needed, mostly the same ones."""
        if len(freed) == amount:
            return freed
        self._give_back(freed)
        return self._take_slots(amount)

    def _take_slots(self, amount: int) -> Rows:
        kept = max(0, len(self._free) - amount)
        used, self._free = self._free[kept:], self._free[:kept]
        more = amount - len(used)
        if not more:
            return used
        self._fresh += more
        return np.concatenate([used, np.arange(self._fresh - more, self._fresh)])

    def _know_envs(self, env_id: NDArray[Any]) -> None:
        highest, lowest = int(env_id.max()), int(env_id.min())
        require(lowest >= 0, "env_id", ">= 0", lowest)
        if highest >= len(self._last_row):
            more = np.full(highest + 1 - len(self._last_row), -1, dtype=np.int64)
            self._last_row = np.concatenate([self._last_row, more])

    def _allocate(self, columns: Columns, obs: Columns) -> None:
        """Allocate the arrays for batches like these."""
        stacked = {name for name, o in obs.items() if self.frame_stack > 1 and o.shape[1:2] == (self.frame_stack,)}
        stacked = {name for name in stacked if obs[name].ndim > 2}
        if self.frame_stack > 1 and not stacked:
            shapes = {name: array.shape[1:] for name, array in obs.items()}
            raise ValueError(f"frame_stack must be the first axis of an observation, {shapes}, got {self.frame_stack}")
        row_bytes = sum(array[:0].itemsize * math.prod(array.shape[1:]) for array in [*columns.values(), *obs.values()])
        self._memory.warn_if_too_small(self.capacity * row_bytes // (self.frame_stack if stacked else 1))
        new = self._memory.zeros
        self.columns = {name: new((self.capacity, *c.shape[1:]), c.dtype) for name, c in columns.items()}
        kinds = {name: StackedFrames if name in stacked else ObsColumn for name in obs}
        self.frames = {name: kinds[name](2 * self.capacity, o, self._memory) for name, o in obs.items()}
        is_small = 2 * self.capacity <= np.iinfo(np.int32).max
        self.link = np.zeros(self.capacity if obs else 0, dtype=np.int32 if is_small else np.int64)
        self._is_stacked = bool(stacked)
        self._note_windows()

    def _note_windows(self) -> None:
        """Note the columns that windows read, with one number for each row, and which of them are missing."""
        names = [name for name in ("reward", *ENDS) if name in self.columns]
        numbers = {name: self.columns[name].reshape(-1) for name in names if self.columns[name].size == self.capacity}
        self._reward: Any = numbers.get("reward")
        self._ends = [numbers[name] for name in ENDS if name in numbers]
        self._missing = [] if "env_id" in self.columns else ["env_id"]
        self._missing += [] if "reward" in numbers else ["reward (one number for each transition)"]
        self._missing += [] if has_ends(numbers) else ["terminated", "truncated"]
        self._missing += [] if self.frames else ["obs and next_obs"]

    # ------------------------------------------------------------------ reading

    def gather(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        """Return a copy of the transitions in ``rows``, with the return of n steps.

        Args:
            rows: Rows of the ring, of any shape, which is the leading shape of the result.
            n_step: Number of steps n, >= 1. A window is shorter where its episode ends or the next step is missing.
            discount_factor: Discount factor gamma.

        Returns:
            The columns as tensors. ``reward`` is the discounted sum over the window; ``next_obs``, ``terminated`` and
            ``truncated`` are those of its last step; ``discount`` is gamma to the power of its length.

        Raises:
            ValueError: If n is above 1 and the transitions lack the entries that define their order and the ends of
                episodes.
        """
        flat: dict[str, Any] = {
            name: torch.from_numpy(column.take(rows, axis=0)) for name, column in self.columns.items()
        }
        last = rows
        if "reward" in flat:
            discount = np.empty(rows.shape, dtype=np.float32)
            discount.fill(discount_factor)
            flat["discount"] = torch.from_numpy(discount)
        if n_step > 1:
            self.require_windows()
            last = self._sum_rewards(flat, rows, n_step, discount_factor)
        for name, frames in self.frames.items():
            flat[name] = torch.from_numpy(frames.read(rows))
            flat[f"next_{name}"] = torch.from_numpy(frames.read(self.link[last]))
        return nested.unflatten(flat)

    def require_windows(self, what: str = "n_step must be 1") -> None:
        """Check that transitions have the entries that define their order and the ends of episodes.

        Args:
            what: Beginning of the message.

        Raises:
            ValueError: If an entry is missing; the message names the missing entries.
        """
        if self._missing:
            raise ValueError(f"{what} for transitions without {', '.join(self._missing)}")

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
        link = self.link[rows]
        continues = link < self.capacity
        for mark in self._ends:
            over = mark[rows]
            continues &= ~(over if over.dtype.kind == "b" else over != 0)
        return np.where(continues, link, rows), continues

    # ------------------------------------------------------------------ state

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the used part of all arrays as tensors, and the counters.

        Args:
            copy: Whether the tensors are copies; otherwise they are the storage's own memory.
        """
        slots = slice(self.capacity, self._fresh)
        arrays = {f"column/{name}": column[: self.count] for name, column in self.columns.items()}
        for name, frames in self.frames.items():
            arrays |= {f"frames/{name}:{part}": array for part, array in frames.state(self.count, slots).items()}
        arrays |= {"link": self.link[: self.count], "last_row": self._last_row, "free": self._free}
        counters = {"capacity": self.capacity, "frame_stack": self.frame_stack, "count": self.count}
        counters |= {"tail": self.tail, "push_count": self.push_count, "fresh": self._fresh}
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
        self._schema = Schema(columns, like)
        self.count, self.tail, self._fresh = (int(counters[name]) for name in ("count", "tail", "fresh"))
        self.push_count = int(counters["push_count"])
        for name, column in self.columns.items():
            column[: self.count] = columns[name]
        for name, frames in self.frames.items():
            frames.load(leaves[name], self.count, slice(self.capacity, self._fresh))
        self.link[: self.count] = own["link"]
        self._last_row, self._free = own["last_row"].copy(), own["free"].copy()


def _equal(left: Columns, left_rows: Rows, right: Columns, right_rows: Rows) -> NDArray[np.bool_]:
    """Return whether ``left[left_rows]`` equals ``right[right_rows]``, row by row, over all leaves."""
    equal = np.ones(len(left_rows), dtype=bool)
    for name, column in left.items():
        equal &= _rows_equal(column[left_rows], right[name][right_rows])
    return equal


def _rows_equal(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether arrays are equal along all axes but the first."""
    same = left == right
    if left.dtype.kind == "f" and not same.all():
        same |= (left != left) & (right != right)  # NaN equals NaN here
    axes = 1 if same.ndim == 2 else tuple(range(1, same.ndim))
    equal: NDArray[np.bool_] = same.all(axis=axes) if same.ndim > 1 else same
    return equal


def _steps(env_id: NDArray[Any]) -> Iterator[slice]:
    """Yield consecutive parts of a batch that hold each env at most once."""
    order = np.argsort(env_id, kind="stable")
    before = np.full(len(env_id), -1)  # where the same env was before
    same = np.flatnonzero(env_id[order][1:] == env_id[order][:-1])
    before[order[same + 1]] = order[same]
    start = 0
    for place, last in enumerate(before.tolist()):
        if last >= start:
            yield slice(start, place)
            start = place
    yield slice(start, len(env_id))
