"""The replay buffer of tensor envs: a ring of steps of N envs whose columns are tensors on one device.

A step of all envs is N consecutive rows of the ring, so the next transition of an env is N rows further on. Nothing is
read on the host when transitions are pushed or drawn.

Shapes: C rows of the ring, N envs, T steps of a push, K = T N transitions, B transitions of a minibatch, U minibatches,
M drawn rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.rl import n_step_return
from lightning_ding.worker.buffer.base import Transitions
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer
from lightning_ding.worker.buffer.sampling import require_enough
from lightning_ding.worker.config import ReplayBufferConfig

ENDS = ("terminated", "truncated")
EPISODE = "episode_id"
NOT_STORED = ("env_id",)  # it is the place in a step


class TensorReplayBuffer(NaiveReplayBuffer):
    """Stores the newest steps of N tensor envs on their device, and draws transitions uniformly with replacement.

    Everything else is as in :class:`NaiveReplayBuffer`. The ring has room for ``replay_buffer_size`` transitions,
    rounded up to whole steps of all envs.

    Args:
        cfg: The config section of the buffer.
        num_envs: Number of envs N, >= 1.
        device: Device of the transitions.
        seed: Seed of the draws.

    Example:
        >>> buffer = TensorReplayBuffer({"replay_buffer_size": 100}, num_envs=2, device="cpu", seed=0)
        >>> buffer.push({"reward": torch.arange(4.0), "terminated": torch.zeros(4, dtype=torch.bool)})
        >>> buffer.count(), buffer.sample(2)["reward"].shape
        (4, torch.Size([2]))
    """

    def __init__(
        self,
        cfg: Any,
        num_envs: int,
        device: torch.device | str,
        seed: int | np.random.SeedSequence | None = None,
    ) -> None:
        super().__init__(cfg, seed=seed)
        self.unit = num_envs
        self._ring = TensorRing(self.config.replay_buffer_size, num_envs, torch.device(device))
        self._storage = cast(Any, self._ring)
        self._ring.generator.manual_seed(int(self._rng.integers(2**63)))

    @staticmethod
    def check_config(config: ReplayBufferConfig) -> None:
        """Check that a config section asks for what this buffer can do.

        Raises:
            ValueError: Naming the option, the allowed value and the given value.
        """
        allowed = {"type": "naive", "frame_stack": 1, "memmap_dir": None, "enable_track_used_data": False}
        for name, value in allowed.items():
            got = getattr(config, name)
            require(got == value, f"other.replay_buffer.{name}", f'{value!r} with mode="tensor"', got)

    @override
    def load_files(self, files: Sequence[Path], seed: np.random.SeedSequence) -> int:
        taken = super().load_files(files, seed)
        self._ring.generator.manual_seed(int(self._rng.integers(2**63)))
        return taken

    @override
    def _loaded(self, file: Path) -> Self:
        buffer = type(self)(self.config, self._ring.num_envs, "cpu")  # several of them may not fit on the device
        buffer.load_data(file)
        return buffer

    @override
    def push(self, data: Transitions, cur_collector_envstep: int = -1) -> None:
        """Add the columns of whole steps of all envs; see :meth:`TensorRing.push`.

        Args:
            data: Nested tensors with leading axis K.
            cur_collector_envstep: Environment steps so far.

        Raises:
            ValueError: If they are not whole steps, or the entries are not those of the first push.
        """
        with self._lock:
            before, self.env_step = self._ring.count, cur_collector_envstep
            size = self._ring.push(cast("Mapping[str, Any]", data))
            self._pushed += size
            self._removed += before + size - self._ring.count

    @override
    def drop_episodes(self, episode_id: Sequence[int]) -> int:
        raise NotImplementedError('mode="tensor" has no env_fault="drop", so there are no episodes to forget')

    @override
    def _draw(self, num_batches: int, batch_size: int, replace: bool) -> Any:
        count, ring = self._ring.count, self._ring
        require_enough(count, batch_size, replace)
        return torch.randint(count, (num_batches, batch_size), generator=ring.generator, device=ring.device)

    @override
    def _draw_aged(self, num_batches: int, batch_size: int, replace: bool, ages: slice) -> Any:
        count, ring, among = self._ring.count, self._ring, range(self._ring.count)[ages]
        require_enough(len(among), batch_size, replace)
        drawn = torch.randint(len(among), (num_batches, batch_size), generator=ring.generator, device=ring.device)
        return (ring.tail - count + among.start + among.step * drawn) % ring.capacity


class TensorRing:
    """The newest steps of N envs, in the form in which :class:`RingBuffer` uses its storage.

    Args:
        size: Number of transitions, >= 1; rounded up to whole steps.
        num_envs: Number of envs N, >= 1.
        device: Device of the columns.
    """

    schema = None

    def __init__(self, size: int, num_envs: int, device: torch.device) -> None:
        self.num_envs, self.device = num_envs, device
        self.capacity = -(-size // num_envs) * num_envs
        """Number of rows C."""
        self.generator = torch.Generator(device)
        """The source of the draws."""
        self.keeps_double = False  # not used: collectors of tensors give single precision
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        self.count = self.tail = self.push_count = 0
        self.columns: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that hold transitions."""
        return sum(column[: self.count].nbytes for column in self.columns.values())

    def push(self, data: Mapping[str, Any], parts: None = None) -> int:
        """Add K transitions, the steps in order, and in each step those of all envs; of more than C, the newest C.

        Args:
            data: Nested tensors with leading axis K.
            parts: Not used.

        Returns:
            K.

        Raises:
            ValueError: If K is no multiple of N, or the entries are not those of the first push.
        """
        flat = {name: leaf for name, leaf in nested.flatten(data).items() if name not in NOT_STORED}
        if not self.columns:
            self.columns = {name: self._room(leaf) for name, leaf in flat.items()}
        pushed = nested.length(flat)
        require(pushed % self.num_envs == 0, "data", f"whole steps of {self.num_envs} envs", pushed)
        require(flat.keys() == self.columns.keys(), "data", f"transitions with {sorted(self.columns)}", sorted(flat))
        size = min(pushed, self.capacity)
        until_end = min(size, self.capacity - self.tail)
        for name, column in self.columns.items():
            new = flat[name][pushed - size :]
            column[self.tail : self.tail + until_end] = new[:until_end]
            if until_end < size:
                column[: size - until_end] = new[until_end:]
        self.tail = (self.tail + size) % self.capacity
        self.count = min(self.count + size, self.capacity)
        self.push_count += pushed
        return pushed

    def newest(self, amount: int) -> Tensor:
        """Return the rows of the newest transitions, the oldest of them first."""
        return torch.arange(self.tail - amount, self.tail, device=self.device) % self.capacity

    def gather(self, rows: Tensor, n_step: int, discount_factor: float) -> dict[str, Any]:
        """Return a copy of the transitions in ``rows``, with the return of n steps; see :meth:`RingStorage.gather`.

        Args:
            rows: Rows of the ring, of any shape, which is the leading shape of the result.
            n_step: Number of steps n, >= 1.
            discount_factor: Discount factor gamma.
        """
        first = last = rows.flatten()
        summed: dict[str, Tensor] = {}
        if n_step > 1:
            last, summed = self._windows(first, n_step, discount_factor)
        elif "reward" in self.columns:
            summed = {"discount": torch.full(first.shape, discount_factor, device=self.device)}
        found = {}
        for name, column in self.columns.items():
            if name not in summed:
                is_of_last = name in ENDS or name.partition("/")[0] == "next_obs"
                found[name] = column.index_select(0, last if is_of_last else first)
        return nested.unflatten({name: leaf.unflatten(0, rows.shape) for name, leaf in (found | summed).items()})

    def gather_first(self, rows: Tensor) -> dict[str, Any]:
        """Return ``reward_1``, ``terminated_1`` and ``next_obs_1`` of the single steps in ``rows``, of any shape."""
        found = self.gather(rows, 1, 1.0)
        return {f"{name}_1": found[name] for name in ("reward", "terminated", "next_obs")}

    def _windows(self, rows: Tensor, n_step: int, discount_factor: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the last rows of windows of up to n steps from rows, shape (M,), their returns and discounts.

        A window ends with its episode and at the newest step.
        """
        needed = ("reward", *ENDS, EPISODE)
        missing = [name for name in needed if name not in self.columns]
        require(not missing, "n_step", f"1 for transitions without {', '.join(missing)}", n_step)
        reward, terminated, truncated, episode = (self.columns[name] for name in needed)
        newest = (self.tail - self.num_envs) % self.capacity  # first row of the newest step
        last, alive = rows, [torch.ones_like(rows, dtype=torch.bool)]
        rewards = [reward.index_select(0, rows)]
        for _ in range(n_step - 1):
            after = (last + self.num_envs) % self.capacity
            is_over = terminated.index_select(0, last) | truncated.index_select(0, last)
            is_over |= (last >= newest) & (last < newest + self.num_envs)
            # envs were reset in the middle of an episode, as by a second fit
            is_over |= episode.index_select(0, after) != episode.index_select(0, last)
            last = torch.where(is_over, last, after)
            alive.append(alive[-1] & ~is_over)
            rewards.append(reward.index_select(0, last))
        total, discount = n_step_return(torch.stack(rewards), torch.stack(alive), discount_factor)
        return last, {"reward": total, "discount": discount}

    def _room(self, leaf: Tensor) -> Tensor:
        """Return a column for rows like those of ``leaf``; floats are stored in single precision.

        Raises:
            MemoryError: If the device has not enough memory.
        """
        dtype = torch.float32 if leaf.is_floating_point() else leaf.dtype
        try:
            return torch.empty((self.capacity, *leaf.shape[1:]), dtype=dtype, device=self.device)
        except RuntimeError as error:  # of which the errors of all devices are
            needed = f"a replay buffer of {self.capacity} transitions does not fit on {self.device}"
            raise MemoryError(f"{needed}: set other.replay_buffer.replay_buffer_size") from error

    # ------------------------------------------------------------------ state

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return the rows in use and the state of the generator as tensors on the CPU, and the counters.

        Args:
            copy: Whether the tensors are copies; otherwise they share memory with the ring, if that is on the CPU.
        """
        tensors = {f"column/{k}": column[: self.count].to("cpu", copy=copy) for k, column in self.columns.items()}
        counters = {name: getattr(self, name) for name in ("capacity", "num_envs", "count", "tail", "push_count")}
        return {"tensors": {**tensors, "generator": self.generator.get_state()}, "counters": counters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a ring of the same capacity for the same number of envs.

        Raises:
            ValueError: If they differ.
        """
        counters = state["counters"]
        for name, key in (("num_envs", "num_envs"), ("capacity", "replay_buffer_size")):
            own, saved = getattr(self, name), counters[name]
            require(own == saved, key, f"{saved}, as in the saved state", own)
        self.clear()
        for key, value in state["tensors"].items():
            kind, _, name = key.partition("/")
            if kind == "column":
                self.columns[name] = self._room(value)
                self.columns[name][: len(value)] = value
        generator = state["tensors"]["generator"]
        if generator.shape == self.generator.get_state().shape:  # otherwise it is of a device of another kind
            self.generator.set_state(generator)
        self.count, self.tail, self.push_count = (int(counters[name]) for name in ("count", "tail", "push_count"))
