"""What the buffers have in common: ring storage behind a lock, saving, counting.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from lightning_ding.config import ConfigLike, require
from lightning_ding.worker.buffer.base import IBuffer, Transitions
from lightning_ding.worker.buffer.dropped import DroppedRows
from lightning_ding.worker.buffer.form import Rows, as_columns
from lightning_ding.worker.buffer.memory import Memory
from lightning_ding.worker.buffer.storage import RingStorage
from lightning_ding.worker.buffer.tensor_file import write_tensors
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog
from lightning_ding.worker_config import ReplayBufferConfig

STORED_KEYS = frozenset({"replay_buffer_size", "frame_stack", "memmap_dir", "enable_track_used_data", "monitor_freq"})


class StoredBuffer(IBuffer):
    """A buffer on a ring of transitions. Safe to use from several threads.

    Args:
        cfg: A ``ReplayBufferConfig``, or a mapping to merge over its defaults.
        tb_logger: Of a buffer that is used by hand, for its metrics; see ``WorkerLog``.
        exp_name: Name of the experiment in the log.
        instance_name: Tells several buffers apart in the log.
        seed: Of the draws; None draws one.
    """

    config_keys = STORED_KEYS

    def __init__(
        self,
        cfg: ConfigLike[ReplayBufferConfig] = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "buffer",
        seed: int | np.random.SeedSequence | None = None,
    ) -> None:
        self.config: ReplayBufferConfig = self.resolve_config(cfg)
        size, memory = self.config.replay_buffer_size, Memory(self.config.memmap_dir)
        self._storage = RingStorage(size, self.config.frame_stack, memory, self._forget)
        self._dropped = DroppedRows(size)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Condition(threading.RLock())
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._used_data: list[NDArray[Any]] = []
        self._envstep = -1
        self._reported_iter = 0
        self._begin_interval()

    @property
    def replay_buffer_size(self) -> int:
        """Transitions that fit."""
        return self.config.replay_buffer_size

    @property
    def push_count(self) -> int:
        """Transitions pushed since the start or the last ``clear``."""
        return self._storage.push_count

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions."""
        return self._storage.nbytes

    def push(self, data: Transitions, cur_collector_envstep: int = -1) -> None:
        """Add transitions; the oldest give way.

        Args:
            data: A nested dict with leading axis K, a list of K transitions, a list of such nested dicts, or one
                transition, in the order of time. ``env_id`` lets the buffer see which transition follows which, so that
                n-step returns are possible and an observation is stored once.
            cur_collector_envstep: Environment steps so far, for the log.

        Raises:
            ValueError: If keys, shapes, types or lengths do not fit what is here already, a transition has no
                ``data_id`` although used data is tracked, or before the first push nothing tells one transition from
                several: then push a list.
            TypeError: If ``data`` is neither a mapping nor a list of mappings.
        """
        with self._lock:
            batch: Any = as_columns(data, self._storage.form)
            if not batch:
                return
            if self.config.enable_track_used_data:
                require("data_id" in batch, "data", "transitions with a data_id to track", sorted(batch))
            self._envstep = cur_collector_envstep
            self._push(batch)
            self._lock.notify_all()

    def drop_episodes(self, episode_id: Sequence[int]) -> int:
        """Never draw the transitions of some episodes again: what a fault broke off is not to be learned from.

        They stay in memory until they are overwritten. What is pushed later is not concerned, whatever its episode.

        Args:
            episode_id: As in the transitions.

        Returns:
            How many transitions left that were here.

        Raises:
            ValueError: If transitions do not say which episode they are of.
        """
        with self._lock:
            count, columns = self._storage.count, self._storage.columns
            if not count or not len(episode_id):
                return 0
            require("episode_id" in columns, "drop_episodes", "for transitions with an episode_id", sorted(columns))
            of_these = np.isin(columns["episode_id"][:count], to_rows(episode_id))
            rows = self._drawable(np.flatnonzero(of_these))
            self._take_out(rows)
            return len(rows)

    def clear(self) -> None:
        """Forget all transitions and the form they had."""
        with self._lock:
            if self._storage.count:
                self._forget(np.arange(self._storage.count))
            self._storage.clear()

    def count(self) -> int:
        """Return how many transitions are kept and were not dropped."""
        return self._storage.count - self._dropped.count

    def pop_used_data(self) -> NDArray[Any]:
        """Return the ``data_id`` of the transitions that left since the last call, for whoever keeps their data.

        Raises:
            ValueError: If ``enable_track_used_data`` is false.
        """
        require(self.config.enable_track_used_data, "enable_track_used_data", "True for pop_used_data", False)
        with self._lock:
            used, self._used_data = self._used_data, []
        return np.concatenate(used) if used else np.empty(0, dtype=np.int64)

    def pop_metrics(self) -> dict[str, float]:
        """Return what is kept, and transitions pushed, sampled and removed a second since the last call."""
        with self._lock:
            seconds = max(time.perf_counter() - self._since, 1e-9)
            rates = {"pushed": self._pushed, "sampled": self._sampled, "removed": self._removed}
            self._begin_interval()
            return {"count": float(self.count())} | {f"{k}_per_second": v / seconds for k, v in rates.items()}

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Return transitions, links and the state of the draws, as tensors and builtins."""
        with self._lock:
            return self._state(copy=True)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that ``state_dict`` returned.

        Raises:
            ValueError: If it is of a buffer of another type or size.
        """
        with self._lock:
            whole = {"tensors", "counters", "rng"} <= state.keys()
            require(whole, "state", "what state_dict returned, with tensors, counters and rng", sorted(state))
            saved = state["counters"].get("buffer")
            require(saved == type(self).__name__, "state", f"that of a {type(self).__name__}", saved)
            self._storage.load_state_dict(state)
            rows = state["tensors"].get("dropped/rows")
            self._dropped.load(to_rows([] if rows is None else rows))
            self._rng.bit_generator.state = state["rng"]
            self._load_state(state)

    def save_data(self, file: str | Path) -> None:
        """Write the state to a safetensors file, without a copy in memory.

        Raises:
            OSError: If the disk does not take it.
        """
        with self._lock:
            state = self._state(copy=False)
            header = {"counters": json.dumps(state["counters"]), "rng": json.dumps(state["rng"])}
            write_tensors(state["tensors"], Path(file), header)

    def load_data(self, file: str | Path) -> None:
        """Take the state from a file that ``save_data`` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is of a buffer of another type or size, or no buffer's file.
        """
        try:
            with safe_open(str(file), framework="pt") as opened:
                header = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        except SafetensorError as error:
            raise ValueError(f"file must be one that save_data wrote, got {file}: {error}") from error
        if "counters" not in header or "rng" not in header:
            raise ValueError(f"file must be one that save_data wrote, got {file}")
        state = {name: json.loads(header[name]) for name in ("counters", "rng")}
        self.load_state_dict({**state, "tensors": tensors})

    # ------------------------------------------------------------------ for subclasses

    def _push(self, batch: dict[str, Any]) -> None:
        """Store a batch; the lock is held."""
        size = self._storage.push(batch)
        self._pushed += size
        too_many = size - self._storage.capacity
        if too_many > 0:  # these left without ever standing in a row
            self._removed += too_many
            if self.config.enable_track_used_data:
                self._used_data.append(to_rows(batch["data_id"])[:too_many].copy())

    def _forget(self, rows: Rows) -> None:
        """Note that rows leave: they are overwritten, cleared, dropped, used up or stale."""
        rows = self._dropped.release(rows)  # these left when they were dropped
        self._removed += len(rows)
        if self.config.enable_track_used_data:
            self._used_data.append(self._storage.columns["data_id"][rows].copy())

    def _take_out(self, rows: Rows) -> None:
        """Let rows leave that stay in the ring."""
        self._forget(rows)
        self._dropped.add(rows)

    def _drawable(self, rows: Rows) -> Rows:
        """Return those of some rows in the ring that have not left."""
        return self._dropped.without(rows)

    def _state(self, copy: bool) -> dict[str, Any]:
        state = self._storage.state_dict(copy)
        if self._dropped.count:
            state["tensors"]["dropped/rows"] = torch.from_numpy(self._dropped.rows())
        state["counters"]["buffer"] = type(self).__name__
        return {**state, "rng": self._rng.bit_generator.state}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Take what a subclass added to the state."""

    def _note_sample(self, amount: int, train_iter: int) -> None:
        """Count sampled transitions, and write metrics when it is time; the lock is held."""
        self._sampled += amount
        if train_iter - self._reported_iter >= self.config.monitor_freq and self._log.is_listened_to:
            self._reported_iter = train_iter
            self._log.write(self.pop_metrics(), train_iter, self._envstep)

    def _begin_interval(self) -> None:
        self._since = time.perf_counter()
        self._pushed = self._sampled = self._removed = 0


def check_sizes(batch_size: int, num_batches: int | None, n_step: int) -> None:
    """Raise if a size that ``sample`` takes is out of its range.

    Raises:
        ValueError: If it is.
    """
    require(batch_size >= 1, "batch_size", ">= 1", batch_size)
    require(num_batches is None or num_batches >= 1, "num_batches", ">= 1 or None", num_batches)
    require(n_step >= 1, "n_step", ">= 1", n_step)


def require_enough(
    count: int, batch_size: int, replace: bool = False, what: str = "transitions", kept: str = "kept"
) -> None:
    """Raise if a buffer holds too little for a minibatch.

    Raises:
        ValueError: If it does.
    """
    enough = f"at most the {count} {what} {kept}, without replacement"
    require(count > 0 if replace else count >= batch_size, "batch_size", enough, batch_size)


def to_rows(values: Any) -> Rows:
    """Return a tensor, array or list of numbers as a flat array of int64."""
    array = values.numpy(force=True) if isinstance(values, torch.Tensor) else values
    return np.asarray(array, dtype=np.int64).reshape(-1)
