"""A user's first hour: whether the tasks of a new user work from a clean clone, and how long each takes.

    python -m benchmarks.first_hour                                     # all tasks; prints a table in Markdown
    python -m benchmarks.first_hour --only own_env export               # some of them
    python -m benchmarks.first_hour --out docs/results/first_hour.md    # writes the page

The last commit is cloned. Each task of ``benchmarks/first_hour_tasks.py`` runs in a new folder and a new process, with
the packages of this Python and the code of the clone: its Python blocks in their order, and its commands as processes.
The seconds are those of the task from start to end, with all imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.compare import provenance
from benchmarks.first_hour_tasks import TASKS, Task
from benchmarks.learn import commit
from tests.docs.pages import NOT_RUN, NOT_TESTED, Block, blocks_of

ROOT = Path(__file__).parents[1]
LIMIT = 600  # seconds until a task has failed
START = """import subprocess
from pathlib import Path


def run(command):
    print("$", command, flush=True)
    subprocess.run(command, shell=True, check=True)


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
"""
HEAD = "| name | task | guide | what runs | seconds |\n|---|---|---|---|--:|"


@dataclass(frozen=True)
class Outcome:
    """How a task ended."""

    seconds: float
    state: str
    """``works``, ``failed``, or why it did not run."""


def commands_of(block: Block) -> list[str]:
    """Return the commands of a block that a reader runs, each in one line."""
    if block.language != "bash" or NOT_TESTED.match(block.code):
        return []
    lines = [shlex.join(shlex.split(line, comments=True)) for line in block.code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and line.split()[0] not in NOT_RUN]


def script_of(blocks: Iterable[Block]) -> str:
    """Return a script that does what a reader of the blocks does.

    Args:
        blocks: Blocks of a page, in their order.
    """
    parts = [START]
    for block in blocks:
        if block.file is not None:
            parts.append(f"write({block.file!r}, {block.code!r})\n")
        elif block.language == "python" and not NOT_TESTED.match(block.code):
            parts.append(block.code)
        parts += [f"run({command!r})\n" for command in commands_of(block)]
    return "\n".join(parts)


def what_runs(blocks: Iterable[Block]) -> str:
    """Return the last command of the blocks, the number of the others, and the lines of Python.

    Args:
        blocks: Blocks of a page, in their order.
    """
    blocks = list(blocks)
    commands = [command for block in blocks for command in commands_of(block)]
    lines = sum(len(block.code.strip().splitlines()) for block in blocks if block.language == "python")
    parts = [f"{lines} lines of Python"] if lines else []
    if len(commands) > 1:
        parts.append(f"{len(commands) - 1} other command{'s' * (len(commands) > 2)}")
    return ", ".join([*parts, *(f"`{command}`" for command in commands[-1:])])


def run_task(task: Task, folder: Path, clone: Path) -> Outcome:
    """Run a task, and print what it printed if it fails.

    Args:
        task: The task.
        folder: New folder to run it in.
        clone: Clone of the repository, whose code is used.
    """
    if task.package is not None and importlib.util.find_spec(task.package) is None:
        return Outcome(0.0, f"needs the package {task.package}")
    folder.mkdir(parents=True)
    (folder / "recipes").symlink_to(clone / "recipes")
    (folder / "task.py").write_text(script_of(blocks_of(task.markdown())))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(clone), "PATH": path, "MPLBACKEND": "agg"}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "task.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return Outcome(time.perf_counter() - start, f"failed: not done after {LIMIT} seconds")
    seconds = time.perf_counter() - start
    if done.returncode:
        print(done.stdout[-2_000:], done.stderr[-4_000:], sep="\n", file=sys.stderr)
    return Outcome(seconds, "failed" if done.returncode else "works")


def row(name: str, task: Task, outcome: Outcome) -> str:
    """Return the line of the table."""
    seconds = f"{outcome.seconds:.0f}" if outcome.state == "works" else outcome.state
    title = task.page.partition("#")[0].removesuffix(".md")
    cells = [f"`{name}`", task.goal, f"[{title}](../{task.page})", what_runs(blocks_of(task.markdown())), seconds]
    return f"| {' | '.join(cells)} |"


def page(rows: Iterable[str], load: Iterable[float]) -> str:
    """Return the page.

    Args:
        rows: Lines of the table.
        load: Load of the machine before and after the tasks, in processes.
    """
    how, before_and_after = provenance(), " and ".join(f"{one:.1f}" for one in load)
    return "\n".join(
        [
            "# The first hour",
            "",
            "What a new user does first, from a clean clone: each task runs in a new folder and a new process, with",
            "the code of its guide where a guide has a section for it, and with `benchmarks/first_hour_tasks.py`",
            "otherwise. The seconds are those of the whole task, with all imports and every process that it starts.",
            "",
            f"`{how['command']}` at commit {commit()}, Python {how['python']}, {os.cpu_count()} cores, {how['time']};",
            f"load of the machine before and after: {before_and_after}. `--only NAME` runs one task.",
            "",
            HEAD,
            *rows,
            "",
        ]
    )


def outcomes(names: Iterable[str], folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Run tasks, and yield how each ended.

    Args:
        names: Keys of ``TASKS``.
        folder: Empty folder for the clone and the tasks.
    """
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    for name in names:
        outcome = run_task(TASKS[name], folder / name, folder / "clone")
        print(f"{name:>15}: {outcome.seconds:6.1f} s, {outcome.state}", file=sys.stderr, flush=True)
        yield name, outcome


def main() -> None:
    """Run the tasks, and print or write the table; exit with 1 if a task failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="run only these tasks")
    parser.add_argument("--out", type=Path, help="file of the page; by default the table is printed")
    options = parser.parse_args()
    load = [os.getloadavg()[0]]
    with TemporaryDirectory() as folder:
        found = dict(outcomes(options.only, Path(folder)))
    load.append(os.getloadavg()[0])
    rows = [row(name, TASKS[name], outcome) for name, outcome in found.items()]
    if options.out is None:
        print("\n".join([HEAD, *rows]))
    else:
        options.out.write_text(page(rows, load))
    sys.exit(any(outcome.state.startswith("failed") for outcome in found.values()))


if __name__ == "__main__":
    main()
