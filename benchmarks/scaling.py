"""How the cost of training grows with envs, batch, width of the network, buffer and updates, against a bare loop.

    python -m benchmarks.scaling      # writes docs/results/scaling.json and scaling.png

Each point is workload W1 (DQN on CartPole-v1) with one number changed. This project through ``Trainer.fit`` and the
bare loop run in turn in one process with one torch thread, for about as long at every point. What counts is the median
of the ratios of the turns. Before a point both run briefly, so that nothing runs for the first time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks import bare_dqn, dqn
from benchmarks.compare import provenance
from benchmarks.workload import W1, DQNWorkload

AXES: dict[str, tuple[int, ...]] = {
    "envs": (1, 8, 32, 64, 256),
    "batch": (32, 64, 256, 1024, 4096),
    "width": (64, 128, 512, 2048),
    "buffer": (10_000, 100_000, 1_000_000),
    "update_per_collect": (1, 5, 16, 64),
}
FLOPS = 1e11  # of one core and second, for the length of the runs only


def workload(axis: str, value: int, seconds: float) -> DQNWorkload:
    """Return W1 with one number changed, and as many env steps as take about ``seconds``.

    Example:
        >>> workload("width", 64, 1.0).hidden
        (64, 64, 32)
    """
    changes: dict[str, dict[str, Any]] = {
        "envs": {"num_envs": value, "warm_up": max(512, 2 * value)},
        "batch": {"batch_size": value, "warm_up": max(512, value)},
        "width": {"hidden": (value, value, value // 2)},
        "buffer": {"buffer_size": value},
        "update_per_collect": {"updates_per_round": value},
    }
    changed = dataclasses.replace(W1, **changes[axis])
    width = changed.hidden[0]
    update = 5e-4 + 8 * changed.batch_size * 1.5 * width**2 / FLOPS + 1e-8 * width**2
    rounds = max(10, int(seconds / (changed.updates_per_round * update + changed.num_envs * 1.5e-5 + 1e-3)))
    return dataclasses.replace(changed, env_steps=changed.warm_up + rounds * changed.num_envs)


def measure(axis: str, value: int, seconds: float, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of both sides in each turn, by side."""
    contestants = {"ours": dqn.run_ours, "bare loop": bare_dqn.run}
    found: dict[str, list[float]] = {name: [] for name in contestants}
    short, full = workload(axis, value, seconds / 20), workload(axis, value, seconds)
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            passed = run(full if turn else short)["seconds"]
            if turn:
                found[name].append(passed)
    return found


def ratio_of(seconds: dict[str, list[float]]) -> float:
    """Return the median of our time over the bare loop's.

    Example:
        >>> ratio_of({"ours": [1.0, 3.0, 9.0], "bare loop": [2.0, 2.0, 2.0]})
        1.5
    """
    return statistics.median(ours / bare for ours, bare in zip(seconds["ours"], seconds["bare loop"], strict=True))


def plot(points: dict[str, dict[str, Any]], file: Path) -> None:
    """Draw a figure with one panel for each number that changes."""
    import matplotlib.pyplot as plt  # takes a second

    figure, panels = plt.subplots(1, len(points), figsize=(3 * len(points), 3), sharey=True, layout="constrained")
    for panel, (axis, row) in zip(panels, points.items(), strict=True):
        values = [int(value) for value in row]
        panel.plot(values, [one["ratio"] for one in row.values()], marker="o")
        panel.axhline(1.0, color="grey", linewidth=1)
        panel.set(xscale="log", xlabel=axis, xticks=values, xticklabels=values)
        panel.minorticks_off()
        panel.tick_params(axis="x", rotation=45)
    panels[0].set(ylabel="our time / bare loop's", ylim=(0, None))
    figure.savefig(file, dpi=100)


def main() -> None:
    """Print the table, and write it with every turn to a JSON file, and draw a figure next to it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES), help="numbers to change")
    parser.add_argument("--repeats", type=int, default=3, help="number of turns")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run, about")
    parser.add_argument("--out", type=Path, default=Path("docs/results/scaling.json"), help="JSON file")
    options = parser.parse_args()
    import lightning.pytorch  # noqa: F401 - sets the level of its loggers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    points: dict[str, dict[str, Any]] = {axis: {} for axis in options.only}
    for axis in options.only:
        for value in AXES[axis]:
            seconds = measure(axis, value, options.seconds, options.repeats)
            points[axis][str(value)] = {"ratio": ratio_of(seconds), "seconds": seconds}
            print(f"{axis:>20} {value:>9,} {points[axis][str(value)]['ratio']:6.2f}", flush=True)
    options.out.write_text(json.dumps({**provenance(), "points": points}, indent=2) + "\n")
    plot(points, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
