"""Evaluating on a data set, as in supervised learning, and the metrics that this takes.

Shapes: B examples of a batch.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, RandomSampler
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.registry import SERIAL_EVALUATOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.ranks import rank_and_world_size, sum_over_ranks
from lightning_ding.worker.evaluator.base import ISerialEvaluator, SaveFunction
from lightning_ding.worker.evaluator.config import METRIC_KEYS

Values = dict[str, float]


@SERIAL_EVALUATOR_REGISTRY.register("metric")
class MetricSerialEvaluator(ISerialEvaluator):
    """Measures the outputs of a policy for a data set.

    An :class:`IMetric` gets the output of the policy's ``forward``, and its values are averaged with the sizes of the
    batches as weights. A metric of torchmetrics gets the ``logit`` of the output, or the ``action`` if there is none,
    and computes its own average. The first value of a torchmetrics collection decides which of two is better.

    The results of :meth:`eval` are the values of the metric by name, which are also the score. The ``stop_value`` is a
    mapping of values by name, or one number for all of them; :meth:`IMetric.gt` compares them with it. The
    argument ``n_episode`` must be None, because there are no episodes.

    See :class:`ISerialEvaluator` for the other arguments.

    Args:
        env: A data loader that yields ``(inputs, label)``, and the metric.

    Raises:
        ValueError: If a config key is unknown or has no effect here, or a value is out of range.
        TypeError: If ``env`` is something else.
    """

    config_keys: ClassVar[frozenset[str]] = METRIC_KEYS
    best_metric: Values | None = None
    _loader: Any = None
    _meter: MeanMeter | TorchMeter | None = None

    @override
    def _clear(self) -> None:
        super()._clear()
        self.best_metric = None

    @property
    @override
    def env(self) -> tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None:
        return None if self._meter is None else (self._loader, self._meter.metric)

    @override
    def reset_env(self, env: tuple[Iterable[Any], IMetric | Metric | MetricCollection] | None = None) -> None:
        if env is None:
            return
        if not isinstance(env, (tuple, list)) or len(env) != 2 or not isinstance(env[1], IMetric):
            got = [type(part).__name__ for part in env] if isinstance(env, (tuple, list)) else type(env).__name__
            raise TypeError(f"env must be (data loader, IMetric or torchmetrics.Metric), got {got}")
        self._loader, metric = env
        self._meter = TorchMeter(metric) if isinstance(metric, (Metric, MetricCollection)) else MeanMeter(metric)

    @override
    def eval(
        self,
        save_ckpt_fn: SaveFunction | None = None,
        train_iter: int = -1,
        envstep: int = -1,
        n_episode: int | None = None,
    ) -> tuple[bool, Values]:
        self._check_eval_arguments(save_ckpt_fn, train_iter, envstep, n_episode)
        if n_episode is not None:
            raise ValueError(f"n_episode must be None, a metric evaluator runs no episodes, got {n_episode}")
        started = perf_counter()
        values, batches = self._measure()
        seconds = perf_counter() - started
        times = {"batch_count": batches, "evaluate_time": seconds, "avg_time_per_batch": seconds / batches}
        self._log.write({**times, **values}, train_iter, envstep)
        self._note_eval(train_iter)
        meter, best, threshold = self._meter, self.best_metric, self.config.stop_value
        assert meter is not None
        if best is None or (meter.gt(values, best) and not meter.gt(best, values)):  # an equal one is no better
            self.best_metric = values
            if save_ckpt_fn is not None:
                save_ckpt_fn("ckpt_best.ckpt")
        if threshold is None:
            return False, values
        enough = dict(threshold) if isinstance(threshold, Mapping) else dict.fromkeys(values, threshold)
        return train_iter > 0 and meter.gt(values, enough), values

    @override
    def run(self) -> Values:
        """Return the metric's values by name, over the data of all ranks.

        Rank r of W takes the batches r, r + W, ... of the data loader. If a ``DistributedSampler`` distributes the
        examples, each rank takes all its batches; the sampler repeats some examples if W does not divide their number.

        Raises:
            ValueError: If a rank has no batch, or each rank would shuffle the examples in its own way.
            RuntimeError: If there is no data loader or no policy.
        """
        return self._measure()[0]

    @override
    def close(self) -> None:
        self._loader = self._meter = self._policy = None

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint holds: the best metric and the update of the last evaluation."""
        return {**super().state_dict(), "best_metric": self.best_metric}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.best_metric = state_dict["best_metric"]

    def _measure(self) -> tuple[Values, int]:
        """Return the metric's values and the number of batches over all ranks."""
        if self._meter is None or self._policy is None:
            raise RuntimeError("the evaluator needs (data loader, metric) and a policy: pass them to reset")
        self._policy.reset()
        self._meter.reset()
        forward = policy_of(self._policy).batch_forward or self._policy.forward
        batches = 0
        for inputs, label in self._share():
            self.steps_made += 1
            output = forward(nested.to_tensor(inputs))
            device = nested.leaves(output)[0].device
            self._meter.update(output, nested.to(nested.to_tensor(label), device))
            batches += 1
        total, without = sum_over_ranks(torch.tensor([batches, batches == 0])).tolist()
        if without:
            raise ValueError(f"every rank needs a batch of the data loader, but {without} got none")
        values = self._meter.compute()
        self._meter.reset()
        return values, total

    def _share(self) -> Iterable[Any]:
        """Return this rank's batches."""
        rank, world_size = rank_and_world_size()
        sampler = getattr(self._loader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            return islice(self._loader, None)
        if world_size > 1 and isinstance(sampler, RandomSampler):
            raise ValueError("shuffle must be False on several ranks, or the sampler a DistributedSampler")
        return islice(self._loader, rank, None, world_size)


class IMetric(ABC):
    """A measure of a batch that can be averaged over batches and compared.

    Every ``torchmetrics.Metric`` and ``MetricCollection`` counts as an ``IMetric`` too.

    Example:
        >>> class Accuracy(IMetric):
        ...     def eval(self, inputs, label):
        ...         return {"accuracy": (inputs == label).float().mean().item()}
        ...     def gt(self, metric1, metric2):
        ...         return metric2 is None or metric1["accuracy"] >= metric2["accuracy"]
        >>> accuracy = Accuracy()
        >>> accuracy.eval(torch.tensor([1, 2]), torch.tensor([1, 1]))
        {'accuracy': 0.5}
        >>> accuracy.reduce_mean([{"accuracy": 0.5}, {"accuracy": 1.0}], weights=[3, 1])
        {'accuracy': 0.625}
    """

    @abstractmethod
    def eval(self, inputs: Any, label: Any) -> Values:
        """Return the means over one batch by name.

        Args:
            inputs: Output of the policy's ``forward`` for the batch.
            label: Labels of the batch, leading axis B, on the same device.
        """

    def reduce_mean(self, inputs: Sequence[Mapping[str, float]], weights: Sequence[float] | None = None) -> Values:
        """Return the weighted mean of the results of :meth:`eval` for several batches.

        A subclass may replace it by a method without ``weights``, which then decides on the mean over the batches.

        Args:
            inputs: Results of the batches, at least one, all with the same names.
            weights: Weight of each batch; a metric evaluator passes the sizes. None weighs them equally.
        """
        given = [1.0] * len(inputs) if weights is None else weights
        total = sum(given)
        return {
            name: sum(float(values[name]) * weight for values, weight in zip(inputs, given, strict=True)) / total
            for name in inputs[0]
        }

    @abstractmethod
    def gt(self, metric1: Mapping[str, float], metric2: Mapping[str, float] | None) -> bool:
        """Return whether ``metric1`` is at least as good as ``metric2``; true if ``metric2`` is None."""


IMetric.register(Metric)  # type: ignore[type-abstract]
IMetric.register(MetricCollection)


class MeanMeter:
    """Measures with an :class:`IMetric`: the mean over all batches of all ranks, weighted by their sizes."""

    def __init__(self, metric: IMetric) -> None:
        self.metric = metric
        self.reset()

    def reset(self) -> None:
        """Delete the values of all batches."""
        self._values: list[Values] = []
        self._sizes: list[float] = []

    def update(self, output: Any, label: Any) -> None:
        """Measure a batch."""
        self._values.append(self.metric.eval(output, label))
        self._sizes.append(float(nested.length(label)))

    def compute(self) -> Values:
        """Return the means by name, the same on every rank.

        A metric whose ``reduce_mean`` takes no weights averages the batches of a rank in its own way.
        """
        takes_weights = "weights" in inspect.signature(self.metric.reduce_mean).parameters
        given = self.metric.reduce_mean(self._values, **({"weights": self._sizes} if takes_weights else {}))
        if not isinstance(given, Mapping):
            raise TypeError(
                f"reduce_mean must return a mapping of values by name, got {type(given).__name__}: {given!r}"
            )
        means = {str(name): float(value) for name, value in given.items()}
        names, size = sorted(means), sum(self._sizes)
        sums = torch.tensor([*(float(means[name]) * size for name in names), size], dtype=torch.float64)
        *totals, total = sum_over_ranks(sums).tolist()
        by_name = {name: value / total for name, value in zip(names, totals, strict=True)}
        return {name: by_name[name] for name in means}

    def gt(self, metric1: Values, metric2: Values | None) -> bool:
        """Return whether ``metric1`` is at least as good as ``metric2``."""
        return bool(self.metric.gt(metric1, metric2))


class TorchMeter:
    """Measures with a metric of torchmetrics, which combines the ranks itself.

    If the policy returns a dict, the metric gets its ``logit``, or its ``action`` if there is none. Larger values are
    better unless the metric's ``higher_is_better`` is False. The first metric of a collection decides which of two
    values is better.
    """

    def __init__(self, metric: Metric | MetricCollection) -> None:
        self.metric = metric

    def reset(self) -> None:
        """Delete the values of all batches."""
        self.metric.reset()

    def update(self, output: Any, label: Any) -> None:
        """Measure a batch.

        Raises:
            KeyError: If the output is a dict with neither ``logit`` nor ``action``.
        """
        if isinstance(output, Mapping):
            output = output["logit" if "logit" in output else "action"]
        self.metric.to(output.device)
        self.metric.update(output, label)

    def compute(self) -> Values:
        """Return the values by name, the same on every rank; a single metric is named after its class.

        Raises:
            ValueError: If a value is not a single number.
        """
        computed = self.metric.compute()
        values = computed if isinstance(computed, Mapping) else {type(self.metric).__name__: computed}
        for name, value in values.items():
            is_number = not isinstance(value, Tensor) or value.numel() == 1
            require(is_number, f"metric {name!r}", "a single number", value)
        return {str(name): float(value) for name, value in values.items()}

    def gt(self, metric1: Values, metric2: Values | None) -> bool:
        """Return whether the first value of ``metric1`` is at least as good as that of ``metric2``."""
        if metric2 is None:
            return True
        name = next(iter(metric1))
        first = self.metric if isinstance(self.metric, Metric) else next(iter(self.metric.values()))
        sign = -1.0 if first.higher_is_better is False else 1.0
        return sign * metric1[name] >= sign * metric2[name]
