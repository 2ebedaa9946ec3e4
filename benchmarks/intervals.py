"""Results of seeds as text for tables: interquartile means and their 95 % intervals, as ``compare`` has them.

With three seeds or fewer, the interquartile mean is the mean, and the interval is nearly the range of the seeds.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.entry.seed_statistics import interquartile_mean, interval


def number(value: float) -> str:
    """Return a return for a table, with two decimals below 10 and one above."""
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def text(values: Any) -> str:
    """Return an interquartile mean and its interval for a table; the mean alone of a single seed."""
    low, high = interval(values)
    centre = number(interquartile_mean(values))
    return centre if len(values) == 1 else f"{centre} [{number(low)}, {number(high)}]"
