"""The command ``compare``: the returns of several runs over their seeds, with intervals.

    lightning-ding compare runs/sweep/dqn runs/sweep/ppo
    lightning-ding compare new=runs/sweep/dqn old=runs/before/dqn --plot curves.png

A run is a folder with the logs of one seed or more, in any subfolders: those of the CSVLogger or of TensorBoard. The
result of a seed is the mean of its evaluations in the last tenth of its env steps: that of the policy as it is at the
end. Runs are summed up by the interquartile mean over their seeds and its 95 % interval by the bootstrap, and each is
compared with the first one by the probability that a seed of it has the higher result (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264).
"""

from __future__ import annotations

import csv
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import nearest, require
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.utils.protocols import return_text

logger = logging.getLogger(__name__)

METRIC = "eval/return_mean"
LAST = 0.1  # share of the env steps whose evaluations make the result
RESAMPLES = 2_000
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
        return float(self.value[self.step >= self.step[-1] * (1 - LAST)].mean())


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
    improvement: float | None
    """Probability that a seed has a higher result than one of the first run; None for the first run."""
    improvement_interval: tuple[float, float] | None
    """Its 95 % interval; None for the first run."""
    curves: tuple[EvaluationCurve, ...]


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or run."""
    parser = CommandParser(prog="lightning-ding compare", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, or NAME=FOLDER")
    parser.add_argument("--metric", default=METRIC, help="metric of the evaluations (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="image file with the curves and their intervals")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(list(arguments)[1:])
    found = in_one_line(lambda: compare(_named(options.runs), options.metric), (OSError,))
    if options.plot is not None:
        in_one_line(lambda: plot(found, options.plot, options.metric), (OSError,))
    print(json.dumps(_as_json(found, options.metric)) if options.json else table(found, options.metric))


def _named(runs: Sequence[str]) -> dict[str, list[Path]]:
    pairs = [
        (run.partition("=")[0], run.partition("=")[2])
        if "=" in run and not Path(run).is_dir()
        else (run.rstrip("/"), run)
        for run in runs
    ]
    names = [name for name, _ in pairs]
    require(len(set(names)) == len(names), "runs", "different names", names)
    return {name: [Path(folder)] for name, folder in pairs}


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
        between = None if not found else bootstrap(probability_of_improvement, results, found[0].results)
        mean, interval = interquartile_mean(results), bootstrap(interquartile_mean, results)
        found.append(Comparison(name, tuple(results.tolist()), mean, interval, improvement, between, curves))
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


# ---------------------------------------------------------------------- statistics


def interquartile_mean(values: Any, axis: int = -1) -> Any:
    """Return the mean of what is left after the lowest and the highest quarter, rounded down, were removed.

    Example:
        >>> interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0])
        2.0
    """
    ordered = np.moveaxis(np.sort(np.asarray(values, dtype=float), axis=axis), axis, -1)
    removed = ordered.shape[-1] // 4
    mean = ordered[..., removed : ordered.shape[-1] - removed].mean(axis=-1)
    return float(mean) if mean.ndim == 0 else mean


def probability_of_improvement(ours: Any, others: Any) -> Any:
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


def bootstrap(statistic: Any, *samples: Any) -> tuple[float, float]:
    """Return the 95 % interval of a statistic by the percentile bootstrap, with seeds drawn within each sample.

    Args:
        statistic: A function of arrays with the seeds along the last axis.
        samples: Results of the seeds, one array for each argument of the statistic.
    """
    rng = np.random.default_rng(0)
    drawn = [np.asarray(one, float)[rng.integers(len(one), size=(RESAMPLES, len(one)))] for one in samples]
    low, high = np.quantile(statistic(*drawn), [0.025, 0.975])
    return float(low), float(high)


# ---------------------------------------------------------------------- output


def table(found: Sequence[Comparison], metric: str = METRIC) -> str:
    """Return the comparison as a table for a terminal."""
    head = ["run", "seeds", f"{metric} at the end", "95 % interval", f"better than {found[0].name}"]
    rows = [head]
    for one in found:
        many = len(one.results) > 1
        interval = " to ".join(map(return_text, one.interval)) if many else "-"
        better = "-"
        if one.improvement is not None and one.improvement_interval is not None:
            low, high = one.improvement_interval
            better = f"{one.improvement:.2f}" + (f" ({low:.2f} to {high:.2f})" if many else "")
        rows.append([one.name, str(len(one.results)), return_text(one.mean), interval, better])
    columns = range(len(head) if len(found) > 1 else len(head) - 1)
    widths = [max(len(row[column]) for row in rows) for column in columns]
    return "\n".join("  ".join(row[at].ljust(widths[at]) for at in columns).rstrip() for row in rows)


def _as_json(found: Sequence[Comparison], metric: str) -> dict[str, Any]:
    runs = [{**asdict(one), "curves": [curve.folder for curve in one.curves]} for one in found]
    return {"metric": metric, "runs": runs}


def plot(found: Sequence[Comparison], file: Path, metric: str = METRIC) -> None:
    """Draw the interquartile mean of each run's curves with its 95 % interval, and write the image.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need Matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one in found:
        steps = np.unique(np.concatenate([curve.step for curve in one.curves]))
        steps = steps[steps <= min(curve.step[-1] for curve in one.curves)]
        values = np.array([np.interp(steps, curve.step, curve.value) for curve in one.curves])  # (seeds, steps)
        drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES // 4, len(values)))
        low, high = np.quantile(interquartile_mean(values[drawn], axis=1), [0.025, 0.975], axis=0)
        axes.plot(steps, interquartile_mean(values, axis=0), label=f"{one.name} ({len(values)} seeds)")
        axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
    axes.set(xlabel="env steps", ylabel=metric)
    axes.legend()
    figure.savefig(file, dpi=150)
