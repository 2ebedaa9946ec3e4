"""Running contestants in turn, one process each, and comparing them.

Times on a shared machine are noisy, so the contestants take turns, and what counts is the ratio of medians.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Result = dict[str, float]
ROOT = Path(__file__).parents[1]


def measure(run: Callable[[], Result]) -> Result:
    """Return what ``run`` reports, with the peak memory of this process in MiB.

    Args:
        run: Trains, and returns ``seconds``, ``env_steps`` and ``updates``.
    """
    result = run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = result["seconds"]
    speed = {"env_steps_per_second": result["env_steps"] / seconds, "updates_per_second": result["updates"] / seconds}
    return {**result, **speed, "peak_mib": peak}


def in_turn(command: Sequence[str], contestants: Sequence[str], repeats: int) -> dict[str, list[Result]]:
    """Run ``python -m COMMAND --run NAME`` for each contestant in turn, ``repeats`` times over."""
    results: dict[str, list[Result]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name in contestants:
            done = subprocess.run([sys.executable, "-m", *command, "--run", name], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name} failed:\n{done.stderr}")
            results[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{name:>14}: {results[name][-1]['seconds']:6.2f} s", flush=True)
    return results


def medians_of(results: dict[str, list[Result]]) -> dict[str, Result]:
    """Return the median of every number of each contestant."""
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()
    }


def report(results: dict[str, list[Result]], baseline: str, file: Path) -> None:
    """Print medians and the ratios of times to the baseline's, and write everything to a JSON file."""
    medians = medians_of(results)
    print(f"\n{'':>14} {'wall s':>8} {'ratio':>6} {'env steps/s':>12} {'updates/s':>10} {'peak MiB':>9}")
    for name, row in medians.items():
        ratio = row["seconds"] / medians[baseline]["seconds"]
        print(
            f"{name:>14} {row['seconds']:8.2f} {ratio:6.2f} {row['env_steps_per_second']:12,.0f} "
            f"{row['updates_per_second']:10,.0f} {row['peak_mib']:9,.0f}"
        )
    save(results, file, baseline=baseline)


def save(results: dict[str, list[Result]], file: Path, **more: Any) -> None:
    """Write every run, the medians, and how and when they were measured, to a JSON file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**provenance(), **more, "medians": medians_of(results), "runs": results}, indent=2))
    print(f"\nwritten to {file}")


def provenance() -> dict[str, str]:
    """Return by which command, when and on what something was measured."""
    command = shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    record = {"command": command, "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    return record | {"commit": commit(), "machine": machine(), "python": platform.python_version()}


def commit() -> str:
    """Return the commit of the working tree, with a plus if something in it was changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT).stdout.strip()

    folders = ("lightning_ding", ":!lightning_ding/zoo", "callbacks", "datamodules", "recipes")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *folders)
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def machine() -> str:
    """Return the name of the processor and the number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"
