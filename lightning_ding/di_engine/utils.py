"""DI-engine's registries and functions of ``ding.utils``, and the batches of ``ding.utils.data``, with its names.

Shapes: B batch, T time.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from easydict import EasyDict
from torch import Tensor
from typing_extensions import Self

from lightning_ding import registry
from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.policies.collate import default_collate, default_decollate
from lightning_ding.registry import Registry, import_modules
from lightning_ding.rl.running import combine_moments
from lightning_ding.utils.foreign import attach
from lightning_ding.utils.ranks import rank_and_world_size

_REGISTRIES = [name for name in vars(registry) if name.endswith("_REGISTRY")]
_HOMES = {**dict.fromkeys(_REGISTRIES, "registry"), "Scheduler": "di_engine.scheduler"}
__all__ = [
    *_HOMES,
    "DDPContext",
    "DistContext",
    "EasyTimer",
    "Registry",
    "RunningMeanStd",
    "allreduce",
    "allreduce_async",
    "allreduce_with_indicator",
    "broadcast",
    "deep_merge_dicts",
    "default_collate",
    "default_decollate",
    "dist_finalize",
    "dist_init",
    "fps",
    "get_rank",
    "get_world_size",
    "import_module",
    "set_pkg_seed",
    "split_data_generator",
    "synchronize",
    "timestep_collate",
    "to_ddp_config",
    "ttorch_collate",
]
_others = attach(__name__, _HOMES)[0]


def __getattr__(name: str) -> Any:
    return _others(name)


def set_pkg_seed(seed: int, use_cuda: bool = True) -> None:
    """Seed Python's, NumPy's and torch's random numbers, also those of policies and buffers in DI-engine's form.

    Args:
        seed: The seed, from 0 to 2**32 - 1.
        use_cuda: Without effect: torch always seeds all devices.
    """
    for generator in (random, np.random):
        generator.seed(seed)
    torch.manual_seed(seed)


def global_generator() -> np.random.Generator:
    """Return a generator that draws from NumPy's global random numbers, as everything in DI-engine does."""
    return np.random.Generator(np.random.mtrand.get_bit_generator())


def deep_merge_dicts(original: Mapping[str, Any] | None, new_dict: Mapping[str, Any] | None) -> EasyDict:
    """Return ``original`` with the values of ``new_dict``, where both are nested; neither is changed."""
    return EasyDict(deep_merge(original or {}, new_dict or {}))


import_module = import_modules


class EasyTimer:
    """Measures the seconds between the start and the end of a ``with`` block, as ``value``.

    Args:
        cuda: Wait for the work on the GPU before both, if there is a GPU.

    Example:
        >>> timer = EasyTimer(cuda=False)
        >>> with timer:
        ...     total = sum(range(10))
        >>> timer.value >= 0
        True
    """

    def __init__(self, cuda: bool = True) -> None:
        self._waits = cuda and torch.cuda.is_available()
        self.value = 0.0

    def _now(self) -> float:
        if self._waits:
            torch.cuda.synchronize()
        return time.perf_counter()

    def __enter__(self) -> Self:
        self._start = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.value = self._now() - self._start


class RunningMeanStd:
    """The mean and the standard deviation of all batches so far.

    Args:
        epsilon: Number of samples of mean 0 and variance 1 to begin with, > 0.
        shape: Shape of one sample.
        device: Device of the tensors that :attr:`mean` and :attr:`std` return.

    Example:
        >>> running = RunningMeanStd(epsilon=1e-8)
        >>> running.update(np.array([1.0, 3.0]))
        >>> round(running.mean, 6), round(running.std, 6)
        (2.0, 1.0)
    """

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self._epsilon, self._shape, self._device = epsilon, shape, torch.device(device)
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        count = np.array(self._epsilon, np.float64)
        self._count, self._mean, self._m2 = count, np.zeros(self._shape), count * np.ones(self._shape)

    def update(self, x: Any) -> None:
        """Take a batch, leading axis B."""
        batch = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, np.float64)
        of_batch = np.array(len(batch), np.float64), batch.mean(0), batch.var(0) * len(batch)
        self._count, self._mean, self._m2 = combine_moments(self._count, self._mean, self._m2, *of_batch)

    @property
    def mean(self) -> Any:
        """The mean: a number, or a tensor."""
        return self._of(self._mean)

    @property
    def std(self) -> Any:
        """The standard deviation, >= 1e-4: a number, or a tensor."""
        return self._of(np.sqrt(self._m2 / self._count + 1e-8))

    def _of(self, array: Any) -> Any:
        return torch.as_tensor(array, dtype=torch.float32, device=self._device) if array.ndim else float(array)


def split_data_generator(data: Mapping[str, Any], split_size: int, shuffle: bool = True) -> Iterator[dict[str, Any]]:
    """Yield minibatches of a batch, one pass over it.

    Args:
        data: Tensors, lists of B other values, and dicts and lists of tensors, with leading axis B. Everything else
            is left as it is in each minibatch.
        split_size: Samples of a minibatch, >= 1. The last one takes the rest, and is never smaller: as many samples of
            the beginning as are missing follow.
        shuffle: Draw the samples in a random order.
    """
    require(split_size >= 1, "split_size", ">= 1", split_size)
    sizes = {len(leaf) for leaf in data.values() if isinstance(leaf, (Tensor, np.ndarray))}
    require(len(sizes) == 1, "data", "tensors with the same leading axis", sizes)
    count = sizes.pop()
    order = torch.randperm(count) if shuffle else torch.arange(count)
    for start in range(0, count, split_size):
        rows = order[start : start + split_size]
        rows = torch.cat([rows, order[: min(split_size, count) - len(rows)]])
        yield {name: _rows(column, rows, count) for name, column in data.items()}


def _rows(column: Any, rows: Tensor, count: int) -> Any:
    if isinstance(column, (Tensor, np.ndarray)):
        return column[rows.to(column.device) if isinstance(column, Tensor) else rows.numpy()]
    if isinstance(column, Mapping):
        return {name: _rows(below, rows, count) for name, below in column.items()}
    if isinstance(column, list) and len(column) == count and not isinstance(column[0], Tensor):
        return [column[row] for row in rows.tolist()]
    if isinstance(column, (list, tuple)):  # of tensors, such as the two arguments of a distribution
        return type(column)(_rows(below, rows, count) for below in column)
    return column


def timestep_collate(batch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return B sequences of T steps as columns with leading axes (T, B).

    Args:
        batch: For each sequence the lists of its T steps by name. The lists of ``prev_state`` stay lists, of T lists of
            B states.
    """
    made: dict[str, Any] = {}
    for name in batch[0]:
        steps = [one[name] for one in batch]
        if name.startswith("prev_state"):
            made[name] = [list(of_step) for of_step in zip(*steps, strict=True)]
        elif isinstance(steps[0], (list, tuple)):
            of_steps = [default_collate(list(of_step)) for of_step in zip(*steps, strict=True)]
            made[name] = default_collate(of_steps, False)
        else:
            made[name] = default_collate(steps)
    return made


def ttorch_collate(x: Any, json: bool = False, cat_1dim: bool = True) -> Any:
    """Return B items as nested tensors with leading axis B, whose entries are attributes too.

    DI-engine returns a tree of its package treetensor, which also has methods of tensors.

    Args:
        x: Tensors, arrays, numbers, or nested dicts of them.
        json: Without effect: numbers become tensors in any case.
        cat_1dim: Join tensors of shape (1,) to (B,), not to (B, 1).
    """
    made = default_collate(x, cat_1dim)
    return EasyDict(made) if isinstance(made, Mapping) else made


def fps(env_manager: Any) -> float:
    """Return the frames a second of the videos of an env or a manager; 30 if it does not say."""
    vector = env_manager.vector_env() if hasattr(env_manager, "vector_env") else env_manager
    return float((getattr(vector, "metadata", None) or {}).get("render_fps", 30))


# ---------------------------------------------------------------------- ranks


def get_rank() -> int:
    """Return the rank of this process, from 0."""
    return rank_and_world_size()[0]


def get_world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return rank_and_world_size()[1]


def dist_init(backend: str | None = None, **kwargs: Any) -> tuple[int, int]:
    """Join the process group that torchrun describes, and return rank and number of ranks.

    Args:
        backend: Backend of the group; None means NCCL with a GPU and Gloo without.
        **kwargs: Not allowed, because torchrun sets addresses and ranks.
    """
    require(not kwargs, "dist_init", "called without addresses, which torchrun sets", sorted(kwargs))
    if not dist.is_initialized() and "RANK" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
    return rank_and_world_size()


def dist_finalize() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


class DistContext(contextlib.AbstractContextManager[None]):
    """A ``with`` block in the process group that torchrun describes."""

    def __enter__(self) -> None:
        dist_init()

    def __exit__(self, *error: object) -> None:
        dist_finalize()


DDPContext = DistContext


def to_ddp_config(cfg: EasyDict) -> EasyDict:
    """Return the config of one of several ranks, with its share of the samples, episodes and minibatches.

    Raises:
        ValueError: If the number of ranks does not divide one of them.
    """
    ranks, made = get_world_size(), EasyDict(deep_merge(cfg, {}))
    for path in ("policy.batch_size", "policy.learn.batch_size", "policy.collect.n_sample", "policy.collect.n_episode"):
        *sections, key = path.split(".")
        section: Any = made
        for name in sections:
            section = section.get(name, {})
        if section.get(key) is not None:
            require(section[key] % ranks == 0, path, f"a multiple of the {ranks} ranks", section[key])
            section[key] = section[key] // ranks
    return made


def allreduce(x: Tensor) -> None:
    """Replace a tensor by its mean over the ranks."""
    if get_world_size() > 1:
        dist.all_reduce(x)
        x.div_(get_world_size())


def allreduce_async(name: str, x: Tensor) -> None:
    """Replace a tensor by its mean over the ranks; the call returns afterwards."""
    allreduce(x)


def allreduce_with_indicator(grad: Tensor, indicator: Tensor) -> None:
    """Replace a tensor by its mean over those ranks whose ``indicator`` is 1."""
    if get_world_size() > 1:
        dist.all_reduce(grad)
        dist.all_reduce(indicator)
    grad.div_(indicator.clamp(min=1))


def broadcast(value: Tensor, rank: int) -> None:
    """Replace a tensor by that of one rank."""
    if get_world_size() > 1:
        dist.broadcast(value, rank)


def synchronize() -> None:
    """Wait for the work on the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
