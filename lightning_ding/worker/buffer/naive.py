"""The uniform replay buffer.

Shapes: K transitions pushed, B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.base import IBuffer, Transitions
from lightning_ding.worker.buffer.storage import RingStorage
from lightning_ding.worker_config import ReplayBufferConfig


@BUFFER_REGISTRY.register("naive")
class NaiveReplayBuffer(IBuffer):
    """Keeps the newest transitions and draws them uniformly. Safe to use from several threads.

    Args:
        cfg: A ``ReplayBufferConfig``, or a mapping to merge over its defaults.
        seed: Of the draws; None draws one.

    Example:
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=0)
        >>> buffer.push({"reward": np.arange(5.0), "env_id": np.zeros(5, dtype=int)})
        >>> buffer.count(), buffer.sample(2)["reward"].shape
        (5, torch.Size([2]))
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"replay_buffer_size", "frame_stack", "memmap_dir", "enable_track_used_data"}
    )

    def __init__(
        self, cfg: ConfigLike[ReplayBufferConfig] = None, seed: int | np.random.SeedSequence | None = None
    ) -> None:
        self.config: ReplayBufferConfig = self.resolve_config(cfg)
        self._storage = RingStorage(self.config.replay_buffer_size)
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()

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
            data: A nested dict with leading axis K, or a list of K dicts, in the order of time. ``env_id`` lets the
                buffer see which transition follows which, so that n-step returns are possible and an observation is
                stored once.
            cur_collector_envstep: Not needed here.

        Raises:
            ValueError: If keys, shapes, types or lengths do not fit what is here already.
        """
        batch: Any = data if isinstance(data, Mapping) else nested.stack(data) if data else {}
        with self._lock:
            if batch:
                self._storage.push(batch)

    def sample(
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        replace: bool = False,
    ) -> dict[str, Any]:
        """Return a copy of uniformly drawn transitions.

        Args:
            batch_size: B, >= 1.
            cur_learner_iter: Not needed here.
            num_batches: U minibatches drawn and gathered at once; None for a single one without the axis U.
            n_step: Steps of the return, >= 1; see docs/training.md for what a window is.
            discount_factor: gamma of the return.
            replace: Allow a transition to stand in one minibatch more than once.

        Returns:
            A nested dict of tensors, leading axes (B,) or (U, B), with ``discount`` beside what was pushed.

        Raises:
            ValueError: If fewer than B transitions are kept and ``replace`` is false, or none at all, or an argument is
                out of its range.
        """
        require(batch_size >= 1, "batch_size", ">= 1", batch_size)
        require(num_batches is None or num_batches >= 1, "num_batches", ">= 1 or None", num_batches)
        require(n_step >= 1, "n_step", ">= 1", n_step)
        with self._lock:
            count = self._storage.count
            enough = f"at most the {count} transitions kept, without replacement"
            require(count > 0 if replace else count >= batch_size, "batch_size", enough, batch_size)
            rows = self._draw(num_batches or 1, batch_size, count, replace)
            return self._storage.gather(rows if num_batches else rows[0], n_step, discount_factor)

    def update(self, info: Mapping[str, Any]) -> None:
        """Refuse: this buffer keeps no priorities.

        Raises:
            TypeError: Always.
        """
        raise TypeError("NaiveReplayBuffer keeps no priorities; use a prioritised buffer, or set priority to False")

    def clear(self) -> None:
        """Forget all transitions and the form they had."""
        with self._lock:
            self._storage.clear()

    def count(self) -> int:
        """Return how many transitions are kept."""
        return self._storage.count

    def state_dict(self) -> dict[str, Any]:
        """Return transitions, links and the state of the draws, as tensors and builtins."""
        with self._lock:
            return {**self._storage.state_dict(), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state that ``state_dict`` returned.

        Raises:
            ValueError: If it is of a buffer of another size.
        """
        with self._lock:
            self._storage.load_state_dict(state)
            self._rng.bit_generator.state = state["rng"]

    def save_data(self, file: str | Path) -> None:
        """Write the state to a safetensors file."""
        state = self.state_dict()
        header = {"counters": json.dumps(state["counters"]), "rng": json.dumps(state["rng"])}
        save_file(state["tensors"], str(file), metadata=header)

    def load_data(self, file: str | Path) -> None:
        """Take the state from a file that ``save_data`` wrote.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is of a buffer of another size, or no buffer's file.
        """
        with safe_open(str(file), framework="pt") as opened:
            header = opened.metadata() or {}
            if "counters" not in header or "rng" not in header:
                raise ValueError(f"file must be one that save_data wrote, got {file}")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a dict
        state = {name: json.loads(header[name]) for name in ("counters", "rng")}
        self.load_state_dict({**state, "tensors": tensors})

    def _draw(self, num_batches: int, batch_size: int, count: int, replace: bool) -> NDArray[np.int64]:
        """Return uniformly drawn rows, shape (U, B), distinct within a minibatch unless ``replace``."""
        if not replace and 2 * batch_size > count:
            return np.stack([self._rng.permutation(count)[:batch_size] for _ in range(num_batches)])
        rows = self._rng.integers(count, size=(num_batches, batch_size))
        while not replace:
            ordered = np.sort(rows, axis=1)
            if not (ordered[:, 1:] == ordered[:, :-1]).any():
                break
            order = rows.argsort(1)  # what repeats is drawn anew until nothing does
            again = np.zeros(rows.shape, dtype=bool)
            np.put_along_axis(again, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
            rows[again] = self._rng.integers(count, size=np.count_nonzero(again))
        return rows
