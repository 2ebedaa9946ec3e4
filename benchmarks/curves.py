"""Draws the learning curves: figures for each env in docs/results/learning, home.svg, and the page learning.md.

    python -m benchmarks.curves

Reads what ``python -m benchmarks.learn`` wrote. Lines are interquartile means over seeds, bands are 95 % intervals by
the bootstrap, the dashed line is the required return. Each env has one figure over env steps, and one over seconds of
training, with a panel for each experiment and all implementations in it.
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

from benchmarks.intervals import number, text
from benchmarks.proofs import end_return, mean_return
from lightning_ding.entry.seed_statistics import Array, interquartile_mean, interval

LABELS = {
    "ours": "lightning_ding",
    "peer": "Stable-Baselines3, zoo",
    "sbx": "SBX, zoo",
    "tianshou": "Tianshou, examples",
}
COLOURS = {"ours": "tab:blue", "peer": "tab:orange", "sbx": "tab:red", "tianshou": "tab:green"}
POINTS = 100  # number of points of a curve
AXES = ("env steps", "seconds of training")
HOME = ("dqn_cartpole", "td3_pendulum")  # experiments of the figure on the home page
COLUMNS = 3  # panels in a row
NAMES = {"make_atari": "Pong"}
"""Names of envs that their ids do not say."""
RETURNS = {
    "CartPole-v1": (0, 500),
    "CartPoleNoVelocity-v1": (0, 500),
    "BitFlipEnv": (0, 1),
    "TMaze-v0": (-1, 1),
    "CorridorEnv": (0, 1),
    "SwitchRiddle": (-1, 1),
    **dict.fromkeys(("walker-walk", "cartpole-swingup", "cheetah-run", "reacher-easy"), (0, 1_000)),
    "Acrobot-v1": (-500, 0),
    "MountainCar-v0": (-200, -90),
    "Pendulum-v1": (-1_900, 0),
    "FetchReach-v4": (-50, 0),
    "MountainCarContinuous-v0": (-40, 100),
    "LunarLander-v3": (-400, 320),
    "LunarLanderContinuous-v3": (-400, 320),
    **dict.fromkeys(("MiniGrid-DoorKey-5x5-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-Unlock-v0"), (0, 1)),
    "TwoStepGame": (0, 8),
    "CoverGame": (-8, -1),
    "Pong": (-21, 21),
    "tictactoe_v3": (-1, 1),
    "connect_four_v3": (-1, 1),
}
"""Limits of the axis of returns, within what is possible in the env; others follow the curves."""
HEAD = (
    "| experiment | implementation | return at the end | best checkpoint | over the run | required | seeds that passed "
    "| env steps | env steps to the return | seconds to the return | seconds |\n"
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
START = "---\nhide: [toc]\n---\n\n# Learning\n"
COMMANDS = """`python -m benchmarks.learn --only EXPERIMENT --sides SIDE` makes a row; the side is `ours`, `peer` for
Stable-Baselines3, `sbx` or `tianshou`. `python -m benchmarks.curves` makes this page.

| experiment | implementation | commits |
|---|---|---|"""
NOTES = """## How to read the tables

* Experiment: an algorithm on an env, with the settings of `benchmarks/proofs.py`. Peers have the tuned settings that
  their project publishes.
* Return at the end: the result of a run. It is the mean return of the policy as it is in the last tenth of the env
  steps: of all evaluations there, each of 20 greedy episodes (10 in the DeepMind Control Suite, 100 or 200 in games of
  teams, 200 in games of two). Of all seeds, it is the interquartile mean and its 95 % interval by the bootstrap, which
  with two seeds is no more than their range. A last tenth holds three evaluations, or one or two of the runs that are
  evaluated five or ten times (`tdmpc2_pendulum`, `tqc_fetch_reach`).
* Best checkpoint: each run also keeps the policy of its best evaluation. The return is the mean of 100 other greedy
  episodes of that policy, or of 20 for older runs, which have no `n_test` in the JSON file; none of them was used to
  choose it.
* Over the run: the area under the curve divided by its env steps, which says how soon a run was good, and for how
  long. Of all seeds, it is the interquartile mean.
* The JSON files in `docs/results/learn` have the curve of each seed, and the return of its best checkpoint as `best`.
* Seeds that passed: seeds whose return at the end is at least the required one. If the required return is "below" a
  number, seeds whose return is less: these experiments leave out what the env needs, which is a memory, or hindsight
  (`dqn_bitflip`), or a reward model (`dqn_mountaincar`).
* Env steps and seconds to the return: median over the seeds, up to the first evaluation that has at least the
  required return. A dash: at least half of the seeds never had it.
* Seconds: median of the whole run. The time of evaluations is not counted.
* Figures: lines are interquartile means over seeds, bands their 95 % intervals, the dashed line is the required return.
* A `+` after a commit: the tree had uncommitted changes."""


def band(runs: Sequence[Any], axis: int) -> tuple[Array, Array, Array, Array]:
    """Return places, interquartile means, and both ends of the 95 % intervals, where every run has a curve.

    Args:
        runs: Each with a ``curve`` of (env step, seconds, return).
        axis: 0 for env steps, 1 for seconds.
    """
    curves: list[Array] = [np.array(run["curve"], dtype=float) for run in runs]
    start, end = max(curve[0, axis] for curve in curves), min(curve[-1, axis] for curve in curves)
    places = np.linspace(start, max(start, end), POINTS)
    values = np.stack([np.interp(places, curve[:, axis], curve[:, 2]) for curve in curves])
    return places, interquartile_mean(values, axis=0), *interval(values)


def short_name(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> str:
    """Return the name of an env without the module that registers it; that of the task where an id has several."""
    name = env_id.rpartition(":")[2].rpartition(".")[2]
    if env_kwargs and "task_name" in env_kwargs:
        return f"{env_kwargs['domain_name']}-{env_kwargs['task_name']}"
    if env_kwargs and name == "MinAtarEnv":
        return f"MinAtar-{env_kwargs['game'].title().replace('_', '')}"
    return NAMES.get(name, name)


def env_of(record: Mapping[str, Any]) -> str:
    """Return the short name of an experiment's env."""
    return short_name(record["env_id"], record.get("env_kwargs"))


def by_env(records: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the experiments of each env, by its short name."""
    groups: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        groups.setdefault(env_of(record), {})[name] = record
    return dict(sorted(groups.items()))


def limits(env: str, bands: Sequence[tuple[Array, Array, Array, Array]]) -> tuple[float, float] | None:
    """Return the limits of the axis of returns: those of ``RETURNS``, extended to the lowest return that is drawn.

    Args:
        env: Short name of the env.
        bands: Results of ``band`` for the lines of the figure.

    Returns:
        The lowest and the highest return of the axis; None for an env without limits.
    """
    if env not in RETURNS:
        return None
    low, high = RETURNS[env]
    return min([low, *(float(one[2].min()) for one in bands)]), high


def draw(panels: Sequence[tuple[str, Any]], axis: int, file: Path) -> None:
    """Draw experiments with the peers in them.

    Args:
        panels: Name and record of the experiment of each panel.
        axis: 0 for env steps, 1 for seconds.
        file: File of the figure, with the ending .svg.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (1 + 3.4 * columns, 0.6 + 2.3 * rows)
    lines: dict[str, Any] = {}
    with plt.rc_context({"svg.hashsalt": "0", "svg.fonttype": "none"}):  # the same file each time; text is text
        figure, places = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for panel, (name, record) in zip(places.flat, panels, strict=False):
            bands = {side: band(record[side]["runs"], axis) for side in sides_of(record)}
            for side, (at, centre, low, high) in bands.items():
                (lines[LABELS[side]],) = panel.plot(at, centre, color=COLOURS[side], clip_on=False)
                panel.fill_between(at, low, high, color=COLOURS[side], alpha=0.2, linewidth=0)
            panel.axhline(record["bar"], color="black", linestyle="--", linewidth=0.8)
            returns = limits(env_of(record), list(bands.values()))
            panel.set(title=name, xlabel=AXES[axis], xlim=(0, None), ylim=returns)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        for panel in places.flat[len(panels) :]:
            panel.set_axis_off()
        for row_of_panels in places:
            row_of_panels[0].set_ylabel("return of greedy episodes")
        figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(lines))
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def sides_of(record: dict[str, Any]) -> list[str]:
    """Return which sides were run."""
    return [side for side in LABELS if side in record]


def time_to(bar: float, curve: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return env steps and seconds of the first evaluation that reached the bar; infinity if none did."""
    return next(((step, seconds) for step, seconds, score in curve if score >= bar), (math.inf, math.inf))


def passed(record: dict[str, Any], side: str) -> int:
    """Return the number of seeds whose policy at the end has the required return."""
    bar, is_ceiling = record["bar"], record.get("is_ceiling", False)
    return sum((end_return(run) >= bar) != is_ceiling for run in record[side]["runs"])


def page(records: Mapping[str, Any]) -> str:
    """Return the page: how many experiments passed, the figures and tables of all envs, and the commits."""
    parts = [START, summary(records)]
    for env, group in by_env(records).items():
        rows = [row(name, record, side) for name, record in group.items() for side in sides_of(record)]
        more = f"Over seconds of training: [{env}-seconds.svg](learning/{env}-seconds.svg)."
        figure = f"![returns over env steps](learning/{env}.svg)"
        parts += [f"\n## {env}\n\n{figure}\n", "\n".join([HEAD, *rows]), f"\n{more}"]
    return "\n".join([*parts, f"\n{NOTES}\n\n## Commands\n\n{COMMANDS}", *commits(records)]) + "\n"


def summary(records: Mapping[str, Any]) -> str:
    """Return in how many experiments all seeds of this project passed, with a table by env."""
    rows, whole, number_of_runs = [], 0, 0
    for env, group in by_env(records).items():
        ours = {name: record for name, record in group.items() if "ours" in record}
        seeds = {name: (passed(record, "ours"), len(record["ours"]["runs"])) for name, record in ours.items()}
        short = [f"{name} ({some} of {every})" for name, (some, every) in seeds.items() if some < every]
        rows.append(f"| [{env}](#{env.lower()}) | {len(ours)} | {len(ours) - len(short)} | {', '.join(short)} |")
        whole += len(ours) - len(short)
        number_of_runs += sum(every for _, every in seeds.values())
    count = sum("ours" in record for record in records.values())
    first = (
        f"In {whole} of {count} experiments, every seed passed: its policy at the end has the required "
        f"return. These are {number_of_runs} runs of this project. [Against peers](versus.md) compares them with "
        "those of other libraries."
    )
    head = "| env | experiments | every seed passed | not every seed |\n|---|--:|--:|---|"
    return "\n".join([first, "", head, *rows])


def row(name: str, record: dict[str, Any], side: str) -> str:
    """Return one line of the table."""
    runs, bar, is_ceiling = record[side]["runs"], record["bar"], record.get("is_ceiling", False)
    steps, seconds = (
        statistics.median(values) for values in zip(*(time_to(bar, r["curve"]) for r in runs), strict=True)
    )
    cells = [name, LABELS[side], text([end_return(run) for run in runs]), text([run["best"] for run in runs])]
    cells += [
        number(interquartile_mean([mean_return(run) for run in runs])),
        f"{'below ' if is_ceiling else ''}{bar:g}",
        f"{passed(record, side)} of {len(runs)}",
        f"{record['budget']:,}",
    ]
    cells += [f"{steps:,.0f}" if math.isfinite(steps) else "-", f"{seconds:,.1f}" if math.isfinite(seconds) else "-"]
    cells += [f"{statistics.median(run['seconds'] for run in runs):,.1f}"]
    return f"| {' | '.join(cells)} |"


def commits(records: Mapping[str, Any]) -> Iterator[str]:
    """Yield the commits of each row of the tables; the JSON files have the command, time and machine of each run."""
    for name, record in records.items():
        for side in sides_of(record):
            made: dict[str, list[str]] = {}
            for run in record[side]["runs"]:
                made.setdefault(run["commit"], []).append(str(run["seed"]))
            parts = [f"{commit} (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" for commit, seeds in made.items()]
            shown = "; ".join(parts) if len(made) > 1 else next(iter(made))
            yield f"| {name} | {LABELS[side]} | {shown} |"


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
            draw(list(group.items()), axis, options.out / "learning" / f"{env}{ending}.svg")
    if set(HOME) <= set(records):
        draw([(name, records[name]) for name in HOME], 0, options.out / "home.svg")
    (options.out / "learning.md").write_text(page(records))


if __name__ == "__main__":
    main()
