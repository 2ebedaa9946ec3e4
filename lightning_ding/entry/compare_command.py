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

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_ding.config import require
from lightning_ding.entry.compare import METRIC, Comparison, compare, plot, table
from lightning_ding.entry.compare_tasks import compare_tasks, draw_profile, split_tasks, tasks_table
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line


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


def _as_json(found: Sequence[Comparison], metric: str) -> dict[str, Any]:
    runs = [{**asdict(one), "curves": [curve.folder for curve in one.curves]} for one in found]
    return {"metric": metric, "runs": runs}
