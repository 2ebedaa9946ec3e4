"""Returns of several runs over their seeds, with intervals: what the command ``compare`` prints for one task."""

from __future__ import annotations

import csv
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import nearest, require
from lightning_ding.entry.seed_statistics import (
    end_of_run,
    improvement_interval,
    interquartile_mean,
    interval,
    mean_over_run,
    probability_of_improvement,
)
from lightning_ding.utils.protocols import return_text

logger = logging.getLogger(__name__)

METRIC = "eval/return_mean"
SEED = re.compile(r"seed_\d+")
CSV, EVENTS = "metrics.csv", "events.out.tfevents.*"
RECORD = "sweep.json"
"""File in the folder of a sweep, and in that of each seed of it that has ended."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationCurve:
    """The evaluations of one seed."""

    folder: str
    """Folder of its logs."""
    step: Array
    """Env steps of the evaluations, or updates of a run on a data set, in rising order."""
    value: Array
    """The metric at these steps."""

    @property
    def result(self) -> float:
        """Mean of the evaluations in the last tenth of the steps."""
        return end_of_run(self.step, self.value)

    @property
    def mean_over_run(self) -> float:
        """Area under the curve, divided by its length."""
        return mean_over_run(self.step, self.value)


@dataclass(frozen=True)
class Comparison:
    """A run over its seeds."""

    name: str
    results: tuple[float, ...]
    """The result of each seed."""
    mean: float
    """Interquartile mean of the results."""
    interval: tuple[float, float]
    """95 % interval of the interquartile mean; the mean twice with one seed."""
    mean_over_run: float
    """Interquartile mean of the area under the seeds' curves, divided by their length."""
    improvement: float | None
    """Probability that a seed has a higher result than one of the first run; None for the first run."""
    improvement_interval: tuple[float, float] | None
    """Its 95 % interval; None for the first run."""
    curves: tuple[EvaluationCurve, ...]


def compare(runs: Mapping[str, Sequence[str | Path]], metric: str = METRIC) -> list[Comparison]:
    """Return each run over its seeds, and how it compares with the first one.

    Args:
        runs: Folders of each run, by name. Each log in a folder or below it is a seed; in the folder of a sweep, the
            newest log of each seed.
        metric: Name of a metric that evaluations log; a higher one is better.

    Raises:
        ValueError: If there is no run, a folder is missing, or has no log with such a metric.
    """
    require(len(runs) >= 1, "runs", "at least one run", dict(runs))
    found: list[Comparison] = []
    for name, folders in runs.items():
        curves = tuple(curve for folder in folders for curve in read_curves(folder, metric))
        results = np.array([curve.result for curve in curves])
        improvement = None if not found else probability_of_improvement(results, found[0].results)
        between = None if not found else improvement_interval(results, found[0].results)
        area = interquartile_mean([curve.mean_over_run for curve in curves])
        mean, ends = interquartile_mean(results), interval(results)
        found.append(Comparison(name, tuple(results.tolist()), mean, ends, area, improvement, between, curves))
    return found


def read_curves(folder: str | Path, metric: str = METRIC) -> list[EvaluationCurve]:
    """Return the evaluations in the logs of a folder and of the folders below it, in the order of their names.

    Evaluations that were cancelled, whose value is NaN, are left out. A seed of a sweep counts once, by its newest log,
    even if it has several loggers or was begun twice.

    Raises:
        ValueError: If the folder is missing, or has no log with such a metric.
    """
    top = Path(folder)
    require(top.is_dir(), "run", "a folder with the logs of a run", str(folder))
    newest: dict[Path, tuple[float, EvaluationCurve]] = {}
    names = set[str]()
    written: dict[Path, float] = {}
    for file in (file for pattern in (CSV, EVENTS) for file in top.rglob(pattern)):
        written[file.parent] = max(written.get(file.parent, 0.0), file.stat().st_mtime)
    for place in sorted(written):
        logged = _rows_of_csv(place / CSV) if (place / CSV).is_file() else _rows_of_events(place)
        names |= logged.keys()
        # a later row of a step replaces an earlier one
        rows = {step: value for step, value in logged.get(metric, []) if not math.isnan(value)}
        seed = _seed_of(place)
        if rows and (seed not in newest or written[place] >= newest[seed][0]):
            steps = sorted(rows)
            curve = EvaluationCurve(str(place), np.array(steps, float), np.array([rows[step] for step in steps]))
            newest[seed] = (written[place], curve)
    hint = nearest(metric, names) if names else f"no {CSV} and no file of TensorBoard"
    require(bool(newest), "metric", f"one that the logs in {folder} have ({hint})", metric)
    for seed, (_, curve) in newest.items():
        if (seed.parent / RECORD).is_file() and not (seed / RECORD).is_file():
            logger.warning("%s has not ended: its result is that of step %d", seed, curve.step[-1])
    return [curve for _, curve in newest.values()]


def _seed_of(place: Path) -> Path:
    """Return the folder of the seed of a sweep to which a folder with logs belongs; itself outside of sweeps."""
    found = (one for one in (place, *place.parents) if SEED.fullmatch(one.name) and (one.parent / RECORD).is_file())
    return next(found, place)


def _rows_of_csv(file: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and numbers of each metric in a file of the CSVLogger."""
    found: dict[str, list[tuple[int, float]]] = {}
    with file.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row.get("step")]
    for row in rows:
        step = int(float(row.pop("step")))
        for name, value in row.items():
            if value:
                found.setdefault(name, []).append((step, float(value)))
    return found


def _rows_of_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and numbers of each metric in the files of TensorBoard in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


# ---------------------------------------------------------------------- output


def table(found: Sequence[Comparison], metric: str = METRIC) -> str:
    """Return the comparison as a table for a terminal."""
    head = ["run", "seeds", f"{metric} at the end", "95 % interval", "over the run", f"better than {found[0].name}"]
    rows = [head]
    for one in found:
        many = len(one.results) > 1
        ends = " to ".join(map(return_text, one.interval)) if many else "-"
        better = "-"
        if one.improvement is not None and one.improvement_interval is not None:
            low, high = one.improvement_interval
            better = f"{one.improvement:.2f}" + (f" ({low:.2f} to {high:.2f})" if many else "")
        numbers = [return_text(one.mean), ends, return_text(one.mean_over_run)]
        rows.append([one.name, str(len(one.results)), *numbers, better])
    return aligned(rows if len(found) > 1 else [row[:-1] for row in rows])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines, with columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def plot(found: Sequence[Comparison], file: Path, metric: str = METRIC) -> None:
    """Draw the interquartile mean of each run's curves with its 95 % interval, and write the image.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    figure, axes = new_figure()
    for one in found:
        steps = np.unique(np.concatenate([curve.step for curve in one.curves]))
        steps = steps[steps <= min(curve.step[-1] for curve in one.curves)]
        values = np.array([np.interp(steps, curve.step, curve.value) for curve in one.curves])  # (seeds, steps)
        axes.plot(steps, interquartile_mean(values, axis=0), label=f"{one.name} ({len(values)} seeds)")
        axes.fill_between(steps, *interval(values), alpha=0.25, linewidth=0)
    axes.set(xlabel="env steps", ylabel=metric)
    axes.legend()
    figure.savefig(file, dpi=150)


def new_figure() -> tuple[Any, Any]:
    """Return a figure of Matplotlib and its axes.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need Matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    return figure, figure.add_subplot()
