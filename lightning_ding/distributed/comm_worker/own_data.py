"""Batches and reports in DI-engine's form, for comm learners whose class brings its own way of the data.

Shapes: B transitions of a minibatch, U minibatches of a round, n steps of a return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.callbacks.remote import LearningReporter
from lightning_ding.datamodules.remote_feed import RemoteData

GetData = Callable[[int], "Sequence[Any] | Mapping[str, Any] | None"]


class BatchSource:
    """A source of rounds that calls a function of the batch size once for each minibatch.

    Args:
        get_data: Returns a batch: a list of B transitions, or of functions that load one, or a dict of columns; None
            or an empty list ends the run.
        progress: Returns ``env_step``, ``episode`` and ``sample`` of all collectors, if they are known.
    """

    def __init__(self, get_data: GetData, progress: Callable[[], Mapping[str, int]] = dict) -> None:
        self._get_data = get_data
        self._progress = progress

    def get_data(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int
    ) -> RemoteData:
        """Return a round; see :meth:`lightning_ding.datamodules.remote.DataSource.get_data`.

        Raises:
            ValueError: If a batch does not have ``batch_size`` transitions.
        """
        batches = []
        for _ in range(num_batches):
            batch = self._get_data(batch_size)
            if batch is None or len(batch) == 0:
                return RemoteData(stop=True, progress=self._progress())
            batches.append(as_columns(batch, options.get("discount_factor", 1.0)))
            size = nested.length(batches[-1])
            if size != batch_size:
                raise ValueError(f"get_data must return {batch_size} transitions, got {size}")
        return RemoteData(data=cast("dict[str, Any]", nested.stack(batches)), progress=self._progress())


class InfoForm(LearningReporter):
    """Passes reports to a function in DI-engine's form, and one more with ``learner_done`` at the end of the run.

    ``priority_info`` has a list for each of ``priority``, ``replay_unique_id`` and ``replay_buffer_idx``; it is empty
    without priorities. See the base class for the arguments.
    """

    def __init__(self, send_learn_info: Callable[[Mapping[str, Any]], None], every_n_rounds: int = 1) -> None:
        super().__init__(lambda info: send_learn_info({**info, "priority_info": _lists(info["priority_info"])}))
        self.every_n_rounds = every_n_rounds

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Report the end of the run."""
        if trainer.is_global_zero:
            done = {"learner_step": pl_module.progress.train_iter, "learner_done": True, "priority_info": None}
            self.send_learn_info(done)


def as_columns(batch: Sequence[Any] | Mapping[str, Any], discount_factor: float = 1.0) -> dict[str, Any]:
    """Return a batch as columns, leading axis B, in the form that policies learn from.

    Args:
        batch: Columns; or transitions, or functions that load one. A transition may have DI-engine's ``done`` in place
            of ``terminated``, and a ``reward`` of n steps, which are summed; texts and None are left out.
        discount_factor: gamma of the sum, in [0, 1].

    Raises:
        TypeError: If a transition is not a mapping.
    """
    if isinstance(batch, Mapping):
        return _converted(cast("dict[str, Any]", nested.to_tensor(dict(batch))), discount_factor, batch_axes=1)
    samples = [sample() if callable(sample) else sample for sample in batch]
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise TypeError(f"get_data must return transitions as mappings, got {type(sample).__name__}: {sample!r}")
    rows = [_converted(_numbers(sample), discount_factor, batch_axes=0) for sample in samples]
    return cast("dict[str, Any]", nested.stack(rows))


def optional_attribute(mode: Any, name: str) -> Any:
    """Return an attribute of a mode's policy; None if the policy does not have it."""
    try:
        return mode.get_attribute(name)
    except NotImplementedError:
        return None


def _numbers(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a transition that a policy may learn from, as tensors."""
    kept = {name: value for name, value in sample.items() if not (value is None or isinstance(value, (str, bytes)))}
    return cast("dict[str, Any]", nested.to_tensor(kept))


def _converted(sample: dict[str, Any], gamma: float, batch_axes: int) -> dict[str, Any]:
    """Return transitions with ``terminated`` in place of ``done``, and rewards of n steps summed."""
    done = sample.pop("done", None)
    if done is not None and "terminated" not in sample:
        sample["terminated"] = done.bool().squeeze(-1) if done.ndim > batch_axes else done.bool()
    gamma_n = sample.pop("value_gamma", None)
    if sample["reward"].ndim > batch_axes:
        steps = sample["reward"].shape[-1]
        powers = gamma ** torch.arange(steps, dtype=torch.float32)
        sample["reward"] = (sample["reward"] * powers).sum(-1)
        if steps > 1 and "discount" not in sample:
            shape = sample["reward"].shape
            sample["discount"] = torch.full(shape, gamma**steps) if gamma_n is None else gamma_n.reshape(shape)
    return sample


def _lists(priorities: Mapping[str, Tensor] | None) -> dict[str, list[Any]]:
    return {} if priorities is None else {name: column.tolist() for name, column in priorities.items()}
