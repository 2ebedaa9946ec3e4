"""The command ``compare``: the returns of several runs over their seeds, with intervals.

    lightning-ding compare runs/sweep/dqn runs/sweep/ppo
    lightning-ding compare new=runs/sweep/dqn old=runs/before/dqn --plot curves.png
    lightning-ding compare sac@Hopper=runs/a sac@Ant=runs/b td3@Hopper=runs/c td3@Ant=runs/d --profile profile.png

A run is a folder with the logs of one seed or more, in any subfolders: those of the CSVLogger or of TensorBoard. The
result of a seed is the mean of its evaluations in the last tenth of its env steps: that of the policy as it is at the
end. Runs are summed up by the interquartile mean over their seeds and its 95 % interval by the bootstrap, and each is
compared with the first one by the probability that a seed of it has the higher result (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). The mean over the run is the area under the curve divided by its length.

Names of the form NAME@TASK compare algorithms over several tasks. Results are brought to one scale, on which 0 and 1
are the lowest and the highest result of a seed in a task, or those that --range gives, and the performance profile
says which share of the seeds reaches each score.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import nearest, require
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
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


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or run."""
    parser = CommandParser(prog="lightning-ding compare", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, NAME=FOLDER, or NAME@TASK=FOLDER")
    parser.add_argument("--metric", default=METRIC, help="metric of the evaluations (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="image file with the curves and their intervals")
    parser.add_argument("--profile", type=Path, help="image file with the performance profile over the tasks")
    parser.add_argument("--range", action="append", default=[], help="TASK=LOW:HIGH, the results with the scores 0, 1")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(list(arguments)[1:])
    in_one_line(lambda: print(_answer(options)), (OSError,))


def _answer(options: Namespace) -> str:
    """Return what the command prints; write the images that it is asked for."""
    runs = _named(options.runs)
    if any("@" in name for name in runs if not Path(name).is_dir()):
        return _answer_of_tasks(options, runs)
    for option in ("profile", "range"):
        given = getattr(options, option)
        require(not given, f"--{option}", "left out, or runs of the form NAME@TASK=FOLDER", given)
    found = compare(runs, options.metric)
    if options.plot is not None:
        plot(found, options.plot, options.metric)
    return json.dumps(_as_json(found, options.metric)) if options.json else table(found, options.metric)


def _answer_of_tasks(options: Namespace, runs: Mapping[str, Sequence[Path]]) -> str:
    from lightning_ding.entry.compare_tasks import compare_tasks, draw_profile, split_tasks, tasks_table

    require(options.plot is None, "--plot", "left out with several tasks; --profile draws them", options.plot)
    found = compare_tasks(split_tasks(runs), options.metric, dict(map(_range, options.range)))
    if options.profile is not None:
        draw_profile(found, options.profile)
    if options.json:
        scores = {name: dict(zip(found.tasks, found.scores(name), strict=True)) for name in found.names}
        tasks = {task: _as_json(group, options.metric)["runs"] for task, group in found.tasks.items()}
        return json.dumps({"metric": options.metric, "tasks": tasks, "ranges": found.ranges, "scores": scores})
    tables = [f"{task}\n{table(group, options.metric)}" for task, group in found.tasks.items()]
    return "\n\n".join([*tables, tasks_table(found)])


def _range(text: str) -> tuple[str, tuple[float, float]]:
    task, _, ends = text.rpartition("=")
    low, _, high = ends.partition(":")
    try:
        return task, (float(low), float(high))
    except ValueError:
        raise ValueError(f"--range must be TASK=LOW:HIGH, got {text!r}") from None


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


def _as_json(found: Sequence[Comparison], metric: str) -> dict[str, Any]:
    runs = [{**asdict(one), "curves": [curve.folder for curve in one.curves]} for one in found]
    return {"metric": metric, "runs": runs}


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
