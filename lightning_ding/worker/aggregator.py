"""Several learners that act as one, in a process or over the ranks of torch.distributed.

Shapes: B transitions of a batch.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import ConfigLike, moved, require, resolve
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.ranks import gather_bytes, world_size
from lightning_ding.worker.learner import BaseLearner

LENGTH_BYTES = 8
FROM_FIRST = ("learner_step", "buffer_id", "task_id", "learner_done")


@dataclass(frozen=True)
class AggregatorConfig:
    """Keys of a learner aggregator."""

    MOVED: ClassVar[dict[str, str]] = moved(
        slave="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
        master="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
        learner="no learner listens: pass objects of this process as learners, or use system.learner.multi_gpu",
    )

    timeout_seconds: float = 600.0
    """Longest wait for the other ranks in seconds, > 0; after it an error."""

    def __post_init__(self) -> None:
        require(self.timeout_seconds > 0, "timeout_seconds", "> 0", self.timeout_seconds)


class LearnerAggregator:
    """Distributes a batch among learners and merges their reports.

    Each learner keeps its own weights, unless the policies average their gradients over ranks. Under torch.distributed
    every rank has an aggregator with its own learners and batches. The merged report is the same on all ranks, and a
    learner that fails on one rank raises an error on all ranks.

    Args:
        cfg: An ``AggregatorConfig``, or a mapping to merge over its defaults.
        learners: The learners of this process by name, or a list of them with different ``instance_name``; at least
            one.

    Raises:
        ValueError: If there is no learner, or two have the same name.
    """

    def __init__(
        self,
        cfg: ConfigLike[AggregatorConfig] = None,
        learners: Mapping[str, BaseLearner] | Sequence[BaseLearner] = (),
    ) -> None:
        self.config: AggregatorConfig = resolve(AggregatorConfig, cfg)
        named = list(learners.items()) if isinstance(learners, Mapping) else [(x.instance_name, x) for x in learners]
        self.learners = dict(named)
        require(len(named) >= 1, "learners", "at least one learner", learners)
        names = [name for name, _ in named]
        require(len(self.learners) == len(named), "learners", "of different instance_name", names)
        self._is_started = False
        self._about: dict[str, Any] = {}
        self._group: Any = None
        if world_size() > 1:
            timeout = datetime.timedelta(seconds=self.config.timeout_seconds)
            self._group = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def is_started(self) -> bool:
        """Whether :meth:`start` was called and :meth:`close` was not."""
        return self._is_started

    def start(self) -> None:
        """Call the hooks of ``before_run`` of all learners; do nothing if they have been called already.

        The learners are objects of this process, so there is nothing to connect to.

        Raises:
            RuntimeError: If a learner fails; the message names it, and its error is the cause.
        """
        if self._is_started:
            return
        for name, learner in self.learners.items():
            with naming(name):
                learner.call_hook("before_run")
        self._is_started = True

    # ------------------------------------------------------------------ tasks, as a coordinator sends them

    def deal_with_get_resource(self) -> dict[str, int]:
        """Return the number of learners of this process as ``gpu``."""
        return {"gpu": len(self.learners)}

    def deal_with_learner_start(self, task: Mapping[str, Any]) -> dict[str, str]:
        """Start the learners, which have their policies already; see :meth:`start`.

        Args:
            task: A task with ``task_info``, whose ``buffer_id`` and ``task_id`` are added to the answers.
        """
        self._about = {name: task.get("task_info", {}).get(name) for name in ("buffer_id", "task_id")}
        self.start()
        return {"message": "learner task has started"}

    def deal_with_get_data(self, task: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return :meth:`get_data_demand` with the ids of the task."""
        return {**self._about, **self.get_data_demand()}

    def deal_with_learn(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Train the learners on ``data`` of the task, and return the merged ``info`` with the ids of the task.

        Raises:
            ValueError: If the size of the batch does not match.
            RuntimeError: If a learner fails; the message names it.
        """
        return {**self._about, "info": self.train(task["data"])}

    # ------------------------------------------------------------------ learning

    def get_data_demand(self) -> dict[str, int]:
        """Return ``batch_size``, the sum over the learners of this process, and ``cur_learner_iter``."""
        first = next(iter(self.learners.values()))
        return {"batch_size": sum(self._batch_sizes()), "cur_learner_iter": first.train_iter}

    def train(self, data: Any, envstep: int = -1) -> dict[str, Any]:
        """Train each learner on its share of a batch; every rank has to call it.

        Args:
            data: A nested dict with leading axis B, or a list of B transitions; B is the ``batch_size`` of
                :meth:`get_data_demand`.
            envstep: See :meth:`BaseLearner.train`.

        Returns:
            The merged ``learn_info`` of all learners of all ranks; see :func:`merge_info`.

        Raises:
            ValueError: If the size of the batch does not match.
            RuntimeError: If a learner fails; the message names it, and on its rank its error is the cause.
        """
        infos = self._train(data, envstep) if self._group is None else self._train_on_all_ranks(data, envstep)
        return cast("dict[str, Any]", merge_info(infos))

    def _train_on_all_ranks(self, data: Any, envstep: int) -> list[dict[str, Any]]:
        """Return the infos of all ranks, or raise on all of them if a learner fails on one."""
        failure: Exception | None = None
        try:
            record = encode({"infos": self._train(data, envstep)})
        except Exception as error:
            failure, record = error, encode({"failed": f"rank {dist.get_rank()}: {error}"})
        records = [decode(part) for part in gather_bytes(record, self._group)]
        if failure is not None:
            raise failure
        failed = [one["failed"] for one in records if "failed" in one]
        if failed:
            raise RuntimeError(f"learners failed on other ranks: {'; '.join(failed)}")
        return [info for one in records for info in one["infos"]]

    def close(self) -> dict[str, bool]:
        """Call the hooks of ``after_run`` if the learners were started, and close all learners, even if one fails.

        Returns:
            True for each name.

        Raises:
            RuntimeError: If a learner could not be closed; the message names all such learners.
        """
        failed: dict[str, Exception] = {}
        for name, learner in self.learners.items():
            try:
                if self._is_started:
                    learner.call_hook("after_run")
                learner.close()
            except Exception as error:
                failed[name] = error
        self._is_started = False
        if failed:
            said = "; ".join(f"{name!r}: {error}" for name, error in failed.items())
            raise RuntimeError(f"some learners could not be closed: {said}") from next(iter(failed.values()))
        return dict.fromkeys(self.learners, True)

    @staticmethod
    def merge_info(infos: Sequence[Any]) -> Any:
        """Return several infos as one; see :func:`merge_info`."""
        return merge_info(infos)

    def _batch_sizes(self) -> list[int]:
        return [int(policy_of(learner.policy).batch_size) for learner in self.learners.values()]

    def _train(self, data: Any, envstep: int) -> list[dict[str, Any]]:
        sizes = self._batch_sizes()
        total = len(data) if isinstance(data, Sequence) else nested.length(data)
        require(total == sum(sizes), "data", f"{sum(sizes)} transitions, {sizes} for {list(self.learners)}", total)
        infos, start = [], 0
        for (name, learner), size in zip(self.learners.items(), sizes, strict=True):
            share = slice(start, start + size)
            start += size
            with naming(name):
                learner.train(data[share] if isinstance(data, Sequence) else nested.index(data, share), envstep)
            infos.append(learner.learn_info)
        return infos


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the learner in the error of a block.

    Raises:
        RuntimeError: For any error of the block, which is the cause.
    """
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"learner {name!r} failed: {type(error).__name__}: {error}") from error


def merge_info(infos: Sequence[Any]) -> Any:
    """Return several infos as one.

    The keys of mappings are merged separately, except ``learner_step``, ``buffer_id``, ``task_id`` and
    ``learner_done``, which are taken from the first; empty mappings are skipped. Lists are joined. Numbers, strings,
    bools and None become a list. Tensors are joined along their first axis; those of shape () are stacked.

    Args:
        infos: Infos of the same structure, at least one.

    Raises:
        ValueError: If ``infos`` is empty, or mappings differ in their keys, or tensors in their shapes.
        TypeError: If there are values of other types, or of types that cannot be merged; the message names the place.

    Example:
        >>> merge_info([{"learner_step": 3, "loss": 0.5, "ids": [1]}, {"learner_step": 4, "loss": 0.7, "ids": [2, 3]}])
        {'learner_step': 3, 'loss': [0.5, 0.7], 'ids': [1, 2, 3]}
    """
    require(len(infos) >= 1, "infos", "at least one", infos)
    return _merge(list(infos), "info")


def _merge(values: list[Any], path: str) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return _merge_mappings(values, path)
    if all(isinstance(value, (list, tuple)) for value in values):
        return [item for value in values for item in value]
    if all(isinstance(value, Tensor) for value in values):
        return _merge_tensors(values, path)
    if all(value is None or isinstance(value, (bool, int, float, str)) for value in values):
        return values
    types = ", ".join(sorted({type(value).__name__ for value in values}))
    raise TypeError(f"{path} must be mappings, lists, tensors, or numbers, strings and None, got {types}")


def _merge_mappings(values: list[Mapping[str, Any]], path: str) -> dict[str, Any]:
    values = [value for value in values if value] or values
    first = values[0]
    for value in values[1:]:
        require(value.keys() == first.keys(), path, f"mappings with the keys {list(first)}, as the first", list(value))
    return {
        key: first[key] if key in FROM_FIRST else _merge([value[key] for value in values], f"{path}[{key!r}]")
        for key in first
    }


def _merge_tensors(values: list[Tensor], path: str) -> Tensor:
    try:
        return torch.stack(values) if values[0].ndim == 0 else torch.cat(values)
    except RuntimeError as error:
        shapes = [tuple(value.shape) for value in values]
        raise ValueError(f"{path} must be tensors that can be joined, got the shapes {shapes}") from error


def encode(data: Any) -> bytes:
    """Return nested dicts and lists of tensors and builtins as bytes: JSON and safetensors instead of pickle.

    Tuples come back as lists.

    Raises:
        TypeError: If there is a value of an unsupported type; the message names its place.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_to_json(data, tensors, "data")).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + safetensors.torch.save(tensors)


def decode(data: bytes) -> Any:
    """Return the data that ``encode`` was given."""
    end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    return _from_json(json.loads(data[LENGTH_BYTES:end]), safetensors.torch.load(data[end:]))


def _to_json(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return a pair of kind and content, so that no data can be mistaken for another kind."""
    if isinstance(value, dict):
        return ["dict", [[key, _to_json(below, tensors, f"{path}[{key!r}]")] for key, below in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["list", [_to_json(below, tensors, f"{path}[{i}]") for i, below in enumerate(value)]]
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["builtin", value]
    raise TypeError(f"{path} must be a tensor or a builtin to go to other ranks, got {type(value).__name__}")


def _from_json(pair: Any, tensors: dict[str, Tensor]) -> Any:
    kind, value = pair
    if kind == "dict":
        return {key: _from_json(below, tensors) for key, below in value}
    if kind == "list":
        return [_from_json(below, tensors) for below in value]
    return tensors[value] if kind == "tensor" else value
