"""A figure of an evaluation's returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_ding.worker.evaluator.extra import import_extra


def returns_figure(returns: Sequence[float], title: str) -> Any:
    """Return a matplotlib ``Figure`` with a bar for each episode and a line at their mean; pyplot is not used.

    Args:
        returns: In the order of the episodes.
        title: Stands above it.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    figure = import_extra("matplotlib.figure").Figure(figsize=(6, 4), layout="constrained")
    mean = sum(returns) / len(returns)
    axes = figure.add_subplot()
    axes.bar(range(len(returns)), returns)
    axes.axhline(mean, color="black", linestyle="--", label=f"mean {mean:.6g}")
    axes.set(title=title, xlabel="episode", ylabel="return")
    axes.legend()
    return figure
