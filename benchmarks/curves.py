"""Draws the learning curves: docs/results/learning.png, home.png (two of them), and the table docs/results/learning.md.

    python -m benchmarks.curves

Reads what ``python -m benchmarks.learn`` wrote. Lines are means over seeds, bands are 95 % confidence intervals of the
mean by Student's t, the dashed line is the required return.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 0.975, of 1, 2, ... degrees of freedom
LABELS = {"ours": "lightning_ding", "peer": "Stable-Baselines3, zoo", "tianshou": "Tianshou, examples"}
COLOURS = {"ours": "tab:blue", "peer": "tab:orange", "tianshou": "tab:green"}
POINTS = 100  # number of points of a curve
HOME = ("dqn_cartpole", "td3_pendulum")  # experiments of the figure on the home page
AXES = ((0, "env steps"), (1, "seconds of training"))


def band(runs: Sequence[Any], axis: int) -> tuple[Array, Array, Array]:
    """Return places, means and half the widths of the 95 % intervals, where every run has a curve.

    Args:
        runs: Each with a ``curve`` of (env step, seconds, return).
        axis: 0 for env steps, 1 for seconds.
    """
    curves = [np.array(run["curve"], dtype=float) for run in runs]
    start, end = max(curve[0, axis] for curve in curves), min(curve[-1, axis] for curve in curves)
    places = np.linspace(start, max(start, end), POINTS)
    values = np.stack([np.interp(places, curve[:, axis], curve[:, 2]) for curve in curves])
    if len(curves) == 1:
        return places, values[0], np.zeros(POINTS)
    quantile = T_QUANTILES[len(curves) - 2] if len(curves) - 2 < len(T_QUANTILES) else 1.96
    return places, values.mean(0), quantile * values.std(0, ddof=1) / math.sqrt(len(curves))


def draw(records: dict[str, Any], file: Path) -> None:
    """Draw two panels for each experiment, two experiments in a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = math.ceil(len(records) / 2)
    figure, panels = plt.subplots(rows, 4, figsize=(16, 2.8 * rows), squeeze=False, layout="constrained")
    for panel in panels.flat[2 * len(records) :]:
        panel.set_axis_off()
    lines: dict[str, Any] = {}
    for number, (name, record) in enumerate(records.items()):
        for axis, label in AXES:
            panel = panels.flat[2 * number + axis]
            for side in sides_of(record):
                places, mean, half = band(record[side]["runs"], axis)
                (lines[LABELS[side]],) = panel.plot(places, mean, color=COLOURS[side])
                panel.fill_between(places, mean - half, mean + half, color=COLOURS[side], alpha=0.2, linewidth=0)
            panel.axhline(record["bar"], color="black", linestyle="--", linewidth=0.8)
            panel.set(title=name.replace("_", ", "), xlabel=label, xlim=(0, None))
        panels.flat[2 * number].set_ylabel("return of greedy episodes")
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(lines))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80, metadata={"Software": None})
    plt.close(figure)


def sides_of(record: dict[str, Any]) -> list[str]:
    """Return which sides were run."""
    return [side for side in LABELS if side in record]


def time_to(bar: float, curve: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return env steps and seconds of the first evaluation that reached the bar; infinity if none did."""
    return next(((step, seconds) for step, seconds, score in curve if score >= bar), (math.inf, math.inf))


def table(records: dict[str, Any]) -> str:
    """Return the page with the table of all experiments."""
    head = (
        "| experiment | required return | env steps | implementation | best policy, by seed | seeds that passed "
        "| env steps to the return | seconds to the return | total seconds |"
    )
    lines = ["# Learning", "", "![curves](learning.png)", "", head, "|---|--:|--:|---|---|--:|--:|--:|--:|"]
    for name, record in records.items():
        lines += [row(name, record, side) for side in sides_of(record)]
    lines += [
        "",
        "Best policy: mean return of the best policy over 20 greedy episodes that were not used to choose it. Seeds "
        "that passed: seeds whose best policy has at least the required return; with A2C's defaults, the last "
        "evaluation must also reach `end_bar` of `benchmarks/proofs.py`; where the required return is below a number, "
        "those whose best policy has less, because the algorithm has no memory and the env needs one. Env steps and "
        "seconds to the return: median "
        "over the seeds, up to the first evaluation, of 20 greedy episodes, that has at least the required return; the "
        "time of evaluations is not counted. Shaded in the curves: 95 % confidence interval of the mean over seeds "
        "(Student's t). A dash: at least half of the seeds never had the required return. A `+` after a commit: the "
        "tree had uncommitted changes.",
        "",
        "## Commands",
        "",
        *commands(records),
    ]
    return "\n".join(lines) + "\n"


def row(name: str, record: dict[str, Any], side: str) -> str:
    """Return one line of the table."""
    runs, bar, is_ceiling = record[side]["runs"], record["bar"], record.get("is_ceiling", False)
    finals = [run["final"] for run in runs]
    steps, seconds = (
        statistics.median(values) for values in zip(*(time_to(bar, r["curve"]) for r in runs), strict=True)
    )
    cells = [name, f"{'below ' if is_ceiling else ''}{bar:g}", f"{record['budget']:,}", LABELS[side]]
    cells += [", ".join(f"{final:.1f}" for final in finals)]
    end_bar = record.get("end_bar", -math.inf)
    reached = sum((run["final"] >= bar) != is_ceiling and run["curve"][-1][2] >= end_bar for run in runs)
    cells += [f"{reached} of {len(finals)}"]
    cells += [f"{steps:,.0f}" if math.isfinite(steps) else "-", f"{seconds:,.1f}" if math.isfinite(seconds) else "-"]
    cells += [f"{statistics.median(run['seconds'] for run in runs):,.1f}"]
    return f"| {' | '.join(cells)} |"


def commands(records: dict[str, Any]) -> Iterator[str]:
    """Yield the command of each run."""
    for name, record in records.items():
        for side in sides_of(record):
            hows: dict[str, list[str]] = {}
            for run in record[side]["runs"]:
                how = f"`{run['command']}`, commit {run['commit']}, {run['machine']}, {run['time']}"
                hows.setdefault(how, []).append(str(run["seed"]))
            for how, seeds in hows.items():
                yield f"* {name}, {LABELS[side]}, seed {' and '.join(seeds)}: {how}"


def main() -> None:
    """Read the JSON files, and write the page and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results/learn"), help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the page and the table")
    options = parser.parse_args()
    files = sorted(options.results.glob("*.json"))
    if not files:
        parser.error(f"no results in {options.results}: run python -m benchmarks.learn")
    records = {file.stem: json.loads(file.read_text()) for file in files}
    draw(records, options.out / "learning.png")
    if set(HOME) <= set(records):
        draw({name: records[name] for name in HOME}, options.out / "home.png")
    (options.out / "learning.md").write_text(table(records))


if __name__ == "__main__":
    main()
