"""Interquartile means over seeds, and their 95 % intervals by the stratified bootstrap.

Source: Agarwal et al. 2021 (https://arxiv.org/abs/2108.13264). With three seeds or fewer, the interquartile mean is the
mean, and the interval is nearly the range of the seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
RESAMPLES = 2_000


def interquartile_mean(values: Any, axis: int = 0) -> Any:
    """Return the mean of what is left after the lowest and the highest quarter, rounded down, were removed.

    Args:
        values: Results, with the seeds along ``axis``.
        axis: Axis of the seeds.
    """
    return stats.trim_mean(np.asarray(values, dtype=float), 0.25, axis=axis)


def interval(*tasks: Any) -> tuple[Any, Any]:
    """Return both ends of the 95 % bootstrap interval of the interquartile mean.

    Args:
        tasks: Results of each task, seeds along the first axis. Seeds are drawn within each task (stratified), and the
            mean is over all tasks. Further axes, such as the points of a curve, must be equal; each has its interval.

    Returns:
        The lower and the upper end, without the axis of the seeds; both are the result if there is only one.
    """
    arrays = [np.asarray(task, dtype=float) for task in tasks]
    if all(len(array) == 1 for array in arrays):
        centre = interquartile_mean(np.concatenate(arrays))
        return centre, centre
    found = stats.bootstrap(
        arrays,
        lambda *drawn, axis: interquartile_mean(np.concatenate(drawn, axis=axis), axis),
        axis=0,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return low, high


def number(value: float) -> str:
    """Return a return for a table, with two decimals below 10 and one above."""
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def text(values: Any) -> str:
    """Return an interquartile mean and its interval for a table; the mean alone of a single seed."""
    low, high = interval(values)
    centre = number(interquartile_mean(values))
    return centre if len(values) == 1 else f"{centre} [{number(low)}, {number(high)}]"
