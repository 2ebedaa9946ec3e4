"""Ring storage of transitions in typed columns, with every observation kept once.

The observation after a step is, most of the time, the observation before the env's next step. So a row holds its
observation and a link: to the row that follows it in the same env, or to a spare slot when nothing follows (the
episode ended, or the next step is not there yet). Rows and slots lie in one array of frames,

    frames[0 : C]     observation of row i
    frames[C : 2C]    spare slots, given out from the front and taken back when their row is overwritten

and memory that was never written costs nothing, because the operating system gives pages on the first write: the
storage grows to its size without a pause, and spare slots cost what the episodes alive need.

A follower is linked only if it belongs to the same episode, where ``episode_id`` tells, and its observation equals the
one that was announced; whatever comes in, what comes out is what was pushed.

Shapes: C capacity, K transitions pushed, n steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding.rl import n_step_return

Rows = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


class RingStorage:
    """The newest C transitions.

    Args:
        capacity: C, >= 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Forget everything, the form of a transition included."""
        self.count = 0
        self.tail = 0
        self.push_count = 0
        self.columns: Columns = {}
        self.frames: Columns = {}
        self.link: Rows = np.empty(0, dtype=np.int64)
        self._last_row: Rows = np.full(0, -1, dtype=np.int64)  # the newest row of each env, -1 for none
        self._free: Rows = np.empty(0, dtype=np.int64)  # slots taken back, the last on top
        self._fresh = self.capacity  # the first slot never given out

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions: rows in use, spare slots that were ever used, links."""
        rows = sum(column[: self.count].nbytes for column in self.columns.values())
        slots = self._fresh - self.capacity
        frames = sum(frame[: self.count + slots].nbytes for frame in self.frames.values())
        return rows + frames + self.link[: self.count].nbytes

    # ------------------------------------------------------------------ writing

    def push(self, data: Mapping[str, Any]) -> None:
        """Add K transitions in the order of time; of more than C, the newest C.

        Args:
            data: Nested arrays with leading axis K. With ``env_id``, followers in the same env are recognised.

        Raises:
            ValueError: If the keys, shapes, types or lengths do not fit what is here already.
        """
        columns, obs, next_obs = _take_apart(data)
        size = _check_lengths({**columns, **obs, **next_obs})
        is_first = not self.columns and not self.frames
        _check_form(*((columns, obs) if is_first else (self.columns, self.frames)), columns, obs, next_obs)
        if is_first:
            self._allocate(columns, obs)
        self.push_count += size
        if size > self.capacity:
            newest = slice(size - self.capacity, None)
            columns, obs, next_obs = ({k: v[newest] for k, v in part.items()} for part in (columns, obs, next_obs))
            size = self.capacity
        if size == 0:
            return
        rows = (self.tail + np.arange(size)) % self.capacity
        self._evict(rows[size - max(0, self.count + size - self.capacity) :])
        where = slice(self.tail, self.tail + size) if self.tail + size <= self.capacity else rows
        for name, column in self.columns.items():
            column[where] = columns[name]
        if self.frames:
            self._write_frames(rows, where, columns.get("env_id"), obs, next_obs)
        self.tail = (self.tail + size) % self.capacity
        self.count = min(self.count + size, self.capacity)

    def _write_frames(
        self, rows: Rows, where: slice | Rows, env_id: NDArray[Any] | None, obs: Columns, next_obs: Columns
    ) -> None:
        needs_slot = np.ones(len(rows), dtype=bool)
        first = last = np.arange(len(rows)) if env_id is not None else np.empty(0, dtype=np.int64)
        if env_id is not None:
            self._know_envs(env_id)
            if len(env_id) > 1 and not (env_id[1:] > env_id[:-1]).all():  # an env may stand here more than once
                order = np.argsort(env_id, kind="stable")
                same = np.append(env_id[order][1:] == env_id[order][:-1], False)
                before, after = order[same], order[np.flatnonzero(same) + 1]
                follows = _rows_equal(next_obs, before, obs, after) & self._same_episode(rows[before], rows[after])
                self.link[rows[before[follows]]] = rows[after[follows]]
                needs_slot[before[follows]] = False
                first, last = order[np.append(True, ~same[:-1])], order[~same]
            self._link_to_newest(rows, env_id, first, obs)
            self._last_row[env_id[last]] = rows[last]
        slots = self._take_slots(int(np.count_nonzero(needs_slot)))
        self.link[rows[needs_slot]] = slots
        for name, frame in self.frames.items():
            frame[where] = obs[name]
            frame[slots] = next_obs[name] if len(slots) == len(rows) else next_obs[name][needs_slot]

    def _link_to_newest(self, rows: Rows, env_id: NDArray[Any], first: Rows, obs: Columns) -> None:
        """Link the newest row of each env to the first new one if it is what was announced, and free its slot."""
        newest = self._last_row[env_id[first]]
        known = newest >= 0
        if not known.all():
            first, newest = first[known], newest[known]
        slots = self.link[newest]
        follows = _rows_equal(self.frames, slots, obs, first) & self._same_episode(newest, rows[first])
        self._give_back(slots[follows])
        self.link[newest[follows]] = rows[first[follows]]

    def _same_episode(self, before: Rows, after: Rows) -> NDArray[np.bool_] | bool:
        if "episode_id" not in self.columns:
            return True
        episode_id = self.columns["episode_id"]
        return np.asarray(episode_id[before] == episode_id[after])

    def _evict(self, rows: Rows) -> None:
        if not len(rows) or not self.frames:
            return
        links = self.link[rows]
        self._give_back(links[links >= self.capacity])
        if "env_id" in self.columns:
            env_id = self.columns["env_id"][rows]
            gone = self._last_row[env_id] == rows
            self._last_row[env_id[gone]] = -1

    def _give_back(self, slots: Rows) -> None:
        if len(slots):
            self._free = np.concatenate([self._free, slots])

    def _take_slots(self, amount: int) -> Rows:
        kept = max(0, len(self._free) - amount)
        used, self._free = self._free[kept:], self._free[:kept]
        more = amount - len(used)
        if not more:
            return used
        self._fresh += more
        return np.concatenate([used, np.arange(self._fresh - more, self._fresh)])

    def _know_envs(self, env_id: NDArray[Any]) -> None:
        highest = int(env_id.max())
        if highest >= len(self._last_row):
            more = np.full(highest + 1 - len(self._last_row), -1, dtype=np.int64)
            self._last_row = np.concatenate([self._last_row, more])

    def _allocate(self, columns: Columns, obs: Columns) -> None:
        self.columns = {name: np.empty((self.capacity, *c.shape[1:]), c.dtype) for name, c in columns.items()}
        self.frames = {name: np.empty((2 * self.capacity, *c.shape[1:]), c.dtype) for name, c in obs.items()}
        self.link = np.empty(self.capacity if obs else 0, dtype=np.int64)

    # ------------------------------------------------------------------ reading

    def gather(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        """Return a copy of the transitions in ``rows``, with the return of n steps.

        Args:
            rows: Of any shape; it is the leading shape of what is returned.
            n_step: n, >= 1. A window is shorter where its episode ends or its followers are not there.
            discount_factor: gamma.

        Returns:
            The columns as tensors. ``reward`` is the discounted sum over the window; ``next_obs``, ``terminated`` and
            ``truncated`` are those of its last step; ``discount`` is gamma to the power of its length.

        Raises:
            ValueError: If n is above 1 and the transitions do not say which follows which and where episodes end.
        """
        flat: dict[str, Any] = {
            name: torch.from_numpy(column.take(rows, axis=0)) for name, column in self.columns.items()
        }
        last = rows
        if "reward" in flat:
            flat["discount"] = torch.full(rows.shape, discount_factor)
        if n_step > 1:
            self._require_windows()
            last = self._sum_rewards(flat, rows, n_step, discount_factor)
        for name, frame in self.frames.items():
            flat[name] = torch.from_numpy(frame.take(rows, axis=0))
            flat[f"next_{name}"] = torch.from_numpy(frame.take(self.link[last], axis=0))
        return _put_together(flat)

    def _require_windows(self) -> None:
        missing = [name for name in ("env_id", "reward", "terminated", "truncated") if name not in self.columns]
        missing += [] if self.frames else ["obs and next_obs"]
        if missing:
            raise ValueError(f"n_step must be 1 for transitions without {', '.join(missing)}")

    def _sum_rewards(self, flat: dict[str, Tensor], rows: Rows, n_step: int, discount_factor: float) -> Rows:
        """Replace reward, discount, terminated and truncated by those of n-step windows; return the last rows."""
        last = rows.copy()
        alive = np.ones((n_step, *rows.shape), dtype=bool)
        reward = np.zeros((n_step, *rows.shape), dtype=np.float32)
        reward[0] = self.columns["reward"][rows]
        for step in range(1, n_step):
            link = self.link[last]
            ended = self.columns["terminated"][last] | self.columns["truncated"][last]
            alive[step] = alive[step - 1] & ~ended & (link < self.capacity)
            last = np.where(alive[step], link, last)
            reward[step] = self.columns["reward"][last]
        total, discount = n_step_return(
            torch.from_numpy(reward.reshape(n_step, -1)), torch.from_numpy(alive.reshape(n_step, -1)), discount_factor
        )
        flat["reward"], flat["discount"] = total.reshape(rows.shape), discount.reshape(rows.shape)
        for name in ("terminated", "truncated"):
            flat[name] = torch.from_numpy(self.columns[name][last])
        return last

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and builtins; only what is in use is copied."""
        slots = slice(self.capacity, self._fresh)
        tensors = {f"column/{name}": column[: self.count] for name, column in self.columns.items()}
        tensors |= {f"frame/{name}": frame[: self.count] for name, frame in self.frames.items()}
        tensors |= {f"slot/{name}": frame[slots] for name, frame in self.frames.items()}
        tensors |= {"link": self.link[: self.count], "last_row": self._last_row, "free": self._free}
        counters = {"capacity": self.capacity, "count": self.count, "tail": self.tail}
        counters |= {"push_count": self.push_count, "fresh": self._fresh}
        return {"tensors": {k: torch.from_numpy(v.copy()) for k, v in tensors.items()}, "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of another storage of the same capacity.

        Raises:
            ValueError: If the capacities differ.
        """
        counters, tensors = state["counters"], {k: v.numpy() for k, v in state["tensors"].items()}
        if counters["capacity"] != self.capacity:
            raise ValueError(
                f"replay_buffer_size must be {counters['capacity']}, as in the saved state, got {self.capacity}"
            )
        self.clear()
        parts: dict[str, Columns] = {"column": {}, "frame": {}, "slot": {}}
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            if kind in parts:
                parts[kind][name] = value
        if parts["column"] or parts["frame"]:
            self._allocate(parts["column"], parts["frame"])
        self.count, self.tail, self._fresh = (int(counters[name]) for name in ("count", "tail", "fresh"))
        self.push_count = int(counters["push_count"])
        for name, column in self.columns.items():
            column[: self.count] = parts["column"][name]
        for name, frame in self.frames.items():
            frame[: self.count] = parts["frame"][name]
            frame[self.capacity : self._fresh] = parts["slot"][name]
        self.link[: self.count] = tensors["link"]
        self._last_row, self._free = tensors["last_row"].copy(), tensors["free"].copy()


def _take_apart(data: Mapping[str, Any]) -> tuple[Columns, Columns, Columns]:
    """Return flat columns, observation leaves and next-observation leaves; without both, all are columns."""
    has_frames = "obs" in data and "next_obs" in data
    columns: Columns = {}
    obs: Columns = {}
    next_obs: Columns = {}
    for key, value in data.items():
        target = {"obs": obs, "next_obs": next_obs}.get(key, columns) if has_frames else columns
        _flatten("obs" if target is next_obs else _checked(key), value, target)
    return columns, obs, next_obs


def _checked(key: str) -> str:
    if "/" in key:
        raise ValueError(f"the name of an entry must not contain '/', got {key!r}")
    return key


def _flatten(name: str, value: Any, target: Columns) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _flatten(f"{name}/{_checked(key)}", below, target)
        return
    array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    target[name] = array.astype(np.float32) if array.dtype == np.float64 else array


def _put_together(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat names as a nested dict: what ``_flatten`` undid."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split("/")
        below = result
        for part in path:
            below = below.setdefault(part, {})
        below[leaf] = value
    return result


def _check_lengths(columns: Columns) -> int:
    if not columns:
        raise ValueError("a transition must hold at least one entry, got none")
    sizes = {name: len(column) if column.ndim else -1 for name, column in columns.items()}
    if len(set(sizes.values())) != 1 or -1 in sizes.values():
        raise ValueError(f"every entry of a batch must have the same leading axis, got the sizes {sizes}")
    return next(iter(sizes.values()))


def _check_form(here: Columns, frames: Columns, columns: Columns, obs: Columns, next_obs: Columns) -> None:
    """Raise if a batch's keys, shapes or types do not fit the columns and frames that are here."""
    for kind, old, new in (("", here, columns), ("", frames, obs), ("next_", frames, next_obs)):
        if old.keys() != new.keys():
            raise ValueError(
                f"a transition must hold {sorted(kind + k for k in old)}, got {sorted(kind + k for k in new)}"
            )
        for name, column in old.items():
            if column.shape[1:] != new[name].shape[1:]:
                raise ValueError(f"{kind}{name} must have the shape {column.shape[1:]}, got {new[name].shape[1:]}")
            dtype = new[name].dtype
            if dtype != column.dtype and not np.can_cast(dtype, column.dtype, "same_kind"):
                raise ValueError(f"{kind}{name} must be of a type that fits {column.dtype}, got {dtype}")


def _rows_equal(left: Columns, left_rows: Rows, right: Columns, right_rows: Rows) -> NDArray[np.bool_]:
    """Return whether ``left[left_rows]`` equals ``right[right_rows]``, row by row, over all leaves."""
    equal = np.ones(len(left_rows), dtype=bool)
    for name, column in left.items():
        equal &= (column[left_rows] == right[name][right_rows]).all(axis=tuple(range(1, column.ndim)))
    return equal
