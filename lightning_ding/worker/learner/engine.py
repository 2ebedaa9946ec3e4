"""The engine of a learner, which its hooks see: the policy, the counters, and the reports of the last iteration.

Shapes: B transitions of a batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_ding.nested import length
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import LearnMode
from lightning_ding.utils.progress import Progress
from lightning_ding.utils.ranks import rank_and_world_size
from lightning_ding.worker.arguments import learn_mode_of
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog

COUNTERS = {"last_iter": "train_iter", "last_step": "env_step", "last_episode": "episode", "last_sample": "sample"}
DEFAULT_INSTANCE = "learner"
IDS = ("replay_buffer_idx", "replay_unique_id")
Scalar = float | Tensor
LogBuffer = dict[str, dict[str, Any]]


class LearnerEngine:
    """A policy that is being trained, as its hooks see it, with a Trainer or without one.

    An *iteration* is one call of ``train``, or a round of a Trainer. It makes one update or several.

    Args:
        policy: A policy, or its learn mode.
        tb_logger: See :class:`~lightning_ding.worker.log.WorkerLog`.
        dist_info: Rank and number of ranks; None means those of ``torch.distributed``.
        exp_name: Name of the experiment; also the folder of the checkpoints, unless ``folder`` is given.
        instance_name: Name that distinguishes several learners.
        folder: Folder of the folder ``ckpt``, which is ``ckpt_{instance_name}`` if the name is not the default.
        log_policy: Describe a policy in Python's logging when it is set.
        only_monitor_rank0: Report only on the first rank.

    Raises:
        TypeError: If ``policy`` is neither a policy nor a learn mode.
    """

    def __init__(
        self,
        policy: Any = None,
        tb_logger: Any = None,
        dist_info: tuple[int, int] | None = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = DEFAULT_INSTANCE,
        folder: Path | None = None,
        log_policy: bool = True,
        only_monitor_rank0: bool = True,
    ) -> None:
        self.rank, self.world_size = dist_info or rank_and_world_size()
        self.exp_name = exp_name
        self.instance_name = instance_name
        self.ckpt_name: str | None = None
        """File name of the next checkpoint; None for ``iteration_{updates}.pth.tar``."""
        self.monitor: dict[str, float] = {}
        """Values of the last report, means over an interval."""
        self.updates = 0
        """Updates that the last iteration made."""
        self._folder = folder or Path(exp_name)
        self._log_policy = log_policy
        self._reports = self.rank == 0 or not only_monitor_rank0
        self._own_writer: Any = None
        self._log = WorkerLog(tb_logger, exp_name, instance_name, every_rank=not only_monitor_rank0)
        self._text = logging.getLogger(f"lightning_ding.{exp_name}.{instance_name}")
        self._policy: LearnMode | None = None
        self.module: LightningModule | None = None
        """The module that a Trainer trains with these hooks; None without a Trainer."""
        self._progress = Progress()
        self._counts_itself = True
        self.priority_info: dict[str, Any] = {}
        """Priorities of the last batch, as a buffer's ``update`` takes them; empty if the update gave none."""
        self.log_buffer: LogBuffer = empty_log_buffer()
        """Values that the last iteration reported: ``scalar``, ``scalars`` and ``histogram``."""
        self._iter_before = 0
        self._in_iteration = False
        self.learner_done = False
        """Whether the last run is over."""
        if policy is not None:
            self.policy = policy

    @classmethod
    def for_trainer(cls, trainer: Trainer) -> LearnerEngine:
        """Return an engine that is the interface to a Trainer; every rank has to call it.

        Raises:
            TypeError: If the Trainer's module is not a policy.
        """
        ranks, folder = (trainer.global_rank, trainer.world_size), Path(trainer.log_dir or trainer.default_root_dir)
        engine = cls(trainer.lightning_module, trainer.logger, ranks, folder=folder, log_policy=False)
        engine.module = trainer.lightning_module
        return engine

    # ------------------------------------------------------------------ attributes that hooks read

    @property
    def policy(self) -> LearnMode:
        """The policy's learn mode.

        Raises:
            RuntimeError: If no policy has been set yet.
        """
        if self._policy is None:
            raise RuntimeError("the learner needs a policy: pass it to the constructor, or set learner.policy")
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        mode = learn_mode_of(policy)
        if not (hasattr(mode, "forward") and hasattr(mode, "monitor_vars")):
            raise TypeError(f"policy must be a policy or its learn mode, got {type(policy).__name__}")
        self._policy = mode
        found: Progress | None = policy_of(mode).progress
        self._counts_itself = found is None
        self._progress = found or Progress()
        if self._log_policy:
            self.info(mode.info())

    @property
    def logger(self) -> logging.Logger:
        """The logger of Python's logging that this learner writes lines to."""
        return self._text

    @property
    def tb_logger(self) -> Any:
        """The TensorBoard writer; without one, the first rank makes it at the first access.

        It then also gets the reports of the hooks, and writes into ``{exp_name}/log/{instance_name}``. Other ranks have
        None.
        """
        if self._log.tb_logger is None and self.rank == 0:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._own_writer = self._log.tb_logger = SummaryWriter(str(self._folder / "log" / self.instance_name))
        return self._log.writer

    def close_writer(self) -> None:
        """Close the TensorBoard writer if it was made here."""
        if self._own_writer is not None:
            self._own_writer.close()

    @property
    def last_iter(self) -> Counter:
        """The counter of updates, which can be set."""
        return Counter(self._progress, "train_iter")

    @property
    def train_iter(self) -> int:
        """Updates completed."""
        return self._progress.train_iter

    @property
    def collector_envstep(self) -> int:
        """Environment steps that the policy has learned from so far; can be set."""
        return self._progress.env_step

    @collector_envstep.setter
    def collector_envstep(self, value: int) -> None:
        self._progress.env_step = int(value)

    @property
    def learn_info(self) -> dict[str, Any]:
        """State of the learner: ``learner_step``, ``priority_info`` and ``learner_done``."""
        info = {"learner_step": self.train_iter, "priority_info": self.priority_info}
        return {**info, "learner_done": self.learner_done}

    def crossed(self, every: int) -> bool:
        """Return whether the last iteration completed an update whose number is a multiple of ``every``."""
        return self.train_iter // every > (self.train_iter - self.updates) // every

    # ------------------------------------------------------------------ the course of a run

    def begin_iteration(self) -> None:
        """Reset the values of the last iteration; in a Trainer every hook calls this method."""
        self._in_iteration = True
        self._iter_before = self.train_iter
        self.priority_info = {}
        self.log_buffer = empty_log_buffer()

    def finish_iteration(self, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Take the reports of the iteration's updates; in a Trainer every hook calls this; the first counts."""
        if not self._in_iteration:
            return
        self._in_iteration = False
        if self._counts_itself:
            self.last_iter.add(len(outputs))
        self.updates = self.train_iter - self._iter_before
        self.log_buffer = sort_outputs(outputs)
        scalar = self.log_buffer["scalar"]
        for name in self.policy.monitor_vars():
            value = None if name in scalar else policy_of(self.policy).monitored(name)
            if value is not None:
                scalar[name] = to_scalar(name, value)

    def take_priority(self, data: Any, priority: Any) -> None:
        """Take the new priorities of a batch.

        Args:
            data: The batch: a nested dict with leading axis B, or a list of B transitions.
            priority: Shape (B,).

        Raises:
            ValueError: If there are not B of them.
        """
        values = priority if isinstance(priority, Tensor) else list(priority)
        size = len(data) if isinstance(data, Sequence) else length(data)
        if len(values) != size:
            raise ValueError(f"priority must have one entry for each of {size} transitions, got {len(values)}")
        if isinstance(data, Sequence):
            ids: dict[str, Any] = {name: [item.get(name) for item in data] for name in IDS}
            values = values.tolist() if isinstance(values, Tensor) else values
        else:
            ids = {name: data.get(name, [None] * size) for name in IDS}
        self.priority_info = {"priority": values, **ids}

    def report(self, values: Mapping[str, float]) -> None:
        """Write numbers, and the histograms of the last iteration, to the loggers, if this rank reports."""
        self.monitor = dict(values)
        if self._reports:
            self._log.write(values, self.train_iter, self.collector_envstep)
            self._log.write_histograms(self.log_buffer["histogram"], self.train_iter, self.collector_envstep)

    def save_checkpoint(self, ckpt_name: str | None = None) -> Path:
        """Write the policy's learning state and the counters; only the first rank writes.

        Args:
            ckpt_name: File name; None means the attribute ``ckpt_name``, or ``iteration_{updates}.pth.tar`` if that is
                None.

        Returns:
            The file, in ``{exp_name}/ckpt``, or ``{exp_name}/ckpt_{instance_name}`` if that is not the default.

        Raises:
            TypeError: If the policy's state holds anything but tensors and builtins.
        """
        name = ckpt_name or self.ckpt_name or f"iteration_{self.train_iter}.pth.tar"
        self.ckpt_name = None
        folder = "ckpt" if self.instance_name == DEFAULT_INSTANCE else f"ckpt_{self.instance_name}"
        file = self._folder / folder / name
        if self.rank == 0:
            counters = {key: getattr(self._progress, counter) for key, counter in COUNTERS.items()}
            write_checkpoint(file, {**self.policy.state_dict(), **counters})
            self.info(f"checkpoint {file}")
        return file

    def load_checkpoint(self, file: str | Path) -> None:
        """Restore the state that ``save_checkpoint`` wrote; counters that the file lacks keep their values."""
        state = read_checkpoint(file)
        counters = {counter: state.pop(key) for key, counter in COUNTERS.items() if key in state}
        self.policy.load_state_dict(state)
        for counter, value in counters.items():
            setattr(self._progress, counter, int(value))
        self.info(f"loaded {file}, train_iter {self.train_iter}")

    def info(self, text: str) -> None:
        """Write a line to Python's logging, with the rank."""
        self._text.info("[RANK%d] %s", self.rank, text)

    def debug(self, text: str) -> None:
        """Write a line for debugging to Python's logging, with the rank."""
        self._text.debug("[RANK%d] %s", self.rank, text)


class Counter:
    """One counter of a ``Progress``, which is read and set through ``val``.

    Example:
        >>> progress = Progress()
        >>> last_iter = Counter(progress, "train_iter")
        >>> last_iter.add(3)
        >>> progress.train_iter, last_iter.val
        (3, 3)
    """

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name

    @property
    def val(self) -> int:
        """The count."""
        return int(getattr(self._progress, self._name))

    def update(self, val: int) -> None:
        """Set the count."""
        setattr(self._progress, self._name, int(val))

    def add(self, add_num: int) -> None:
        """Add to the count."""
        self.update(self.val + int(add_num))


def write_checkpoint(file: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` under a temporary name and rename it.

    Args:
        file: Path of the file; its folder is made.
        state: Nested mappings, lists and tuples of tensors, numpy values and builtins.

    Raises:
        TypeError: If ``state`` contains a type that could not be read back safely. Then nothing is written.
    """
    plain = _plain(state, "the state")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        torch.save(plain, temporary)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(file: str | Path) -> dict[str, Any]:
    """Return the state that ``write_checkpoint`` wrote, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        TypeError: If the file does not hold a state.
    """
    state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise TypeError(f"{file} must hold a dict, the state of a learner, got {type(state).__name__}")
    return state


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(below, f"{path}[{key!r}]") for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_plain(below, f"{path}[{number}]") for number, below in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise TypeError(f"{path} must be a tensor or a builtin to be saved, got {type(value).__name__}")


def empty_log_buffer() -> LogBuffer:
    """Return the empty groups ``scalar``, ``scalars`` and ``histogram``."""
    return {"scalar": {}, "scalars": {}, "histogram": {}}


def sort_outputs(outputs: Sequence[Mapping[str, Any]]) -> LogBuffer:
    """Return the metrics that several updates report, in groups.

    The names ``[scalars]name`` and ``[histogram]name`` contain their group in brackets; other values are ``scalar``.
    The value of a name is the mean over the updates that report it; histograms are concatenated.

    Args:
        outputs: The report of each update: numbers, or numpy or torch values of any shape, which are averaged; mappings
            of these in ``[scalars]``.

    Returns:
        ``scalar``: floats, or tensors of shape () that stay on their device, so nothing waits for it; ``scalars``:
        mappings of these; ``histogram``: tensors of shape (values,).

    Raises:
        TypeError: If a value is not a number; the message names it.
    """
    values: dict[tuple[str, str], list[Any]] = {}
    for output in outputs:
        for key, value in output.items():
            group = next((one for one in ("scalars", "histogram") if f"[{one}]" in key), "scalar")
            name = key if group == "scalar" else key.rpartition("]")[2]
            values.setdefault((group, name), []).append(value)
    buffer = empty_log_buffer()
    for (group, name), reported in values.items():
        buffer[group][name] = _JOIN[group](name, reported)
    return buffer


def to_scalar(name: str, value: Any) -> Scalar:
    """Return a value as a scalar. Arrays and tensors are averaged; a tensor stays a tensor, of shape ().

    Raises:
        TypeError: If ``value`` is not a number.
    """
    if isinstance(value, Tensor) and not value.is_complex() and value.numel():
        return value.detach().float().mean()
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, (np.generic, np.ndarray, list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf" and array.size:
            return float(array.mean())
    raise TypeError(
        f"{name!r} must be a number, or an array of them, to be reported, got {type(value).__name__}: {value!r}"
    )


def _mean(name: str, values: Sequence[Any]) -> Scalar:
    total = to_scalar(name, values[0])
    for value in values[1:]:
        total = total + to_scalar(name, value)
    return total / len(values)


def _mean_of_each(name: str, values: Sequence[Any]) -> dict[str, Scalar]:
    for value in values:
        if not isinstance(value, Mapping):
            raise TypeError(f"'[scalars]{name}' must be a mapping of numbers, got {type(value).__name__}")
    below = dict.fromkeys(key for value in values for key in value)
    return {key: _mean(f"{name}/{key}", [value[key] for value in values if key in value]) for key in below}


def _join(name: str, values: Sequence[Any]) -> Tensor:
    try:
        return torch.cat([torch.as_tensor(value).detach().reshape(-1).float().cpu() for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"'[histogram]{name}' must be numbers, got {values!r}") from error


_JOIN = {"scalar": _mean, "scalars": _mean_of_each, "histogram": _join}
