"""A whole distributed run on this machine: its processes are started, restarted and ended together."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning_ding.config import to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.folder import check_start, holds_run
from lightning_ding.distributed.stop_signals import handled
from lightning_ding.distributed.transport import ADDRESS_FILE, get_transport
from lightning_ding.envs.process.lifeline import lifeline
from lightning_ding.utils.exit_codes import BY_SIGNAL, GIVEN_UP

LOOK = 0.1  # seconds between two checks of the processes
END_TIMEOUT = 30.0  # seconds for the processes to end, after a signal or after the run
HOPELESS = (2, GIVEN_UP)  # exit codes after which a restart would fail in the same way


logger = logging.getLogger(__name__)


class RunFailedError(RuntimeError):
    """A distributed run ended before it was finished."""


class RunSupervisor:
    """Keeps the processes of a run alive until the coordinator has finished the run.

    Each process is restarted up to ``system.restarts`` times. All of them end with this process, even if it is killed.

    Args:
        cfg: Config of the run.
        resume: Whether to resume the run in ``main.exp_name``.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is false, or holds none and ``resume`` is true, or a
            coordinator is using it.
    """

    def __init__(self, cfg: ParallelConfig, resume: bool = False) -> None:
        self._restarts = cfg.system.restarts
        self._folder = Path(cfg.main.exp_name)
        is_finished = check_start(cfg, resume)
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        get_transport(cfg.system.transport).make_secret(cfg)
        config = self._folder / "config.json"
        config.write_text(json.dumps(to_dict(cfg), indent=1))
        self._result_file = self._folder / "result.json"
        if not is_finished:
            self._result_file.unlink(missing_ok=True)
        self._earlier_result = _stamp(self._result_file)  # which the coordinator deletes when the run continues
        (self._folder / ADDRESS_FILE).unlink(missing_ok=True)

        def child(role: str, number: int) -> Child:
            name = f"{role}-{number}"
            return Child(name, [role, "--config", str(config)], logs / f"{name}.log")

        self.coordinator = child("coordinator", 0)
        self.coordinator.arguments += ["--resume"] * resume
        self.workers = [child("learner", 0), *(child("collector", n) for n in range(cfg.system.collector.number))]
        self._received: list[int] = []

    def run(self) -> dict[str, Any]:
        """Start all processes, wait for the end of the run, and return the content of ``result.json``.

        Raises:
            RunFailedError: If the coordinator gave the run up, or a process died too often.
            SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal, when all processes have saved and
                ended.
        """
        with handled(self._received.append):
            try:
                for child in self._all():
                    child.start()
                while not self._is_over():
                    time.sleep(LOOK)
                self._wait_for_workers()
            finally:
                self._end()
        if self._received:
            logger.warning("the run was stopped; --resume continues it")
            raise SystemExit(BY_SIGNAL + self._received[0])
        return self._result()

    def _has_result(self) -> bool:
        return _stamp(self._result_file) not in (None, self._earlier_result)

    def _all(self) -> list[Child]:
        return [self.coordinator, *self.workers]

    def _is_over(self) -> bool:
        for child in self._all():
            child.show_news()
            code = child.poll()
            if child is self.coordinator and code is not None and (code == 0 or self._has_result()):
                return True
            if code == 0:  # the run is over for it; a restarted coordinator would need it again
                child.has_left = True
            elif code is not None:
                self._bury(child, code)
            if child is not self.coordinator or not child.is_running:
                child.start_if_due()
        return bool(self._received)

    def _bury(self, child: Child, code: int) -> None:
        if self._received:
            return
        if code in HOPELESS or child.deaths >= self._restarts:
            child.show_last_words()
            why = "" if code in HOPELESS else f" after {child.deaths} restarts"
            last = next((line for line in reversed(child.last_words()) if line.strip()), "")
            raise RunFailedError(f"{child.name} ended with {_meaning(code)}{why}, see {child.log}: {last}")
        if code > 0:
            child.show_last_words()
        child.bury()
        logger.warning("%s: ended with %s; restart %d of %d", child.name, _meaning(code), child.deaths, self._restarts)
        if child is self.coordinator:
            self._prepare_restart_of_coordinator()

    def _prepare_restart_of_coordinator(self) -> None:
        (self._folder / ADDRESS_FILE).unlink(missing_ok=True)  # workers must not send the token to another program
        if "--resume" not in self.coordinator.arguments and holds_run(self._folder):
            self.coordinator.arguments.append("--resume")
        for worker in self.workers:
            worker.has_left = False

    def _wait_for_workers(self) -> None:
        if self._received:
            return
        deadline = time.monotonic() + END_TIMEOUT
        while time.monotonic() < deadline and not self._received and any(worker.is_running for worker in self.workers):
            time.sleep(LOOK)
            for worker in self.workers:
                worker.poll()

    def _end(self) -> None:
        """End the workers first, while the coordinator still answers their last messages, and then the coordinator."""
        deadline = time.monotonic() + END_TIMEOUT
        asked = len(self._received)
        for group in (self.workers, [self.coordinator]):
            for child in group:
                child.send(signal.SIGTERM)
            while len(self._received) <= asked and not all(child.wait(time.monotonic() + LOOK) for child in group):
                if time.monotonic() > deadline:
                    break
        for child in self._all():
            child.kill()
            child.show_news()

    def _result(self) -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(self._result_file.read_text())
        except (OSError, ValueError) as error:
            raise RunFailedError(f"the run is over but has written no result: {error}") from error
        if result.get("error") is not None:
            raise RunFailedError(f"the run was given up, see {self.coordinator.log.parent}: {result['error']}")
        return result


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another one that replaces it; None if there is no file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _meaning(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0  # seconds between a death and the restart; doubled each time
LONG_LIFE = 30.0  # seconds of running after which the pause is short again
WORTH_SHOWING = re.compile(r"^[-\d]+ [:\d,]+ (?:(?:WARNING|ERROR|CRITICAL) .*|INFO lightning_ding\.entry\.\S+ .*)")
LAST_LINES = 15
PROGRAM = "lightning_ding.entry.roles"


class Child:
    """One role in a child process, which ends with this process.

    Args:
        name: Role and number, for messages and the log.
        arguments: Command-line arguments of :mod:`lightning_ding.entry.roles`.
        log: File to which the output is appended.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        self.deaths = 0
        """Number of unexpected ends."""
        self.has_left = False
        """Whether it ended because the run is over."""
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
                start_new_session=True,  # Ctrl-C only reaches this process; kill() reaches the child's children
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._started, self.has_left = time.monotonic(), False

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended, once; None otherwise."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self.kill()  # the processes that it has started
            self._process = None
        return code

    @property
    def is_running(self) -> bool:
        """Whether there is a process whose end :meth:`poll` has not returned yet."""
        return self._process is not None

    def bury(self) -> None:
        """Schedule the restart after a death."""
        self.deaths += 1
        self._quick = 0 if time.monotonic() - self._started > LONG_LIFE else self._quick + 1
        self._due = time.monotonic() + min(FIRST_WAIT * 2.0**self._quick, LONGEST_WAIT)

    def start_if_due(self) -> None:
        """Restart the process if it is time."""
        if self._process is None and not self.has_left and time.monotonic() >= self._due:
            self.start()

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, deadline: float) -> bool:
        """Wait for the end of the process until a time of the monotonic clock; return whether it has ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def show_news(self) -> None:
        """Write new warnings and errors of the log to stderr, with the name of the child before each line."""
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
