"""Kill training ten times at random moments in each library, resume it, and compare it with an unbroken run.

    python -m benchmarks.killed --side lightning_ding                          # ten kills, seed 0, 20,000 env steps
    python -m benchmarks.killed --side skrl --python VENV/bin/python           # a side with its own interpreter
    python -m benchmarks.killed --table                                        # the table of what has been measured

A side (``benchmarks/killed_sides.py``) trains DQN on CartPole-v1 with the same settings everywhere, and saves a
checkpoint after each 1,000 env steps. It trains twice unbroken, which says whether it repeats itself at all, and once
with SIGKILL of its process group at random moments, after each of which it is started again. A moment is a number of
env steps over all starts, uniform over the budget, and a few milliseconds; the kills thus hit interaction, updates and
the writing of checkpoints as often as these take time. Env steps and updates are counted in the processes themselves,
by a wrapper of the env and by a hook of torch's optimizers (this project, which calls
Adam's kernel itself, by a callback). Results go to ``docs/results/killed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "results" / "killed.json"
BUDGET, EVERY, WARM_UP, TRAIN_EVERY = 20_000, 1_000, 1_000, 4
"""Env steps: of a run, between two checkpoints, before the first update, for each update."""
POLL = 0.002
"""Seconds between two looks at the number of env steps."""
LONGEST = 0.1
"""Seconds between the moment of a kill and the kill, at most."""
LIMIT = 900.0
"""Seconds that one start may take."""


def random_moments(kills: int, budget: int, seed: int) -> list[tuple[int, float]]:
    """Return env steps over all starts, in order and below the budget, each with seconds to wait before the kill."""
    generator = random.Random(seed)
    steps = sorted(generator.sample(range(1, budget), kills))
    return [(step, generator.uniform(0.0, LONGEST)) for step in steps]


def counted(folder: Path, name: str) -> int:
    """Return how many bytes a file of a run has, one for each step."""
    return (folder / name).stat().st_size if (folder / name).exists() else 0


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start or resume a run in its own process group."""
    log = (folder / "log.txt").open("ab")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)


def finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the end of a run.

    Raises:
        RuntimeError: If it failed.
    """
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        kill(process)
        raise RuntimeError(f"the run in {folder} took more than {LIMIT} s") from None
    if code:
        raise RuntimeError(f"the run in {folder} ended with {code}:\n{(folder / 'log.txt').read_text()[-2000:]}")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unbroken(command: Sequence[str], folder: Path) -> float:
    """Train without a break, and return the seconds."""
    folder.mkdir(parents=True)
    begun = time.perf_counter()
    finish(start(command, folder), folder)
    return time.perf_counter() - begun


def broken(command: Sequence[str], folder: Path, moments: Sequence[tuple[int, float]]) -> tuple[float, list[int]]:
    """Train with kills, and return the seconds and the env steps over all starts after each kill.

    Each start makes an env step before it is killed. A run that reaches its end earlier is not killed again.
    """
    folder.mkdir(parents=True)
    begun, killed = time.perf_counter(), list[int]()
    for step, delay in moments:
        process, before, limit = start(command, folder), counted(folder, "steps"), time.perf_counter() + LIMIT
        while counted(folder, "steps") < max(step, before + 1) and process.poll() is None:
            time.sleep(POLL)
            if time.perf_counter() > limit:
                kill(process)
                raise RuntimeError(f"a start in {folder} made no env step within {LIMIT} s")
        time.sleep(delay)
        if process.poll() is not None:
            finish(process, folder)
            return time.perf_counter() - begun, killed
        kill(process)
        killed.append(counted(folder, "steps"))
    finish(start(command, folder), folder)
    return time.perf_counter() - begun, killed


def difference(one: Path, other: Path) -> float:
    """Return the largest absolute difference of the final weights of two runs; 0 means equal to the last bit."""
    first, second = np.load(one / "weights.npy"), np.load(other / "weights.npy")
    if first.tobytes() == second.tobytes():
        return 0.0
    return float(np.abs(first.astype(np.float64) - second).max())


def starts_of(folder: Path) -> list[dict[str, Any]]:
    """Return what each start began with."""
    return [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]


def lost_by(starts: Sequence[dict[str, Any]], slack: int) -> list[str]:
    """Return what was missing after a resume, of what a run has at the env step from which it resumed.

    Args:
        starts: What each start began with.
        slack: Env steps and updates that may be missing.
    """
    lost = set()
    for row in starts:
        step, full = row["env_step"], row["updates_expected"]
        if row["buffer"] < step - slack:
            lost.add("buffer")
        if row["updates"] < full - slack:
            lost.add("optimizer")
        if abs(row["epsilon"] - row["epsilon_expected"]) > 0.02:
            lost.add("exploration")
    return sorted(lost)


def with_expectations(starts: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """Return rows of starts with the updates and the epsilon that an unbroken run has at their env steps."""
    return [
        row
        | {
            "updates_expected": max(0, row["env_step"] - WARM_UP) // TRAIN_EVERY,
            "epsilon_expected": round(max(0.05, 1.0 - 0.95 * row["env_step"] / (budget / 2)), 4),
        }
        for row in starts
    ]


def compare(command: Sequence[str], folder: Path, budget: int, every: int, kills: int, seed: int) -> dict[str, Any]:
    """Train unbroken twice and with kills, and return what differs.

    Args:
        command: Starts or resumes a run; folder, budget, env steps between checkpoints and seed are appended.
        folder: A new folder of the three runs.
        budget: Env steps of a run.
        every: Env steps between two checkpoints.
        kills: Number of kills.
        seed: Seed of the runs and of the moments.
    """
    folders = {name: folder / name for name in ("whole", "again", "killed")}
    commands = {name: [*command, str(place), str(budget), str(every), str(seed)] for name, place in folders.items()}
    seconds = unbroken(commands["whole"], folders["whole"])
    unbroken(commands["again"], folders["again"])
    seconds_killed, killed = broken(commands["killed"], folders["killed"], random_moments(kills, budget, seed))
    results = {name: json.loads((place / "result.json").read_text()) for name, place in folders.items()}
    starts = with_expectations(starts_of(folders["killed"]), budget)
    return {
        "version": results["whole"].get("version"),
        "torch": results["whole"].get("torch"),
        "budget": budget,
        "kills": len(killed),
        "killed_at": killed,
        "resumed": starts,
        "lost": lost_by(starts, slack=every // 20),
        "unreadable_checkpoints": sum(row["unreadable"] for row in starts),
        "env_steps": {name: counted(place, "steps") for name, place in folders.items()},
        "updates": {name: counted(place, "updates") for name, place in folders.items()},
        "difference_repeated": difference(folders["whole"], folders["again"]),
        "difference_killed": difference(folders["whole"], folders["killed"]),
        "return": {name: float(np.mean(result["returns"])) for name, result in results.items()},
        "seconds": {"whole": round(seconds, 1), "killed": round(seconds_killed, 1)},
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    names = ["library", "env steps made", "updates", "largest difference of a weight, repeated / killed"]
    names += ["mean return, whole / killed", "not restored", "seconds, whole / killed"]
    rows = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for side, row in results.items():
        steps, updates, mean, seconds = (row[name] for name in ("env_steps", "updates", "return", "seconds"))
        cells = [
            f"{side} {row['version']}",
            f"{steps['whole']:,} / {steps['killed']:,}",
            f"{updates['whole']:,} / {updates['killed']:,}",
            " / ".join("0 (same bits)" if x == 0.0 else f"{x:.3g}" for x in _differences(row)),
            f"{mean['whole']:.1f} / {mean['killed']:.1f}",
            ", ".join(row["lost"]) or "-",
            f"{seconds['whole']:.0f} / {seconds['killed']:.0f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _differences(row: dict[str, Any]) -> tuple[float, float]:
    return row["difference_repeated"], row["difference_killed"]


def store(file: Path, side: str, row: dict[str, Any]) -> None:
    """Add the result of a side to a file."""
    results = json.loads(file.read_text()) if file.exists() else {}
    results[side] = row
    file.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """Measure a side, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", help="a name of benchmarks.killed_sides.SIDES")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the library")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--table", action="store_true", help="print the table of --out")
    options = parser.parse_args()
    if options.side:
        folder = Path(tempfile.mkdtemp(prefix=f"killed_{options.side}_"))
        command = [options.python, "-m", "benchmarks.killed_sides", options.side]
        row = compare(command, folder, options.budget, EVERY, options.kills, options.seed)
        facts = {"command": f"python -m benchmarks.killed --side {options.side}", "seed": options.seed}
        facts |= {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "cores": os.cpu_count(), "machine": platform.machine()}
        store(options.out, options.side, facts | row)
        print(json.dumps(row))
        if not options.keep:
            shutil.rmtree(folder)
    if options.table:
        print(table(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
