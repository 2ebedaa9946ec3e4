"""A process of a distributed run on this machine: started, started again, followed and ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lightning_ding.envs.process.life import lifeline

FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0  # seconds between a death and the next start; twice as long each time
LONG_LIFE = 30.0  # seconds after which a death counts as the first one
WORTH_SHOWING = re.compile(r"^[-\d]+ [:\d,]+ (?:(?:WARNING|ERROR|CRITICAL) .*|INFO lightning_ding\.entry\.\S+ .*)")
LAST_LINES = 15
PROGRAM = "lightning_ding.entry.roles"


class Child:
    """One role in a process of its own, which dies with this one.

    Args:
        name: Of the role and its number, for messages and the log.
        arguments: Of :mod:`lightning_ding.entry.roles`.
        log: File to which its output is added.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        self.deaths = 0
        """How often it had to be started again."""
        self.has_left = False
        """It ended because the coordinator said so."""
        self._process: subprocess.Popen[bytes] | None = None
        self._quick = 0
        self._due = self._started = 0.0
        self._seen = log.stat().st_size if log.exists() else 0

    def start(self) -> None:
        """Start the process."""
        end = lifeline().fileno()
        command = [sys.executable, "-m", PROGRAM, *self.arguments, "--lifeline", str(end)]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(end,),
                start_new_session=True,  # so that Ctrl-C comes here alone, and its own children end with it
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._started, self.has_left = time.monotonic(), False

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended, once; None if there is nothing new."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self.kill()  # what it has started
            self._process = None
        return code

    @property
    def is_running(self) -> bool:
        """Whether there is a process whose end :meth:`poll` has not told yet."""
        return self._process is not None

    def bury(self) -> None:
        """Plan the next start after a death."""
        self.deaths += 1
        self._quick = 0 if time.monotonic() - self._started > LONG_LIFE else self._quick + 1
        self._due = time.monotonic() + min(FIRST_WAIT * 2.0**self._quick, LONGEST_WAIT)

    def start_if_due(self) -> None:
        """Start the process again if it has died long enough ago."""
        if self._process is None and not self.has_left and time.monotonic() >= self._due:
            self.start()

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, deadline: float) -> bool:
        """Wait for the end, until a time of the monotonic clock; return whether it came."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process and all that it has started, now."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def show_news(self) -> None:
        """Write what its log says of warnings and errors to stderr, with its name before each line."""
        for line in self._new_lines():
            if WORTH_SHOWING.match(line):
                self._show(line)

    def last_words(self) -> list[str]:
        """Return the last lines of the log."""
        with suppress(OSError):
            return self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return []

    def show_last_words(self) -> None:
        """Write the last lines of the log to stderr."""
        for line in self.last_words():
            self._show(line)

    def _show(self, line: str) -> None:
        sys.stderr.write(f"{self.name}: {line}\n")
        sys.stderr.flush()

    def _new_lines(self) -> list[str]:
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._seen)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._seen += len(whole)
            return whole.decode(errors="replace").splitlines()
        return []
