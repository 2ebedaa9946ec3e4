"""Starting runs that are ended, and counting what is left of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import start

PATIENCE = 100.0  # seconds, on a busy machine


class Run:
    """A run in separate processes that form one session, so that all of them can be found and ended."""

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        for old in folder.glob("rank_?.*"):
            old.unlink()
        with (folder / "output.txt").open("w") as output:
            self.process = start(
                ["-m", "tests.callbacks.ending_script", folder, json.dumps(options)],
                {"PYTHONFAULTHANDLER": ""},
                start_new_session=True,
                stdout=output,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.processes():
            os.kill(number, signal.SIGKILL)
        self.process.wait()

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def notes(self, rank: int = 0) -> list[str]:
        file = self.folder / f"rank_{rank}.txt"
        return file.read_text().splitlines() if file.exists() else []

    def started_with(self) -> int:
        """Return the env steps that the run began with."""
        return int(self.notes()[0].removeprefix("start "))

    def env_step(self, rank: int = 0) -> int:
        return int(self.notes(rank)[-1].split()[1])

    def pid(self, rank: int) -> int:
        return int((self.folder / f"rank_{rank}.pid").read_text())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def wait_for_rounds(self, rounds: int, rank: int = 0) -> None:
        self.wait_for(lambda: sum(note.startswith("round") for note in self.notes(rank)) >= rounds)

    def wait_for_note(self, start: str, rank: int = 0) -> None:
        self.wait_for(lambda: any(note.startswith(start) for note in self.notes(rank)))

    def code(self) -> int:
        """Return the exit code, once nothing of the run is left."""
        code = self.process.wait(timeout=PATIENCE)
        end = time.monotonic() + 20
        while self.processes():
            assert time.monotonic() < end, (self.processes(), self.output)
            time.sleep(0.05)
        return code

    def processes(self) -> list[int]:
        """Return the ids of all processes of the run, whoever is their parent by now."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(fields[3]) == self.process.pid and fields[0] not in "ZX":  # its session, and its state
                    found.append(int(entry.name))
        return found
