"""Algorithms over several tasks: scores on one scale, and the performance profile (Agarwal et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_ding.config import require
from lightning_ding.entry.compare import METRIC, Comparison, aligned, compare, new_figure
from lightning_ding.entry.seed_statistics import interquartile_mean, interval, performance_profile
from lightning_ding.utils.protocols import return_text

SCORES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Scores of the columns of the table."""
POINTS = 201  # of a drawn profile
Range = tuple[float, float]


@dataclass(frozen=True)
class TaskComparison:
    """Algorithms on the same tasks."""

    tasks: dict[str, list[Comparison]]
    """The comparison of each task, with the algorithms in the same order."""
    ranges: dict[str, Range]
    """The results with the scores 0 and 1, of each task."""

    @property
    def names(self) -> list[str]:
        """Names of the algorithms."""
        return [one.name for one in next(iter(self.tasks.values()))]

    def scores(self, name: str) -> list[list[float]]:
        """Return the scores of an algorithm's seeds, task by task."""
        scores = []
        for task, found in self.tasks.items():
            low, high = self.ranges[task]
            (results,) = (one.results for one in found if one.name == name)
            scores.append([(result - low) / (high - low) for result in results])
        return scores


def split_tasks(runs: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, Sequence[Path]]]:
    """Return the runs of each task, by the name of the algorithm.

    Args:
        runs: Folders by names of the form NAME@TASK.

    Raises:
        ValueError: If a name has another form, or an algorithm lacks a task that another one has.
    """
    tasks: dict[str, dict[str, Sequence[Path]]] = {}
    for run, folders in runs.items():
        name, _, task = run.partition("@")
        require(bool(name and task), "runs", "all of the form NAME@TASK=FOLDER, or none", run)
        tasks.setdefault(task, {})[name] = folders
    names = list(dict.fromkeys(name for group in tasks.values() for name in group))
    missing = [f"{name}@{task}" for task, group in tasks.items() for name in names if name not in group]
    require(not missing, "runs", "each algorithm on each task", f"nothing for {', '.join(missing)}")
    return {task: {name: group[name] for name in names} for task, group in tasks.items()}


def compare_tasks(
    tasks: Mapping[str, Mapping[str, Sequence[str | Path]]],
    metric: str = METRIC,
    ranges: Mapping[str, Range] | None = None,
) -> TaskComparison:
    """Return algorithms compared on several tasks.

    Args:
        tasks: Folders of the runs of each algorithm, for each task; the algorithms of all tasks are the same.
        metric: Name of a metric that evaluations log; a higher one is better.
        ranges: The results with the scores 0 and 1 of some tasks, such as those of a random policy and of an expert.
            In other tasks they are the lowest and the highest result of a seed.

    Raises:
        ValueError: If a range is of an unknown task, or its ends are equal; and for what ``compare`` refuses.
    """
    given = ranges or {}
    unknown = sorted(given.keys() - tasks.keys())
    require(not unknown, "range", f"of one of the tasks {', '.join(tasks)}", ", ".join(unknown))
    found = {task: compare(runs, metric) for task, runs in tasks.items()}
    whole: dict[str, Range] = {}
    for task, group in found.items():
        results = [result for one in group for result in one.results]
        low, high = whole[task] = given.get(task, (min(results), max(results)))
        require(low < high, "range", f"LOW:HIGH with LOW < HIGH (task {task})", f"{low:g}:{high:g}")
    return TaskComparison(found, whole)


def tasks_table(found: TaskComparison) -> str:
    """Return the scores over all tasks as a table: their interquartile means, and the performance profile."""
    head = ["run", "score", "95 % interval", *(f">= {score:g}" for score in SCORES)]
    rows = [head]
    for name in found.names:
        scores = found.scores(name)
        shares, _, _ = performance_profile(scores, SCORES)
        ends = " to ".join(f"{end:.2f}" for end in interval(*scores))
        rows.append([name, f"{interquartile_mean(np.concatenate(scores)):.2f}", ends, *(f"{x:.0%}" for x in shares)])
    scale = [f"{task}: 0 is {return_text(low)}, 1 is {return_text(high)}" for task, (low, high) in found.ranges.items()]
    return "\n".join(["share of the seeds with at least a score, mean of the tasks", aligned(rows), *scale])


def draw_profile(found: TaskComparison, file: Path) -> None:
    """Draw the performance profiles with their 95 % intervals, and write the image.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    figure, axes = new_figure()
    scores = np.linspace(0, 1, POINTS)
    for name in found.names:
        shares, low, high = performance_profile(found.scores(name), scores)
        axes.step(scores, shares, where="post", label=name)
        axes.fill_between(scores, low, high, step="post", alpha=0.25, linewidth=0)
    axes.set(xlabel="score", ylabel=f"share of seeds in {len(found.tasks)} tasks", xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    figure.savefig(file, dpi=150)
