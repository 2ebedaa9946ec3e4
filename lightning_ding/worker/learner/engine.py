"""What the hooks of a learner see: the policy, how far the run is, and what the last iteration reported.

Shapes: B transitions of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_ding.nested import length
from lightning_ding.policy.modes import LearnMode
from lightning_ding.progress import Progress
from lightning_ding.worker.learner.checkpoint import read_checkpoint, write_checkpoint
from lightning_ding.worker.learner.counter import Counter
from lightning_ding.worker.learner.log_buffer import LogBuffer, empty_log_buffer, sort_outputs, to_scalar
from lightning_ding.worker.log import DEFAULT_EXPERIMENT, WorkerLog

COUNTERS = {"last_iter": "train_iter", "last_step": "env_step", "last_episode": "episode", "last_sample": "sample"}
DEFAULT_INSTANCE = "learner"
IDS = ("replay_buffer_idx", "replay_unique_id")


class LearnerEngine:
    """A policy that is being trained, as its hooks see it: by hand, or in a Trainer, of which it is a face.

    An *iteration* is one call of ``train``, or a round of a Trainer; it makes one update, or several.

    Args:
        policy: A policy, or its learn mode.
        tb_logger: See :class:`~lightning_ding.worker.log.WorkerLog`.
        dist_info: Rank and number of ranks; None asks torch.distributed.
        exp_name: Experiment; also the folder of the checkpoints, unless ``folder`` is given.
        instance_name: Tells several learners apart.
        folder: Where ``ckpt`` lies, or ``ckpt_{instance_name}`` if the name is not the default.
        log_policy: Describe a policy in Python's logging when it is set.
        only_monitor_rank0: Report on the first rank only.

    Raises:
        TypeError: If ``policy`` has no learn mode and is none.
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
        self.rank, self.world_size = dist_info or _rank_and_world_size()
        self.exp_name = exp_name
        self.instance_name = instance_name
        self.ckpt_name: str | None = None
        """File name of the next checkpoint; None for ``iteration_{updates}.pth.tar``."""
        self.monitor: dict[str, float] = {}
        """What was reported last: means over an interval."""
        self.updates = 0
        """Updates that the last iteration made."""
        self._folder = folder or Path(exp_name)
        self._log_policy = log_policy
        self._reports = self.rank == 0 or not only_monitor_rank0
        self._log = WorkerLog(tb_logger, exp_name, instance_name, every_rank=not only_monitor_rank0)
        self._text = logging.getLogger(f"lightning_ding.{exp_name}.{instance_name}")
        self._policy: LearnMode | None = None
        self._module: Any = None
        self._progress = Progress()
        self._counts_itself = True
        self._priority_info: dict[str, Any] = {}
        self._log_buffer = empty_log_buffer()
        self._iter_before = 0
        self._in_iteration = False
        self._learner_done = False
        if policy is not None:
            self.policy = policy

    @classmethod
    def of(cls, trainer: Trainer) -> LearnerEngine:
        """Return the face of a Trainer, the same for all its hooks; every rank has to call it.

        Raises:
            TypeError: If what the Trainer trains is no policy.
        """
        found: LearnerEngine | None = getattr(trainer, "learner", None)
        if found is not None and found._module is trainer.lightning_module:
            return found
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        engine = cls(
            trainer.lightning_module,
            trainer.logger,
            (trainer.global_rank, trainer.world_size),
            folder=folder,
            log_policy=False,
        )
        engine.attach(trainer, trainer.lightning_module)
        return engine

    def attach(self, trainer: Trainer, module: LightningModule) -> None:
        """Become the face of a Trainer that trains this module."""
        self._module = module
        trainer.learner = self  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ what hooks read

    @property
    def policy(self) -> LearnMode:
        """The policy's learn mode.

        Raises:
            RuntimeError: If there is none yet.
        """
        if self._policy is None:
            raise RuntimeError("the learner needs a policy: pass it to the constructor, or set learner.policy")
        return self._policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        mode = getattr(policy, "learn_mode", policy)
        if not hasattr(mode, "forward") or not hasattr(mode, "monitor_vars"):
            raise TypeError(f"policy must be a policy or its learn mode, got {type(policy).__name__}")
        self._policy = mode
        found = self._attribute("progress")
        self._counts_itself = found is None
        self._progress = found or Progress()
        if self._log_policy:
            self.info(mode.info())

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
    def priority_info(self) -> dict[str, Any]:
        """What a buffer's ``update`` takes for the last batch; empty if its update gave no priorities."""
        return self._priority_info

    @property
    def learn_info(self) -> dict[str, Any]:
        """How far the learner is: ``learner_step``, ``priority_info`` and ``learner_done``."""
        info = {"learner_step": self.train_iter, "priority_info": self.priority_info}
        return {**info, "learner_done": self._learner_done}

    @property
    def log_buffer(self) -> LogBuffer:
        """What the last iteration reported: ``scalar``, ``scalars`` and ``histogram``."""
        return self._log_buffer

    def crossed(self, every: int) -> bool:
        """Return whether the last iteration completed an update whose number is a multiple of ``every``."""
        return self.train_iter // every > (self.train_iter - self.updates) // every

    # ------------------------------------------------------------------ what happens

    def begin_run(self) -> None:
        """Note that a run begins."""
        self._learner_done = False

    def end_run(self) -> None:
        """Note that a run is over."""
        self._learner_done = True

    def begin_iteration(self) -> None:
        """Forget the last iteration; in a Trainer each hook calls it."""
        self._in_iteration = True
        self._iter_before = self.train_iter
        self._priority_info = {}
        self._log_buffer = empty_log_buffer()

    def finish_iteration(self, outputs: Sequence[Mapping[str, Any]]) -> None:
        """Take the reports of the iteration's updates, once; in a Trainer each hook calls it."""
        if not self._in_iteration:
            return
        self._in_iteration = False
        if self._counts_itself:
            self.last_iter.add(len(outputs))
        self.updates = self.train_iter - self._iter_before
        self._log_buffer = sort_outputs(outputs)
        scalar = self._log_buffer["scalar"]
        for name in self.policy.monitor_vars():
            value = None if name in scalar else self._attribute(name)
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
        self._priority_info = {"priority": values, **ids}

    def report(self, values: Mapping[str, float]) -> None:
        """Write numbers, and the histograms of the last iteration, to the loggers, if this rank reports."""
        self.monitor = dict(values)
        if self._reports:
            self._log.write(values, self.train_iter, self.collector_envstep)
            self._log.write_histograms(self._log_buffer["histogram"], self.train_iter, self.collector_envstep)

    def save_checkpoint(self, ckpt_name: str | None = None) -> Path:
        """Write the policy's learning state and the counters; only the first rank writes.

        Args:
            ckpt_name: File name; None takes the ``ckpt_name`` that was set, and else ``iteration_{updates}.pth.tar``.

        Returns:
            The file, in ``{exp_name}/ckpt``, or ``{exp_name}/ckpt_{instance_name}`` if that is not the default.

        Raises:
            TypeError: If the policy's state holds something else than tensors and builtins.
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
        """Take the state that ``save_checkpoint`` wrote; counters that the file lacks stay as they are."""
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

    def _attribute(self, name: str) -> Any:
        try:
            return self.policy.get_attribute(name)
        except NotImplementedError:  # what a policy raises for an attribute that it does not have
            return None


def _rank_and_world_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
