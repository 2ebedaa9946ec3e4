"""Kill training ten times at random moments in each library, resume it, and compare it with an unbroken run.

    python -m benchmarks.killed --side lightning_ding                          # ten kills, seed 0, 20,000 env steps
    VENV/bin/python -m benchmarks.killed --side skrl                           # with an interpreter that has skrl
    python -m benchmarks.killed --table                                        # the table of what has been measured

A side (``benchmarks/killed_sides.py``) trains DQN on CartPole-v1 with the same settings everywhere, and saves a
checkpoint after each 1,000 env steps. It trains twice unbroken, which says whether it repeats itself at all, and once
with SIGKILL of its process group at random moments, after each of which it is started again. A moment is a number of
env steps over all starts, uniform over the budget, and a few milliseconds; the kills thus hit interaction, updates and
the writing of checkpoints as often as these take time. Each start is forked from a process that has imported the
library, so that the seconds do not contain the imports. Env steps and updates are counted in the processes themselves,
by a wrapper of the env and by a hook of torch's optimizers (this project, which calls
Adam's kernel itself, by a callback). Results go to ``docs/results/killed.json``.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import killed_sides
from benchmarks.killed_job import Job

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
FORK = multiprocessing.get_context("fork")
Run = multiprocessing.context.ForkProcess
Train = Callable[[Path], None]
"""Starts or resumes a run in a folder."""


def random_moments(kills: int, budget: int, seed: int) -> list[tuple[int, float]]:
    """Return env steps over all starts, in order and below the budget, each with seconds to wait before the kill."""
    generator = random.Random(seed)
    steps = sorted(generator.sample(range(1, budget), kills))
    return [(step, generator.uniform(0.0, LONGEST)) for step in steps]


def counted(folder: Path, name: str) -> int:
    """Return how many bytes a file of a run has, one for each step."""
    return (folder / name).stat().st_size if (folder / name).exists() else 0


@contextmanager
def started(train: Train, folder: Path) -> Iterator[Run]:
    """Start or resume a run in a forked process with its own process group, which does not outlive the block."""
    run = FORK.Process(target=_train, args=(train, folder))
    run.start()
    try:
        yield run
    finally:
        if run.exitcode is None and run.pid is not None:
            with suppress(ProcessLookupError):  # it has ended, or does not have its group yet
                os.killpg(run.pid, signal.SIGKILL)
            run.kill()
            run.join()


def _train(train: Train, folder: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = (folder / "log.txt").open("a", buffering=1)
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    sys.stdout = sys.stderr = log
    train(folder)


def finish(process: Run, folder: Path) -> None:
    """Wait for the end of a run.

    Raises:
        RuntimeError: If it failed, or takes more than ``LIMIT``.
    """
    process.join(LIMIT)
    code = process.exitcode
    if code != 0:
        raise RuntimeError(f"the run in {folder} ended with {code}:\n{(folder / 'log.txt').read_text()[-2000:]}")


def unbroken(train: Train, folder: Path) -> float:
    """Train without a break, unless the folder has the result of that, and return the seconds."""
    kept = folder / "seconds.txt"
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        begun = time.perf_counter()
        with started(train, folder) as process:
            finish(process, folder)
        kept.write_text(str(time.perf_counter() - begun))
    return float(kept.read_text())


def broken(train: Train, folder: Path, moments: Sequence[tuple[int, float]]) -> tuple[float, list[int]]:
    """Train with kills, and return the seconds and the env steps over all starts after each kill.

    Each start makes an env step before it is killed. A run that reaches its end earlier is not killed again.

    Raises:
        RuntimeError: If a start fails, or makes no env step within ``LIMIT``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun, killed = time.perf_counter(), list[int]()
    for step, delay in [*moments, (sys.maxsize, 0.0)]:
        before = counted(folder, "steps")
        with started(train, folder) as process:
            _wait_for(max(step, before + 1), process, folder)
            time.sleep(delay)
            if not process.is_alive():
                finish(process, folder)
                break
        killed.append(counted(folder, "steps"))
    return time.perf_counter() - begun, killed


def _wait_for(step: int, process: Run, folder: Path) -> None:
    limit = time.perf_counter() + LIMIT
    while counted(folder, "steps") < step and process.is_alive():
        if time.perf_counter() > limit:
            raise RuntimeError(f"a start in {folder} took more than {LIMIT} s")
        time.sleep(POLL)


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
    """Return what was missing after a resume, of what the run had when the checkpoint was saved.

    Args:
        starts: Rows of ``with_expectations``.
        slack: Env steps and updates that may be missing.
    """
    lost = set()
    for row in starts:
        if row["buffer"] < row["env_step"] - slack:
            lost.add("buffer")
        if row["updates"] < row["updates_expected"] - slack:
            lost.add("optimizer")
    return sorted(lost)


def with_expectations(starts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the starts, each with the number of updates that its optimizer must have: ``updates_expected``.

    These are the updates at the start before, and those that were due until this one. So updates that an earlier start
    skipped, because its buffer was empty, do not count as lost.

    Args:
        starts: Env step, transitions in the buffer and updates of the optimizer with which each start began.
    """
    rows, before = [], {"env_step": 0, "updates": 0}
    for row in starts:
        since = _updates_until(row["env_step"]) - _updates_until(before["env_step"])
        rows.append(row | {"updates_expected": before["updates"] + since})
        before = row
    return rows


def _updates_until(step: int) -> int:
    return max(0, step - WARM_UP) // TRAIN_EVERY


def compare(train: Train, folder: Path, budget: int, every: int, kills: int, seed: int) -> dict[str, Any]:
    """Train unbroken twice and with kills, and return what differs.

    Args:
        train: Starts or resumes a run in a folder.
        folder: The folder of the three runs. Finished unbroken runs in it are used.
        budget: Env steps of a run.
        every: Env steps between two checkpoints.
        kills: Number of kills.
        seed: Seed of the runs and of the moments.
    """
    folders = {name: folder / name for name in ("whole", "again", "killed")}
    seconds = unbroken(train, folders["whole"])
    unbroken(train, folders["again"])
    seconds_killed, killed = broken(train, folders["killed"], random_moments(kills, budget, seed))
    results = {name: json.loads((place / "result.json").read_text()) for name, place in folders.items()}
    starts = with_expectations(starts_of(folders["killed"]))
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
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--folder", type=Path, help="keep the runs in it, and use the unbroken ones that it has")
    parser.add_argument("--table", action="store_true", help="print the table of --out")
    options = parser.parse_args()
    if options.side:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no process of a run is left
        folder = options.folder or Path(tempfile.mkdtemp(prefix=f"killed_{options.side}_"))
        killed_sides.load(options.side)
        job = Job(folder, options.budget, EVERY, options.seed)
        train = functools.partial(killed_sides.train, options.side, job)
        row = compare(train, folder, options.budget, EVERY, options.kills, options.seed)
        facts = {"command": f"python -m benchmarks.killed --side {options.side}", "seed": options.seed}
        facts |= {"time": time.strftime("%Y-%m-%d %H:%M:%S"), "cores": os.cpu_count(), "machine": platform.machine()}
        store(options.out, options.side, facts | row)
        print(json.dumps(row))
        if not options.folder:
            shutil.rmtree(folder)
    if options.table:
        print(table(json.loads(options.out.read_text())))


if __name__ == "__main__":
    main()
