"""Tables of docs/results.md from the runs in docs/results/teams.json: returns of teams, with intervals over seeds.

    python -m benchmarks.teams_table

A row has the interquartile mean over seeds, its 95 % interval by the bootstrap, and the medians of the CPU seconds and
the wall clock of training. CPU seconds of EPyMARL count the processes of its envs too.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_ding.entry.seed_statistics import interquartile_mean, interval

FILE = Path("docs/results/teams.json")
NAMES = {"ours": "this project", "benchmarl": "BenchMARL", "epymarl": "EPyMARL"}
TITLES = ("game", "algorithm", "library", "seeds", "return", "CPU s", "wall s")
Run = dict[str, Any]


def table(runs: Iterable[Run]) -> str:
    """Return a row for each game, algorithm and library, as Markdown.

    Args:
        runs: Lines of ``benchmarks.teams`` and ``benchmarks.teams_epymarl``; those without a return are left out.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if "return" in run:
            groups.setdefault((run["task"], run["algorithm"], library(run)), []).append(run)
    rows = [
        [*key, str(len(group)), with_interval([run["return"] for run in group]), *cost(group)]
        for key, group in sorted(groups.items())
    ]
    return _markdown([TITLES, *rows])


def tag_table(runs: Iterable[Run]) -> str:
    """Return the mean returns of a predator and of the prey in the four kinds of episodes, as Markdown.

    Args:
        runs: As in ``table``; those without ``returns`` are left out.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if "returns" in run:
            groups.setdefault(library(run), []).append(run)
    rows = [("library", "seeds", "episodes of", "a predator", "the prey", "CPU s", "wall s")]
    for name, group in sorted(groups.items()):
        for kind in group[0]["returns"]:
            values = [[run["returns"][kind][side] for run in group] for side in ("predators", "prey")]
            rows.append((name, str(len(group)), kind, *map(with_interval, values), *cost(group)))
    return _markdown(rows)


def library(run: Run) -> str:
    """Return the name of the library of a run, and what was special about it."""
    return NAMES[run["side"]] + (", one seed for all envs" if run.get("one_seed") else "")


def with_interval(values: Sequence[float]) -> str:
    """Return an interquartile mean with its interval; the values themselves if there are fewer than three."""
    if len(values) < 3:
        return ", ".join(f"{value:.1f}" for value in values)
    low, high = interval(values)
    return f"{interquartile_mean(values):.1f} [{low:.1f}, {high:.1f}]"


def cost(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the medians of CPU seconds and of the wall clock of training."""
    cpu = statistics.median(run["cpu_s"] + run.get("cpu_s_of_envs", 0.0) for run in runs)
    return f"{cpu:.0f}", f"{statistics.median(run['wall_s'] for run in runs):.0f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def main() -> None:
    """Print both tables."""
    runs = json.loads(FILE.read_text())["returns"]
    print(table(runs), tag_table(runs), sep="\n\n")


if __name__ == "__main__":
    main()
