"""The common part of the buffers: ring storage with a lock, saving, merging and counting.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self, override

from lightning_ding.config import ConfigLike, require
from lightning_ding.worker.arguments import also_named, check_integers
from lightning_ding.worker.buffer.base import IBuffer, Transitions
from lightning_ding.worker.buffer.columns import Parts, Rows
from lightning_ding.worker.buffer.memory import Memory
from lightning_ding.worker.buffer.sampling import DroppedRows
from lightning_ding.worker.buffer.storage import RingStorage
from lightning_ding.worker.config import ReplayBufferConfig
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog

PARTS = 64  # number of parts in which merged buffers take turns, so that the newest transitions of each are kept


class RingBuffer(IBuffer):
    """A buffer on a ring of transitions. Safe to use from several threads.

    Args:
        cfg: The buffer's ``config_class``, or a mapping to merge over its defaults.
        tb_logger: Logger for the metrics of a buffer that is used without a Trainer; see ``WorkerLog``.
        exp_name: Name of the experiment in the log.
        instance_name: Name that distinguishes several buffers in the log.
        seed: Seed of the draws, or the generator that makes them; None draws a seed.
    """

    can_merge: ClassVar[bool] = False
    """Whether :meth:`load_files` takes more than one file."""
    unit = 1
    """Number of consecutive transitions that stay together when buffers are merged."""

    def __init__(
        self,
        cfg: ConfigLike[ReplayBufferConfig] = None,
        tb_logger: Any = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = "buffer",
        seed: int | np.random.SeedSequence | np.random.Generator | None = None,
    ) -> None:
        self.config: ReplayBufferConfig = self.resolve_config(cfg)
        size, memory = self.config.replay_buffer_size, Memory(self.config.memmap_dir)
        self._storage = RingStorage(size, self.config.frame_stack, memory, self._forget)
        self._dropped = DroppedRows(size)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Condition(threading.RLock())
        self._instance_name = instance_name
        self._log = WorkerLog(tb_logger, exp_name, instance_name)
        self._used_data: list[NDArray[Any]] = []
        self.env_step = -1
        self._reported_iter = 0
        self._is_limited = False  # whether pushes and samples wait for each other
        self._begin_interval()
        self._set_up()

    def _set_up(self) -> None:
        """Set the additional attributes of a subclass, once the config is known."""

    @property
    def replay_buffer_size(self) -> int:
        """Number of transitions that fit."""
        return self.config.replay_buffer_size

    @property
    def push_count(self) -> int:
        """Number of transitions pushed since the start or the last ``clear``."""
        return self._storage.push_count

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions."""
        return self._storage.nbytes

    def push(self, data: Transitions, cur_collector_envstep: int = -1) -> None:
        """Add transitions, which overwrite the oldest ones.

        Args:
            data: A nested dict with leading axis K, a list of K transitions, a list of such nested dicts, or one
                transition, in chronological order. With ``env_id`` the buffer can find the next transition of each one,
                so n-step returns are possible and an observation is stored once.
            cur_collector_envstep: Environment steps so far, for the log.

        Raises:
            ValueError: If keys, shapes, types or lengths do not fit the stored transitions, a transition has no
                ``data_id`` although used data is tracked, or one transition cannot be distinguished from several
                before the first push; then push a list.
            TypeError: If ``data`` is neither a mapping nor a list of mappings, or the step is not an integer.
        """
        if type(cur_collector_envstep) is not int:
            check_integers(cur_collector_envstep=cur_collector_envstep)
        with self._lock:
            schema = self._storage.schema
            parts = None if schema is None else schema.split_usual(data)
            batch: Any = data
            is_of_columns = parts is not None or (
                type(data) is dict and "priority" not in data and np.ndim(data.get("env_id", 0)) > 0
            )
            if not is_of_columns:  # not what a collector returns
                from lightning_ding.worker.buffer.forms import as_columns

                batch = as_columns(data, schema)
            if not batch:
                return
            if self.config.enable_track_used_data:
                require("data_id" in batch, "data", "transitions with a data_id to track", sorted(batch))
            self.env_step, self._storage.keeps_double = cur_collector_envstep, self.keeps_double
            self._push(batch, parts)
            if self._is_limited:
                self._lock.notify_all()

    @override
    def update(self, info: Mapping[str, Any]) -> None:
        if "priority" in info:
            kind = type(self).__name__
            raise TypeError(f"{kind} stores no priorities; use a prioritised buffer, or set priority to False")

    def drop_episodes(self, episode_id: Sequence[int]) -> int:
        """Exclude the stored transitions of some episodes, such as those that a fault ended, from all later draws.

        They stay in memory until they are overwritten. Transitions pushed later are not affected.

        Args:
            episode_id: Values of ``episode_id`` in the transitions.

        Returns:
            The number of transitions that were excluded.

        Raises:
            ValueError: If the transitions have no ``episode_id``.
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
        """Remove all transitions and their schema."""
        with self._lock:
            if self._storage.count:
                self._forget(np.arange(self._storage.count))
            self._storage.clear()

    def count(self) -> int:
        """Return the number of stored transitions that were not dropped."""
        return self._storage.count - self._dropped.count

    def transitions(self) -> dict[str, Any]:
        """Return a copy of all transitions that can be drawn, the oldest first; nested tensors."""
        with self._lock:
            batch = self._storage.gather(self._drawable(self._storage.newest(self._storage.count)), 1, 1.0)
        batch.pop("discount", None)
        return batch

    def pop_used_data(self) -> NDArray[Any]:
        """Return the ``data_id`` of the transitions that left since the last call, for the owner of their data.

        Raises:
            ValueError: If ``enable_track_used_data`` is false.
        """
        require(self.config.enable_track_used_data, "enable_track_used_data", "True for pop_used_data", False)
        with self._lock:
            used, self._used_data = self._used_data, []
        return np.concatenate(used) if used else np.empty(0, dtype=np.int64)

    def pop_metrics(self) -> dict[str, float]:
        """Return the count, and the transitions pushed, sampled and removed per second since the last call."""
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

    @also_named(_state_dict="state")
    def load_state_dict(self, state: Mapping[str, Any], deepcopy: bool = True) -> None:
        """Restore the state that ``state_dict`` returned, or add the transitions of ``{"data": transitions}``.

        Args:
            state: The state, or transitions in a form that :meth:`push` takes under the key ``data``.
            deepcopy: Only True, because a buffer always copies.

        Raises:
            ValueError: If a buffer of a different type or size saved it.
        """
        require(deepcopy is True, "deepcopy", "True, because a buffer always copies", deepcopy)
        if state.keys() == {"data"}:
            data = state["data"]
            self.push([one for one in data if one is not None] if isinstance(data, list) else data)
            return
        with self._lock:
            whole = {"tensors", "counters", "rng"} <= state.keys()
            require(whole, "state", "what state_dict returned, with tensors, counters and rng", sorted(state))
            saved = state["counters"].get("buffer")
            require(saved == type(self).__name__, "state", f"the state of a {type(self).__name__}", saved)
            self._storage.load_state_dict(state)
            rows = state["tensors"].get("dropped/rows")
            self._dropped.load(to_rows([] if rows is None else rows))
            self._rng.bit_generator.state = state["rng"]
            self._load_state(state)

    @also_named(file_name="file")
    def save_data(self, file: str | Path) -> None:
        """Write the state to a safetensors file, without a copy in memory; its folder is made if there is none.

        Raises:
            OSError: If writing fails.
        """
        from lightning_ding.worker.buffer.files import write_tensors

        Path(file).parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            state = self._state(copy=False)
            header = {"counters": json.dumps(state["counters"]), "rng": json.dumps(state["rng"])}
            write_tensors(state["tensors"], Path(file), header)

    @also_named(file_name="file")
    def load_data(self, file: str | Path) -> None:
        """Restore the state from a file that ``save_data`` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If a buffer of a different type or size saved it, or not a buffer's file.
        """
        from safetensors import SafetensorError

        from lightning_ding.worker.buffer.files import read_tensors

        try:
            tensors, header = read_tensors(file)
        except SafetensorError as error:
            raise ValueError(f"file must be one that save_data wrote, got {file}: {error}") from error
        if "counters" not in header or "rng" not in header:
            raise ValueError(f"file must be one that save_data wrote, got {file}")
        state = {name: json.loads(header[name]) for name in ("counters", "rng")}
        self.load_state_dict({**state, "tensors": tensors})

    # ------------------------------------------------------------------ merging

    def load_files(self, files: Sequence[Path], seed: np.random.SeedSequence) -> int:
        """Fill the empty buffer with the states that several buffers saved, the oldest transitions first.

        If they do not fit, the newest of each are kept. The numbers of envs and episodes of the second and later files
        are shifted, so that no two episodes have the same number.

        Args:
            files: Files that ``save_data`` of buffers of this type and size wrote, at least one.
            seed: Seed of the later draws, because several buffers may begin with the same file.

        Returns:
            The number of files that were taken: all if the buffer ``can_merge``, otherwise 1.
        """
        taken = list(files) if self.can_merge else list(files[:1])
        if len(taken) == 1:
            self.load_data(taken[0])
        else:
            self._merge([self._loaded(file) for file in taken])
        self._rng = np.random.default_rng(seed)
        return len(taken)

    def next_episode_id(self) -> int:
        """Return an ``episode_id`` above the ids of all stored transitions."""
        return self._next_number("episode_id")

    def _next_number(self, name: str) -> int:
        """Return a number above those in a column; 0 without the column."""
        column, count = self._storage.columns.get(name), self._storage.count
        return 0 if column is None or not count else int(column[:count].max()) + 1

    def _loaded(self, file: Path) -> Self:
        buffer = type(self)(self.config)
        buffer.load_data(file)
        return buffer

    def _merge(self, sources: Sequence[Self]) -> None:
        rows = [one._drawable(one._storage.newest(one._storage.count)) for one in sources]
        numbers = {name: [one._next_number(name) for one in sources] for name in ("env_id", "episode_id")}
        offsets = {name: np.cumsum([0, *of_each]) for name, of_each in numbers.items()}
        size = max(1, self.config.replay_buffer_size // PARTS // self.unit) * self.unit
        for part in reversed(range(-(-max(map(len, rows)) // size))):  # counted from the newest
            for number, (source, own) in enumerate(zip(sources, rows, strict=True)):
                some = own[max(0, len(own) - (part + 1) * size) : max(0, len(own) - part * size)]
                if len(some):
                    self._take_from(source, some, {name: int(offset[number]) for name, offset in offsets.items()})

    def _take_from(self, source: Self, rows: Rows, offsets: Mapping[str, int]) -> None:
        """Add transitions of another buffer.

        Args:
            source: The other buffer.
            rows: Rows of its ring.
            offsets: Numbers to add to columns, by name.
        """
        batch = source._storage.gather(rows, 1, 1.0)
        batch.pop("discount", None)
        for name, offset in offsets.items():
            if name in batch:
                batch[name] = batch[name] + offset
        RingBuffer._push(self, batch, None)  # without the limits of a subclass

    # ------------------------------------------------------------------ for subclasses

    def _push(self, batch: Mapping[str, Any], parts: Parts | None) -> None:
        """Store a batch; the lock is held.

        Args:
            batch: Nested arrays with leading axis K.
            parts: Result of ``Schema.split_usual`` for the batch.
        """
        size = self._storage.push(batch, parts)
        self._pushed += size
        too_many = size - self._storage.capacity
        if too_many > 0:  # these left without ever being stored
            self._removed += too_many
            if self.config.enable_track_used_data:
                self._used_data.append(to_rows(batch["data_id"])[:too_many].copy())

    def _gather(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        """Return a copy of the transitions in ``rows``, shape (B,) or (U, B); see :meth:`RingStorage.gather`."""
        return self._storage.gather(rows, n_step, discount_factor)

    def _forget(self, rows: Rows) -> None:
        """Count rows that leave because they are overwritten, cleared, dropped, used up or stale."""
        rows = self._dropped.release(rows)  # dropped rows have already been counted
        self._removed += len(rows)
        if self.config.enable_track_used_data:
            self._used_data.append(self._storage.columns["data_id"][rows].copy())

    def _take_out(self, rows: Rows) -> None:
        """Remove rows that stay in the ring from the draws."""
        self._forget(rows)
        self._dropped.add(rows)

    def _drawable(self, rows: Rows) -> Rows:
        """Return those rows of the ring that can be drawn."""
        return self._dropped.without(rows)

    def _state(self, copy: bool) -> dict[str, Any]:
        state = self._storage.state_dict(copy)
        if self._dropped.count:
            state["tensors"]["dropped/rows"] = torch.from_numpy(self._dropped.rows())
        state["counters"]["buffer"] = type(self).__name__
        return {**state, "rng": self._rng.bit_generator.state}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the part of the state that a subclass added."""

    def _note_sample(self, amount: int, train_iter: int) -> None:
        """Count sampled transitions, and write metrics if they are due; the lock is held."""
        self._sampled += amount
        if train_iter - self._reported_iter >= self.config.monitor_freq and self._log.has_reader:
            self._reported_iter = train_iter
            self._log.write(self.pop_metrics(), train_iter, self.env_step)

    def _begin_interval(self) -> None:
        self._since = time.perf_counter()
        self._pushed = self._sampled = self._removed = 0


def to_rows(values: Any) -> Rows:
    """Return a tensor, array or list of numbers as a flat array of int64."""
    array = values.numpy(force=True) if isinstance(values, torch.Tensor) else values
    return np.asarray(array, dtype=np.int64).reshape(-1)
