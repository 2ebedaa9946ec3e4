"""The result of a seed, and statistics over seeds and tasks (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264).

The command ``compare`` and the published tables have their numbers from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
LAST = 0.1
"""Share of a run's env steps, at its end, whose evaluations are its result."""
RESAMPLES = 2_000


def end_of_run(steps: ArrayLike, values: ArrayLike) -> float:
    """Return the mean of the evaluations in the last tenth of the env steps: that of the policy as it is at the end.

    Args:
        steps: Env steps of the evaluations, in rising order.
        values: Their results.

    Example:
        >>> end_of_run([50, 90, 95, 100], [500.0, 500.0, 20.0, 10.0])
        15.0
    """
    at, found = np.asarray(steps, float), np.asarray(values, float)
    return float(found[(at > at[-1] * (1 - LAST)) | (at == at[-1])].mean())


def mean_over_run(steps: ArrayLike, values: ArrayLike) -> float:
    """Return the area under a curve divided by its length: how soon a run was good, and for how long.

    The first evaluation counts from env step 0 on, and lines connect the evaluations.

    Args:
        steps: Env steps of the evaluations, in rising order.
        values: Their results.

    Example:
        >>> mean_over_run([0, 50, 100], [0.0, 10.0, 10.0])
        7.5
    """
    at, found = np.asarray(steps, float), np.asarray(values, float)
    if at[0] > 0:
        at, found = np.append(0.0, at), np.append(found[0], found)
    area = ((found[1:] + found[:-1]) / 2 * np.diff(at)).sum()
    return float(area / at[-1]) if at[-1] > 0 else float(found[-1])


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Any:
    """Return the mean of what is left after the lowest and the highest quarter, rounded down, were removed.

    Args:
        values: Results.
        axis: Axis of the seeds.

    Example:
        >>> interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0])
        2.0
    """
    ordered = np.moveaxis(np.sort(np.asarray(values, dtype=float), axis=axis), axis, -1)
    removed = ordered.shape[-1] // 4
    mean = ordered[..., removed : ordered.shape[-1] - removed].mean(axis=-1)
    return float(mean) if mean.ndim == 0 else mean


def interval(*tasks: ArrayLike) -> tuple[Any, Any]:
    """Return both ends of the 95 % interval of the interquartile mean, by the percentile bootstrap.

    Args:
        tasks: Results of each task, seeds along the first axis. Seeds are drawn within each task (stratified), and the
            mean is over all tasks. Further axes, such as the points of a curve, must be equal; each has its interval.
    """
    rng = np.random.default_rng(0)
    arrays = [np.asarray(task, float) for task in tasks]
    drawn = [array[rng.integers(len(array), size=(RESAMPLES, len(array)))] for array in arrays]
    low, high = np.quantile(interquartile_mean(np.concatenate(drawn, axis=1), axis=1), [0.025, 0.975], axis=0)
    return (float(low), float(high)) if low.ndim == 0 else (low, high)


def probability_of_improvement(ours: ArrayLike, others: ArrayLike) -> Any:
    """Return the probability that a seed of one run has a higher result than a seed of another one; a tie counts half.

    Args:
        ours: Results of a run, seeds along the last axis.
        others: Results of the other run, seeds along the last axis.

    Example:
        >>> probability_of_improvement([1.0, 3.0], [2.0, 3.0])
        0.375
    """
    first, second = np.asarray(ours, float)[..., :, None], np.asarray(others, float)[..., None, :]
    share = ((first > second) + 0.5 * (first == second)).mean(axis=(-2, -1))
    return float(share) if share.ndim == 0 else share


def improvement_interval(ours: ArrayLike, others: ArrayLike) -> tuple[float, float]:
    """Return both ends of the 95 % interval of ``probability_of_improvement``, with seeds drawn within each run."""
    rng = np.random.default_rng(0)
    arrays = [np.asarray(one, float) for one in (ours, others)]
    drawn = [array[rng.integers(len(array), size=(RESAMPLES, len(array)))] for array in arrays]
    low, high = np.quantile(probability_of_improvement(*drawn), [0.025, 0.975])
    return float(low), float(high)


def performance_profile(tasks: Sequence[ArrayLike], scores: ArrayLike) -> tuple[Array, Array, Array]:
    """Return which share of the runs has at least each score, and its 95 % interval.

    The share is that of each task's seeds, and its mean over the tasks.

    Args:
        tasks: Scores of the seeds of each task, on a scale that the tasks share.
        scores: Scores to be reached, of shape (S,).

    Returns:
        Shares, and the lower and the upper ends of their intervals, each of shape (S,).

    Example:
        >>> performance_profile([[0.2, 0.6], [1.0]], [0.5, 0.9])[0].tolist()
        [0.75, 0.5]
    """
    rng, asked = np.random.default_rng(0), np.asarray(scores, float)
    shares, drawn = np.zeros(len(asked)), np.zeros((RESAMPLES, len(asked)))
    for task in tasks:
        reached = (np.asarray(task, float)[:, None] >= asked).astype(float)  # (seeds, S)
        shares += reached.mean(axis=0) / len(tasks)
        drawn += reached[rng.integers(len(reached), size=(RESAMPLES, len(reached)))].mean(axis=1) / len(tasks)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return shares, low, high
