"""Draws the learning curves: a figure for each env in docs/results/learning, home.png, and the page learning.md.

    python -m benchmarks.curves

Reads what ``python -m benchmarks.learn`` wrote. Lines are interquartile means over seeds, bands are 95 % intervals by
the bootstrap, the dashed line is the required return. Each env has one figure over env steps, and one over seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.intervals import Array, interquartile_mean, interval, number, text

LABELS = {"ours": "lightning_ding", "peer": "Stable-Baselines3, zoo", "tianshou": "Tianshou, examples"}
COLOURS = {"ours": "tab:blue", "peer": "tab:orange", "tianshou": "tab:green"}
POINTS = 100  # number of points of a curve
AXES = ("env steps", "seconds of training")
HOME = ("dqn_cartpole", "td3_pendulum")  # experiments of the figure on the home page
COLUMNS = 4  # panels in a row
RETURNS = {
    "CartPole-v1": (0, 500),
    "CartPoleNoVelocity-v1": (0, 500),
    "BitFlipEnv": (0, 1),
    "Acrobot-v1": (-500, 0),
    "MountainCar-v0": (-200, -90),
    "Pendulum-v1": (-1_700, 0),
    "LunarLander-v3": (-400, 320),
    "LunarLanderContinuous-v3": (-400, 320),
    "MiniGrid-DoorKey-5x5-v0": (0, 1),
    "make_atari": (-21, 21),  # Pong
    "tictactoe_v3": (-1, 1),
    "connect_four_v3": (-1, 1),
}
"""Limits of the axis of returns, within what is possible in the env; others follow the curves."""
HEAD = (
    "| experiment | required return | env steps | implementation | best policy, all seeds | best policy, by seed "
    "| seeds that passed | env steps to the return | seconds to the return | total seconds |\n"
    "|---|--:|--:|---|--:|---|--:|--:|--:|--:|"
)
NOTES = (
    "Best policy: mean return of the best policy over 20 greedy episodes that were not used to choose it; of all "
    "seeds, the interquartile mean and its 95 % interval by the bootstrap. Seeds that passed: seeds whose best policy "
    "has at least the required return; with A2C's defaults, the last evaluation must also reach `end_bar` of "
    "`benchmarks/proofs.py`; where the required return is below a number, those whose best policy has less, because "
    "the algorithm has no memory and the env needs one. Env steps and seconds to the return: median over the seeds, "
    "up to the first evaluation, of 20 greedy episodes, that has at least the required return; the time of evaluations "
    "is not counted. Lines of the curves: interquartile means over seeds; bands: their 95 % intervals. A dash: at "
    "least half of the seeds never had the required return. A `+` after a commit: the tree had uncommitted changes."
)


def band(runs: Sequence[Any], axis: int) -> tuple[Array, Array, Array, Array]:
    """Return places, interquartile means, and both ends of the 95 % intervals, where every run has a curve.

    Args:
        runs: Each with a ``curve`` of (env step, seconds, return).
        axis: 0 for env steps, 1 for seconds.
    """
    curves = [np.array(run["curve"], dtype=float) for run in runs]
    start, end = max(curve[0, axis] for curve in curves), min(curve[-1, axis] for curve in curves)
    places = np.linspace(start, max(start, end), POINTS)
    values = np.stack([np.interp(places, curve[:, axis], curve[:, 2]) for curve in curves])
    return places, interquartile_mean(values), *interval(values)


def short_name(env_id: str) -> str:
    """Return the name of an env without the module that registers it."""
    return env_id.rpartition(":")[2].rpartition(".")[2]


def by_env(records: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the experiments of each env, by its short name."""
    groups: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        groups.setdefault(short_name(record["env_id"]), {})[name] = record
    return dict(sorted(groups.items()))


def draw(panels: Sequence[tuple[str, Any, int]], file: Path) -> None:
    """Draw experiments with the peers in them.

    Args:
        panels: Name and record of the experiment of each panel, and the axis of ``band``.
        file: File of the figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (1 + 3.4 * columns, 0.6 + 2.6 * rows)
    figure, places = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    lines: dict[str, Any] = {}
    for panel, (name, record, axis) in zip(places.flat, panels, strict=False):
        for side in sides_of(record):
            at, centre, low, high = band(record[side]["runs"], axis)
            (lines[LABELS[side]],) = panel.plot(at, centre, color=COLOURS[side], clip_on=False)
            panel.fill_between(at, low, high, color=COLOURS[side], alpha=0.2, linewidth=0)
        panel.axhline(record["bar"], color="black", linestyle="--", linewidth=0.8)
        panel.set(title=name, xlabel=AXES[axis], xlim=(0, None), ylim=RETURNS.get(short_name(record["env_id"])))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    for panel in places.flat[len(panels) :]:
        panel.set_axis_off()
    for row_of_panels in places:
        row_of_panels[0].set_ylabel("return of greedy episodes")
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


def table(records: Mapping[str, Any]) -> str:
    """Return the page with the figures and tables of all envs."""
    lines = ["# Learning", "", NOTES]
    for env, group in by_env(records).items():
        lines += ["", f"## {env}", "", f"![returns over env steps](learning/{env}.png)", "", HEAD]
        lines += [row(name, record, side) for name, record in group.items() for side in sides_of(record)]
        lines += ["", f"Over seconds of training: [{env}-seconds.png](learning/{env}-seconds.png)."]
    return "\n".join([*lines, "", "## Commands", "", *commands(records)]) + "\n"


def row(name: str, record: dict[str, Any], side: str) -> str:
    """Return one line of the table."""
    runs, bar, is_ceiling = record[side]["runs"], record["bar"], record.get("is_ceiling", False)
    finals = [run["final"] for run in runs]
    steps, seconds = (
        statistics.median(values) for values in zip(*(time_to(bar, r["curve"]) for r in runs), strict=True)
    )
    cells = [name, f"{'below ' if is_ceiling else ''}{bar:g}", f"{record['budget']:,}", LABELS[side]]
    cells += [text(finals), ", ".join(map(number, finals))]
    end_bar = record.get("end_bar", -math.inf)
    reached = sum((run["final"] >= bar) != is_ceiling and run["curve"][-1][2] >= end_bar for run in runs)
    cells += [f"{reached} of {len(finals)}"]
    cells += [f"{steps:,.0f}" if math.isfinite(steps) else "-", f"{seconds:,.1f}" if math.isfinite(seconds) else "-"]
    cells += [f"{statistics.median(run['seconds'] for run in runs):,.1f}"]
    return f"| {' | '.join(cells)} |"


def commands(records: Mapping[str, Any]) -> Iterator[str]:
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
    """Read the JSON files, and write the page and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results/learn"), help="folder of the JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the page and the figures")
    options = parser.parse_args()
    files = sorted(options.results.glob("*.json"))
    if not files:
        parser.error(f"no results in {options.results}: run python -m benchmarks.learn")
    records = {file.stem: json.loads(file.read_text()) for file in files}
    for env, group in by_env(records).items():
        for axis, ending in enumerate(("", "-seconds")):
            draw([(name, one, axis) for name, one in group.items()], options.out / "learning" / f"{env}{ending}.png")
    if set(HOME) <= set(records):
        draw([(name, records[name], axis) for name in HOME for axis in (0, 1)], options.out / "home.png")
    (options.out / "learning.md").write_text(table(records))


if __name__ == "__main__":
    main()
