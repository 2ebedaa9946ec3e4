"""All processes of a run as ``/proc`` shows them, for checks that none of them is left."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LOOK = 0.2  # seconds between two checks
SESSION = re.compile(rb"session_\d{4}-\d\d-\d\d_[\d_-]+\d")  # name of a session of Ray
PROGRAMS = re.compile(rb"python|ray|gcs_server|lightning-ding")  # a shell or `tail` that names the folder is a reader


class Process(NamedTuple):
    """A process that has not ended."""

    pid: int
    parent: int
    start: int
    """Time of its start, in clock ticks since the start of the machine: a pid is used again for other processes."""
    command: bytes
    environment: bytes


class ProcessTree:
    """The processes that belong to a run, also those that no longer look like it.

    A process belongs to a run if a variable of its environment is the folder of the run, if its command names the
    folder or a session of Ray that another process of the run has named, or if its parent belongs to the run. It
    belongs to the run until it ends, even if its parent ends or it changes its command. This process and those that
    have started it never belong to a run.

    Args:
        folder: Folder of the run.
        variable: Name of the environment variable that all processes of the run inherit, with the folder as its value.
    """

    def __init__(self, folder: Path, variable: str) -> None:
        name = str(folder).encode()
        self._mark = f"{variable}=".encode() + name
        self._folder = re.compile(re.escape(name) + rb"(?![\w.-])")
        self._known: set[tuple[int, int]] = set()  # pid and start
        self._sessions: set[bytes] = set()
        self._others = _ancestors()

    def add(self, pid: int) -> None:
        """Add a process, whose children belong to the run, too."""
        self._known |= {(one.pid, one.start) for one in _running() if one.pid == pid}

    def find(self) -> dict[int, str]:
        """Return the commands of the run's processes by id."""
        running = {one.pid: one for one in _running() if one.pid not in self._others}
        ours = {one.pid for one in running.values() if (one.pid, one.start) in self._known or self._is_marked(one)}
        new = ours
        while new:
            named = (running[pid].command + b"\0" + running[pid].environment for pid in new)
            self._sessions |= {session for text in named for session in SESSION.findall(text)}
            others = [one for one in running.values() if one.pid not in ours]
            new = {one.pid for one in others if one.parent in ours or self._is_named(one)}
            ours = ours | new
        self._known |= {(pid, running[pid].start) for pid in ours}
        return {pid: running[pid].command.replace(b"\0", b" ").decode(errors="replace").strip() for pid in ours}

    def wait_for_end(self, seconds: float) -> dict[int, str]:
        """Wait until no process of the run is left, and return those that are left after ``seconds``."""
        end = time.monotonic() + seconds
        while (left := self.find()) and time.monotonic() < end:
            time.sleep(LOOK)
        return left

    def _is_marked(self, one: Process) -> bool:
        return self._mark in one.environment.split(b"\0")

    def _is_named(self, one: Process) -> bool:
        names = self._folder.search(one.command) or any(session in one.command for session in self._sessions)
        return bool(names) and PROGRAMS.search(one.command.partition(b"\0")[0]) is not None


def _running() -> Iterable[Process]:
    """Return all processes that can be read, without zombies."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        if state != "Z":
            yield Process(int(entry.name), int(parent), int(rest[17]), command, environment)


def _ancestors() -> set[int]:
    """Return the ids of this process and of those that have started it."""
    parents = {one.pid: one.parent for one in _running()}
    found, pid = set(), os.getpid()
    while pid:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found
