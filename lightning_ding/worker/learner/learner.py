"""The learner: a policy that is trained batch by batch, or in a Trainer, with hooks around it.

Shapes: B transitions of a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import ConfigLike, require
from lightning_ding.registry import LEARNER_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker.arguments import check_integers, check_policy_kwargs
from lightning_ding.worker.base import Worker, get_class
from lightning_ding.worker.learner.config import LearnerConfig
from lightning_ding.worker.learner.engine import DEFAULT_INSTANCE, LearnerEngine
from lightning_ding.worker.learner.hooks import (
    POSITIONS,
    Hooks,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
)
from lightning_ding.worker.learner.priority import sort_callbacks
from lightning_ding.worker.log import DEFAULT_EXPERIMENT

NextBatch = Callable[[], Any]
TakePriority = Callable[[Any, Tensor], None]
TRAINER_FLAGS: dict[str, Any] = {
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
}


@LEARNER_REGISTRY.register("base")
class BaseLearner(LearnerEngine, Worker):
    """Trains a policy: one batch with ``train``, or a whole run in a Trainer with ``start``. Both call hooks.

    Args:
        cfg: A ``LearnerConfig``, or a mapping to merge over its defaults.
        policy: A policy, or its learn mode.
        tb_logger: See :class:`~lightning_ding.worker.log.WorkerLog`.
        dist_info: Rank and number of ranks; None means those of ``torch.distributed``.
        exp_name: Name of the experiment, and folder of the checkpoints.
        instance_name: Name that distinguishes several learners.

    Example:
        >>> learner = BaseLearner({"hook": {"log_show_after_iter": 10}})
        >>> [hook.name for hook in learner.hooks["after_iter"]]
        ['log_show', 'save_ckpt_after_iter']
    """

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    registry = LEARNER_REGISTRY
    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"train_iterations", "dataloader", "log_policy", "only_monitor_rank0", "hook"}
    )

    def __init__(
        self,
        cfg: ConfigLike[LearnerConfig] = None,
        policy: Any = None,
        tb_logger: Any = None,
        dist_info: tuple[int, int] | None = None,
        exp_name: str = DEFAULT_EXPERIMENT,
        instance_name: str = DEFAULT_INSTANCE,
    ) -> None:
        self.config: LearnerConfig = self.resolve_config(cfg)
        log_policy, rank0 = self.config.log_policy, self.config.only_monitor_rank0
        LearnerEngine.__init__(
            self, policy, tb_logger, dist_info, exp_name, instance_name, log_policy=log_policy, only_monitor_rank0=rank0
        )
        section = self.config.hook
        if section.log_reduce_after_iter is None:
            section = dataclasses.replace(section, log_reduce_after_iter=self.world_size > 1)
        self.hooks: Hooks = build_learner_hook_by_cfg(section)
        self.get_data: Any = None
        """Source of the batches for ``start``: a function of the batch size, or an iterable."""
        self._stream: LearnerStream | None = None
        self._run: range | None = None
        self._is_closed = False

    # ------------------------------------------------------------------ by hand

    def train(
        self, data: Any, envstep: int = -1, policy_kwargs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Call the policy's learn mode once, with the hooks of an iteration around it.

        Args:
            data: A nested dict with leading axis B, or a list of B transitions.
            envstep: Environment steps so far; a negative number leaves the counter unchanged.
            policy_kwargs: Further arguments of the learn mode's ``forward``.

        Returns:
            The report of each update, without ``priority``; that of the last update is in ``priority_info``.

        Raises:
            RuntimeError: If there is no policy.
            TypeError: If an argument is of the wrong type, the policy returns neither a dict nor a list of dicts, or it
                reports anything but numbers.
            ValueError: If the policy does not return B priorities.
        """
        check_integers(envstep=envstep)
        check_policy_kwargs(policy_kwargs)
        policy = self.policy
        if envstep >= 0:
            self.collector_envstep = envstep
        self.begin_iteration()
        self.call_hook("before_iter")
        device = policy_of(policy).device or torch.device("cpu")
        outputs = _list_of_dicts(policy.forward(on_device(data, device), **(policy_kwargs or {})))
        priorities = [output.pop("priority", None) for output in outputs]
        if priorities and priorities[-1] is not None:
            self.take_priority(data, priorities[-1])
        self.finish_iteration(outputs)
        self.call_hook("after_iter")
        return outputs

    def register_hook(self, hook: LearnerHook) -> None:
        """Add a hook, after those of equal priority.

        Raises:
            TypeError: If ``hook`` is not a ``LearnerHook``.
        """
        add_learner_hook(self.hooks, hook)

    def call_hook(self, position: str) -> None:
        """Call the hooks of a position, by priority.

        Raises:
            ValueError: If there is no such position.
        """
        require(position in POSITIONS, "position", f"one of {', '.join(POSITIONS)}", position)
        if position in ("before_run", "after_run"):
            self.learner_done = position == "after_run"
        for hook in self.hooks[position]:
            hook(self)

    # ------------------------------------------------------------------ in a Trainer

    def setup_dataloader(self, get_data: Any = None) -> LearnerStream:
        """Return the batches of a run, as rounds for a Trainer.

        Args:
            get_data: A function of the batch size, or an iterable; None means the attribute ``get_data``.

        Raises:
            RuntimeError: If both are None.
            TypeError: If ``get_data`` is neither a function nor an iterable.
        """
        self.get_data = self.get_data if get_data is None else get_data
        if self.get_data is None:
            raise RuntimeError("the learner needs batches: set learner.get_data, or pass get_data")
        next_batch = next_batch_of(self.get_data, lambda: policy_of(self.policy).batch_size)
        self._stream = LearnerStream(next_batch, self._is_over, self.config.train_iterations, self.take_priority)
        return self._stream

    def start(self, **trainer_flags: Any) -> None:
        """Run the policy in a Trainer for ``train_iterations`` updates; the hooks are its callbacks.

        Args:
            trainer_flags: Flags of the Trainer, such as ``accelerator``, ``strategy`` and ``devices``. The
                ``callbacks`` are sorted among the hooks by their priority.

        Raises:
            RuntimeError: If the learner is closed, the policy is not a LightningModule, or there is no batch.
            ValueError: If ``max_epochs`` is given, which ``train_iterations`` decides.
            Exception: Any error of the run, after trying to write ``ckpt_exception.pth.tar``.
        """
        if self._is_closed:
            raise RuntimeError("the learner is closed: create a new one to continue training")
        module = policy_of(self.policy).module
        if not isinstance(module, LightningModule):
            raise RuntimeError(f"start() needs a policy that is a LightningModule, got {type(module).__name__}")
        require(
            "max_epochs" not in trainer_flags,
            "max_epochs",
            "left out, because train_iterations limits the run",
            trainer_flags,
        )
        stream = self._stream or self.setup_dataloader()
        trainer = self._make_trainer(**trainer_flags)
        self.module = module
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, LearnerHook):
                callback.engine = self
        self._run = None
        try:
            trainer.fit(module, stream, val_dataloaders=[])
        except Exception as error:
            self._save_after(error)
            raise
        if not self._is_closed and (self._run is None or self.train_iter == self._run.start):
            raise RuntimeError("get_data gave no batch, so nothing was learned")

    def close(self) -> None:
        """End a running ``start`` before its next batch, and prevent further starts; may be called repeatedly."""
        self._is_closed = True
        self.close_writer()

    def _make_trainer(self, **flags: Any) -> Trainer:
        given = flags.pop("callbacks", None) or []
        callbacks: list[Callback] = [_Bookkeeping("bookkeeping", priority=0)]
        callbacks += [given] if isinstance(given, Callback) else given
        for hooks in self.hooks.values():
            callbacks += hooks
        root = {"default_root_dir": self.exp_name, "max_epochs": 1}
        trainer = Trainer(**{**TRAINER_FLAGS, **root, **flags, "callbacks": callbacks})
        trainer.callbacks = sort_callbacks(trainer.callbacks)  # type: ignore[attr-defined]
        return trainer

    def _is_over(self) -> bool:
        if self._run is None:  # called for the first batch, so after the hook that loads a checkpoint
            self._run = range(self.train_iter, self.train_iter + self.config.train_iterations)
        return self._is_closed or self.train_iter >= self._run.stop

    def _save_after(self, error: Exception) -> None:
        """Save the state after an error of the run, which matters more than a second one while saving."""
        try:
            self.save_checkpoint("ckpt_exception.pth.tar")
        except Exception as second:
            self._text.warning("no checkpoint could be written after %r: %r", error, second)


class _Bookkeeping(LearnerHook):
    """Shows the learner the iterations of its Trainer even if there is no other hook."""

    def __call__(self, engine: LearnerEngine) -> None:
        """Do nothing; the callback's methods do the work."""


def _list_of_dicts(output: Any) -> list[dict[str, Any]]:
    """Return copies of the reports of the updates."""
    outputs = [output] if isinstance(output, Mapping) else output
    if not isinstance(outputs, Sequence) or not all(isinstance(one, Mapping) for one in outputs):
        raise TypeError(f"the learn mode's forward must return a dict or a list of dicts, got {output!r}")
    return [dict(one) for one in outputs]


def on_device(data: Any, device: torch.device | str) -> Any:
    """Return a batch on a device, as nested tensors with leading axis B; on the CPU a list stays a list."""
    if torch.device(device).type == "cpu":
        return nested.apply(_as_tensor, data) if isinstance(data, dict) else data
    stacked = data if isinstance(data, Mapping) else nested.stack(data)
    return nested.to(nested.to_tensor(stacked), device)


def _as_tensor(leaf: Any) -> Any:
    return nested.to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf


class LearnerRound:
    """A round of one minibatch, whose priorities go to the learner.

    Args:
        batch: A nested dict with leading axis B, or a list of B transitions.
        take_priority: Function called with the batch and its priorities.
    """

    drawn: None = None
    """All minibatches together; None, because there is only one."""

    def __init__(self, batch: Any, take_priority: TakePriority) -> None:
        self._given = batch
        self._batch = batch
        self._take_priority = take_priority

    def __iter__(self) -> Iterator[Any]:
        """Yield the minibatch."""
        yield self._batch

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Do nothing, because one minibatch has nothing to prepare together."""

    def update_priority(self, batch: Any, priority: Tensor) -> None:
        """Hand the priorities, shape (B,), to the learner."""
        self._take_priority(self._given, priority)

    def to(self, device: torch.device, non_blocking: bool = False) -> LearnerRound:
        """Move the minibatch to a device (called by Lightning)."""
        self._batch = on_device(self._given, device)
        return self


@dataclasses.dataclass(eq=False)
class LearnerStream:
    """Yields rounds until there were enough updates, the batches end, or the learner is closed.

    It has a length, so that Lightning does not fetch a batch before the update on the previous one is finished. Making
    an iterator has no effect, so it may be done any number of times.
    """

    next_batch: NextBatch
    """Returns a batch, and raises ``StopIteration`` when there are no more."""
    is_over: Callable[[], bool]
    """Returns whether there were enough updates."""
    length: int
    """Maximum number of rounds, >= 1."""
    take_priority: TakePriority
    """See :class:`LearnerRound`."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[LearnerRound]:
        while not self.is_over():
            try:
                batch = self.next_batch()
            except StopIteration:
                return
            yield LearnerRound(batch, self.take_priority)


def next_batch_of(source: Any, batch_size: Callable[[], int]) -> NextBatch:
    """Return a function that returns the next batch of a source.

    Args:
        source: Function of the batch size, or an iterable. A batch may be a list of functions that load a transition
            each; a function returns None or an empty list after the last batch.
        batch_size: Function that returns the batch size, called before each batch.

    Raises:
        TypeError: If ``source`` is neither callable nor iterable.
    """
    if callable(source):
        return lambda: _loaded(source(batch_size()))
    try:
        iterator = iter(source)
    except TypeError as error:
        raise TypeError(
            f"get_data must be a function of the batch size, or an iterable, got {type(source).__name__}"
        ) from error
    return lambda: next(iterator)


def _loaded(batch: Any) -> Any:
    """Return a batch whose transitions are loaded, if it is a list of functions that load one.

    Raises:
        StopIteration: If there is no batch.
    """
    if batch is None or (isinstance(batch, list) and not batch):
        raise StopIteration
    if isinstance(batch, list):
        return [one() if callable(one) else one for one in batch]
    return batch


def create_learner(cfg: Any, **kwargs: Any) -> BaseLearner:
    """Return the learner that ``cfg.type`` names, ``base`` if it names none, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is not registered.
    """
    learner: BaseLearner = get_class(LEARNER_REGISTRY, cfg, "base")(cfg, **kwargs)
    return learner
