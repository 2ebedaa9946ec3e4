"""The command ``sweep``: one run of ``fit`` for each of several seeds, some of them at the same time.

    lightning-ding fit --config run.yaml --seeds 5
    lightning-ding sweep --config run.yaml --seeds 0,3,7 --jobs 2 --folder runs/sweep/dqn

All options of ``fit`` are options of this command too; ``fit --seeds`` is the same command. Each run has a folder
``seed_0``, ``seed_1`` and so on in the folder of the sweep, with its logs and checkpoints, whatever folder its loggers
have in the config, and with its output in ``output.txt``. The same command again
continues a sweep that was interrupted: runs that have ended are kept, the others are resumed from their last
checkpoint. At the end the runs are compared as ``lightning-ding compare`` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from lightning_ding.callbacks.shared_folder import lock_file
from lightning_ding.checkpoints.files import replace_text
from lightning_ding.checkpoints.folder import last_checkpoint
from lightning_ding.config import require
from lightning_ding.entry.compare import RECORD, compare, table
from lightning_ding.entry.lightning_cli import SWEEP, CommandParser, in_one_line

OUTPUT = "output.txt"
OWN = ("--seed_everything", "--data.seed", "--trainer.default_root_dir", "--ckpt_path")
"""Options of ``fit`` that differ between the runs of a sweep."""
PATIENCE = 60.0  # seconds in which an interrupted run writes its checkpoint before it is killed


def main(arguments: Sequence[str]) -> None:
    """Run the command; exit with code 2 for an invalid command line, 1 if a run failed, and 130 after an interrupt."""
    options, rest = _parser().parse_known_args(list(arguments)[1:])
    folder = options.folder or _folder(rest)
    try:
        failed = in_one_line(lambda: Sweep(rest, folder, seeds_of(options.seeds), options.jobs).run())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if failed:
        raise SystemExit(1)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="lightning-ding sweep",
        description=__doc__,
        epilog="All options of fit are options of this command too: lightning-ding fit --help",
    )
    parser.add_argument("--seeds", required=True, help="number of seeds, which are 0, 1, ..., or a list such as 0,3,7")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, help="folder of the sweep; by default runs/sweep/NAME of the config file"
    )
    return parser


def seeds_of(text: str) -> list[int]:
    """Return the seeds that an option names.

    Raises:
        ValueError: If it is neither a number >= 1 nor a list of different seeds >= 0.

    Example:
        >>> seeds_of("3"), seeds_of("0,3,7")
        ([0, 1, 2], [0, 3, 7])
    """
    allowed = "a number of seeds >= 1, or different seeds >= 0 such as 0,3,7"
    parts = text.split(",")
    require(all(part.strip().isdecimal() for part in parts), "seeds", allowed, text)
    numbers = [int(part) for part in parts]
    seeds = list(range(numbers[0])) if len(numbers) == 1 else numbers
    require(len(seeds) >= 1 and len(set(seeds)) == len(seeds), "seeds", allowed, text)
    return seeds


def _folder(options: Sequence[str]) -> Path:
    """Return the folder of a sweep whose command does not name it."""
    names = _config_files(options)
    return Path("runs") / "sweep" / (Path(names[-1]).stem if names else "fit")


def _config_files(options: Sequence[str]) -> list[str]:
    """Return the names of the config files in a command line.

    Example:
        >>> _config_files(["--config", "a.yaml", "--model.cfg.nstep", "1", "-cb.yaml", "--config=c.yaml"])
        ['a.yaml', 'b.yaml', 'c.yaml']
    """
    found, rest = [], iter(options)
    for option in rest:
        if option in ("-c", "--config"):
            found.append(next(rest, ""))
        elif option.startswith("--config="):
            found.append(option.partition("=")[2])
        elif option.startswith("-c"):
            found.append(option.removeprefix("-c").removeprefix("="))
    return found


def _contents(options: Sequence[str]) -> dict[str, str]:
    """Return a hash of the content of each config file in a command line; the runs report those that are missing."""
    files = [Path(name) for name in _config_files(options) if "\n" not in name]  # others are the text of a config
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


class Sweep:
    """The runs of a command ``fit`` with several seeds.

    Args:
        options: The options of ``fit``, without seeds and folders.
        folder: Folder of the sweep. If it holds runs of the same options and config files, they are continued.
        seeds: Seeds of the runs, each >= 0.
        jobs: Number of runs at the same time, >= 1.

    Raises:
        ValueError: If an argument is out of its range, ``options`` has a seed or a folder, or the folder holds a sweep
            with other options, or its config files have changed.
    """

    def __init__(self, options: Sequence[str], folder: Path, seeds: Sequence[int], jobs: int = 2) -> None:
        require(jobs >= 1, "jobs", ">= 1", jobs)
        for option in options:
            allowed = f"options of fit other than {', '.join(OWN)}, which each run of a sweep has for itself"
            require(option.partition("=")[0] not in OWN, "options", allowed, option)
        self.options, self.folder, self.seeds, self.jobs = list(options), folder, list(seeds), jobs
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False
        self._lock = threading.Lock()
        record = folder / RECORD
        files = _contents(options)
        now = {"options": self.options, "files": files}
        known: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else now
        allowed = f"a new folder, or that of a sweep with the options {' '.join(self.options)}"
        given = f"{folder} of a sweep with {' '.join(known['options'])}"
        require(known["options"] == self.options, "folder", allowed, given)
        before = known.get("files", files)
        changed = [name for name, content in files.items() if before.get(name) != content]
        allowed = f"a new folder, because {', '.join(changed)} has changed since the sweep began"
        require(not changed, "folder", allowed, str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(record, json.dumps(now))

    def run(self) -> list[int]:
        """Run what has not ended yet, print a line for each run and a comparison, and return the seeds that failed."""
        with self._stopping(), ThreadPoolExecutor(self.jobs) as pool:
            codes = list(pool.map(self._run, self.seeds))
        if self._is_stopped:
            raise KeyboardInterrupt
        failed = [seed for seed, code in zip(self.seeds, codes, strict=True) if code]
        ended = [self._of(seed) for seed in self.seeds if seed not in failed]
        if ended:
            try:
                print(table(compare({self.folder.name: ended})))
            except ValueError as error:
                print("the seeds are not compared:", error)
        return failed

    def _of(self, seed: int) -> Path:
        return self.folder / f"seed_{seed}"

    def _run(self, seed: int) -> int:
        """Run one seed to its end, and return its exit code."""
        folder = self._of(seed)
        mark = folder / RECORD
        if mark.is_file():
            print(f"seed {seed}: has ended already", flush=True)
            return 0
        folder.mkdir(exist_ok=True)
        own = [f"--seed_everything={seed}", f"--data.seed={seed}", f"--trainer.default_root_dir={folder}"]
        began = time.monotonic()
        with (folder / OUTPUT).open("ab") as output:
            if not lock_file(output):
                print(f"seed {seed}: another process trains it, wait for its end", flush=True)
                return 1
            resumes = ["--ckpt_path=last"] if last_checkpoint(folder) is not None else []
            command = [sys.executable, "-m", "lightning_ding", "fit", *self.options, *own, *resumes]
            code = self._wait_for(command, output)
        if code == 0:
            replace_text(mark, json.dumps({"seed": seed}))
        if not self._is_stopped:
            how = "ended" if code == 0 else f"failed with exit code {code}, see {folder / OUTPUT},"
            print(f"seed {seed}: {how} after {time.monotonic() - began:.0f} s", flush=True)
        return code

    def _wait_for(self, command: Sequence[str], output: BinaryIO) -> int:
        """Run a command, and return its exit code; that of an interrupt if the sweep is stopped."""
        with self._lock:
            if self._is_stopped:
                return 130
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=self._environment())
            self._processes.add(process)
        if self._is_stopped:  # while it started, when the handler of the signal did not know it
            process.terminate()
        code = process.wait()
        with self._lock:
            self._processes.discard(process)
        return code

    def _environment(self) -> dict[str, str]:
        """Return the environment of a run, which writes to its own folder and takes its share of the cores."""
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        return {"OMP_NUM_THREADS": str(threads), **os.environ, SWEEP: "1"}

    @contextmanager
    def _stopping(self) -> Any:
        """Pass SIGINT and SIGTERM on to the runs, as SIGTERM: they write a checkpoint and end."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self._stop) for one in signals}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _stop(self, *_: Any) -> None:
        self._is_stopped = True
        for process in list(self._processes):
            with suppress(OSError):
                process.terminate()
        killer = threading.Timer(PATIENCE, self._kill)
        killer.daemon = True
        killer.start()

    def _kill(self) -> None:
        for process in list(self._processes):
            with suppress(OSError):
                process.kill()
