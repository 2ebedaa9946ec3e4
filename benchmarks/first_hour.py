"""A user's first hour: whether the tasks of a new user work from a clean clone, and how long each takes.

    python -m benchmarks.first_hour                                     # all tasks; prints a table in Markdown
    python -m benchmarks.first_hour --only own_env export               # some of them
    python -m benchmarks.first_hour --install                           # in a new environment, installed by pip
    python -m benchmarks.first_hour --install --out docs/results/first_hour.md    # writes the page

The last commit is cloned. Each task of ``benchmarks/first_hour_tasks.py`` runs in a new folder and a new process: its
Python blocks in their order, and its commands as processes. With ``--install`` it uses the package that pip installed
from the clone; otherwise the code of the clone, with the packages of this Python. The seconds are those of the task
from start to end, with all imports.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.compare import commit, provenance
from benchmarks.first_hour_tasks import TASKS, Task
from tests.docs.pages import NOT_RUN, NOT_TESTED, Block, blocks_of

ROOT = Path(__file__).parents[1]
LIMIT = 600  # seconds until a task has failed
EXTRAS = "flask,hub,onnx,pettingzoo,test,tracking,tune,video"
"""Extras that some tasks need; ``test`` for the server that takes the place of the Hugging Face hub."""
INSTALL = f"pip install -c constraints.txt '.[{EXTRAS}]'"
START = """import os
import subprocess
import sys
from pathlib import Path

sys.path.append(os.environ["CLONE"])  # for its tests


def run(command):
    print("$", command, flush=True)
    subprocess.run(command, shell=True, check=True)


def write(name, text):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
"""
HEAD = "| name | task | guide | what runs | seconds |\n|---|---|---|---|--:|"


@dataclass(frozen=True)
class Place:
    """A clone, and the Python that runs its tasks."""

    clone: Path
    python: Path = field(default_factory=lambda: Path(sys.executable))
    is_installed: bool = False
    """Whether the package is installed in that Python; otherwise the code of the clone is used."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a task."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        code = {} if self.is_installed else {"PYTHONPATH": str(self.clone)}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**inherited, "CLONE": str(self.clone), "PATH": path, "MPLBACKEND": "agg", **code}

    def has(self, package: str) -> bool:
        """Return whether a package is installed in that Python."""
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        return subprocess.run([self.python, "-c", code]).returncode == 0


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
    """Return the number of lines of Python and of commands.

    Args:
        blocks: Blocks of a page, in their order.
    """
    blocks = list(blocks)
    lines = sum(len(block.code.strip().splitlines()) for block in blocks if block.language == "python")
    commands = sum(len(commands_of(block)) for block in blocks)
    parts = [f"{lines} lines of Python"] if lines else []
    return " and ".join([*parts, f"{commands} command{'s' * (commands > 1)}"] if commands else parts)


def run_task(task: Task, folder: Path, place: Place) -> Outcome:
    """Run a task, and print what it printed if it fails.

    Args:
        task: The task.
        folder: New folder to run it in.
        place: Clone of the repository, and Python.
    """
    if task.package is not None and not place.has(task.package):
        return Outcome(0.0, f"needs the package {task.package}")
    folder.mkdir(parents=True)
    (folder / "recipes").symlink_to(place.clone / "recipes")
    (folder / "task.py").write_text(script_of(blocks_of(task.markdown())))
    options: dict[str, Any] = {"cwd": folder, "env": place.environment(), "timeout": LIMIT}
    start = time.perf_counter()
    try:
        done = subprocess.run([place.python, "task.py"], capture_output=True, text=True, **options)
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


def page(found: Mapping[str, Outcome], load: Iterable[float], installed: float | None) -> str:
    """Return the page.

    Args:
        found: How each task ended, by its name.
        load: Load of the machine before and after the tasks, in processes.
        installed: Seconds of the installation; None if the packages of this Python were used.
    """
    how, before_and_after = provenance(), " and ".join(f"{one:.1f}" for one in load)
    works = sum(outcome.state == "works" for outcome in found.values())
    seconds = sum(outcome.seconds for outcome in found.values())
    first = f"{works} of {len(found)} tasks of a new user work from a clean clone, in {seconds:.0f} seconds."
    if installed is not None:
        first += f" The installation, `{INSTALL}` in a new environment, took {installed:.0f} seconds."
    parts = [
        f"# The first hour\n\n{first}",
        "Each task runs in a new folder and a new process, with the code of its guide where a guide has a section for "
        "it, and with that of `benchmarks/first_hour_tasks.py` otherwise. The seconds are those of the whole task, "
        "with all imports and every process that it starts.",
        "\n".join([HEAD, *(row(name, TASKS[name], outcome) for name, outcome in found.items())]),
        f"`{how['command']}` at commit {commit()}, Python {how['python']}, {os.cpu_count()} cores, {how['time']}; load "
        f"of the machine before and after: {before_and_after}.",
        "## Commands\n\n`python -m benchmarks.first_hour --only NAME` runs one task. The commands of each, in which "
        "Python is left out:",
        "\n".join(f"* {name}: {commands}" for name in found if (commands := listed(TASKS[name]))),
    ]
    return "\n\n".join(parts) + "\n"


def listed(task: Task) -> str:
    """Return the commands of a task for a line of Markdown; an empty string if it has none."""
    return ", ".join(f"`{command}`" for block in blocks_of(task.markdown()) for command in commands_of(block))


def install(clone: Path, folder: Path) -> tuple[Place, float]:
    """Install the package of a clone in a new environment.

    Args:
        clone: Folder of the clone.
        folder: New folder of the environment.

    Returns:
        The place where tasks can run, and the seconds of the installation.
    """
    python, start = folder / "bin" / "python", time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", *shlex.split(INSTALL), "--quiet"], cwd=clone, check=True)
    return Place(clone, python, is_installed=True), time.perf_counter() - start


def outcomes(names: Iterable[str], place: Place, folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Run tasks, and yield how each ended.

    Args:
        names: Keys of ``TASKS``.
        place: Clone of the repository, and Python.
        folder: Folder in which each task gets a new folder.
    """
    for name in names:
        outcome = run_task(TASKS[name], folder / name, place)
        print(f"{name:>15}: {outcome.seconds:6.1f} s, {outcome.state}", file=sys.stderr, flush=True)
        yield name, outcome


def main() -> None:
    """Run the tasks, and print or write the table; exit with 1 if a task failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="run only these tasks")
    parser.add_argument("--install", action="store_true", help="install the clone in a new environment")
    parser.add_argument("--out", type=Path, help="file of the page; by default the table is printed")
    options = parser.parse_args()
    installed = None
    with TemporaryDirectory() as name:
        folder = Path(name)
        place = Place(folder / "clone")
        subprocess.run(["git", "clone", "--quiet", ROOT, place.clone], check=True)
        if options.install:
            place, installed = install(place.clone, folder / "venv")
            print(f"{'install':>15}: {installed:6.1f} s", file=sys.stderr, flush=True)
        load = [os.getloadavg()[0]]
        found = dict(outcomes(options.only, place, folder))
        load.append(os.getloadavg()[0])
    if options.out is None:
        print("\n".join([HEAD, *(row(name, TASKS[name], outcome) for name, outcome in found.items())]))
    else:
        options.out.write_text(page(found, load, installed))
    sys.exit(any(outcome.state.startswith("failed") for outcome in found.values()))


if __name__ == "__main__":
    main()
