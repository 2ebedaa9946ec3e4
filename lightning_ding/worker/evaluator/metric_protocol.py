"""What a metric evaluator measures with: a metric with three methods, or one of torchmetrics.

Shapes: B examples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.worker.evaluator.sharding import sum_over_ranks

Values = dict[str, float]


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
            inputs: What the policy's ``forward`` returned for the batch.
            label: Of the batch, leading axis B, on the same device.
        """

    def reduce_mean(self, inputs: Sequence[Mapping[str, float]], weights: Sequence[float] | None = None) -> Values:
        """Return the mean of what :meth:`eval` gave for several batches.

        Args:
            inputs: At least one, all with the same names.
            weights: Of each, such as the sizes of the batches, which a metric evaluator gives; None weighs them
                equally.
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
        """Forget what was measured."""
        self._values: list[Values] = []
        self._sizes: list[float] = []

    def update(self, output: Any, label: Any) -> None:
        """Measure a batch."""
        self._values.append(self.metric.eval(output, label))
        self._sizes.append(float(nested.length(label)))

    def compute(self) -> Values:
        """Return the means by name, the same on every rank."""
        means = self.metric.reduce_mean(self._values, weights=self._sizes)
        names, size = sorted(means), sum(self._sizes)
        sums = torch.tensor([*(float(means[name]) * size for name in names), size], dtype=torch.float64)
        *totals, total = sum_over_ranks(sums).tolist()
        by_name = {name: value / total for name, value in zip(names, totals, strict=True)}
        return {name: by_name[name] for name in means}

    def gt(self, metric1: Values, metric2: Values | None) -> bool:
        """Return whether ``metric1`` is at least as good as ``metric2``."""
        return bool(self.metric.gt(metric1, metric2))


class TorchMeter:
    """Measures with a metric of torchmetrics, which joins the ranks itself.

    It is given ``output["logit"]``, else ``output["action"]``, if the policy returns a dict. Larger values are better
    unless its ``higher_is_better`` is False. Of a collection the first metric says what is better.
    """

    def __init__(self, metric: Metric | MetricCollection) -> None:
        self.metric = metric

    def reset(self) -> None:
        """Forget what was measured."""
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
            require(is_number, f"metric {name!r}", "a single number", getattr(value, "shape", None))
        return {str(name): float(value) for name, value in values.items()}

    def gt(self, metric1: Values, metric2: Values | None) -> bool:
        """Return whether the first value of ``metric1`` is at least as good as that of ``metric2``."""
        if metric2 is None:
            return True
        name = next(iter(metric1))
        first = self.metric if isinstance(self.metric, Metric) else next(iter(self.metric.values()))
        sign = -1.0 if getattr(first, "higher_is_better", None) is False else 1.0
        return sign * metric1[name] >= sign * metric2[name]
