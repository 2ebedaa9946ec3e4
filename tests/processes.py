"""Run scripts in separate processes; none of them outlives its test."""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]


class Forked:
    """A script in a fork of ``tests.zygote``: what the tests need of the interface of ``subprocess.Popen``."""

    def __init__(
        self,
        arguments: Sequence[Any],
        environment: Mapping[str, str],
        *,
        folder: Path = ROOT,
        start_new_session: bool = False,
        stdin: int | None = None,
        stdout: Any = subprocess.PIPE,
    ) -> None:
        """Start a script.

        Args:
            arguments: Arguments of ``python``: a file, ``-m MODULE`` or ``-c CODE``, and those of the script.
            environment: All environment variables.
            folder: Working directory.
            start_new_session: Whether the script becomes the leader of a session.
            stdin: ``subprocess.PIPE``, or None for an empty one.
            stdout: ``subprocess.PIPE`` or a file, for what the script writes to stdout and stderr.
        """
        self.args = [str(argument) for argument in arguments]
        self.returncode: int | None = None
        self.stdin: TextIO | None = None
        self.stdout: TextIO | None = None
        read_end, write_end = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        if write_end is not None:
            self.stdin = os.fdopen(write_end, "w")
        if stdout == subprocess.PIPE:
            output, into = os.pipe()
            self.stdout = os.fdopen(output, "r", errors="replace")
        else:
            into = os.dup(stdout.fileno())
        status, status_end = os.pipe()
        request = {"arguments": self.args, "environment": dict(environment), "folder": str(folder)}
        message = json.dumps({**request, "start_new_session": start_new_session}).encode()
        descriptors = [read_end, into, into, status_end]
        socket.send_fds(_zygote(), [message], descriptors)
        for descriptor in {*descriptors}:
            os.close(descriptor)
        self._status = os.fdopen(status, "rb", buffering=0)
        self.pid = int(self._line())

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += (one := self._status.read(1) or b"")
            assert one, "tests.zygote has ended"
        return line

    def poll(self) -> int | None:
        """Return the exit code, or None if the script still runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(self._line())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the script, and return its exit code."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait until the script has ended and all of its output is read; return what was not read before."""
        read: list[str] = []
        if self.stdin is not None:
            self.stdin.close()
        if self.stdout is not None:
            stdout = self.stdout
            reader = threading.Thread(target=lambda: read.append(stdout.read()), daemon=True)
            reader.start()
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            stdout.close()
        self.wait(timeout)
        return "".join(read), None

    def send_signal(self, number: int) -> None:
        """Send a signal to the script, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()
        self.wait()
        self._status.close()


def popen(command: Sequence[str], *, stdout: Any, stderr: int, env: Mapping[str, str]) -> Forked:
    """Start a program of this Python in a fork, in place of ``subprocess.Popen``, which would import torch again."""
    assert command[0] == sys.executable
    assert stderr == subprocess.STDOUT
    return Forked(command[1:], {**_environment(), **env}, folder=Path.cwd(), stdout=stdout)


@functools.cache
def _zygote() -> socket.socket:
    """Start a zygote, which ends with this process, and return the socket on which it takes requests."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.zygote", str(its.fileno())]
    _started.append(subprocess.Popen(command, cwd=ROOT, env=_environment(), pass_fds=[its.fileno()]))
    its.close()
    return ours


_started: list[subprocess.Popen[bytes]] = []


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # scripts import tests.toys


def start(arguments: Sequence[Any], environment: Mapping[str, str] | None = None, **kwargs: Any) -> Forked:
    """Start a script with one thread and with ``environment`` in addition to the variables of this process."""
    return Forked(arguments, {**_environment(), **(environment or {})}, **kwargs)


def run(
    *arguments: Any, timeout: float = 120.0, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> str:
    """Run a script, and return its output; what it has started ends with it if it takes too long."""
    with start(arguments, environment, folder=folder, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, output
    return output


def run_two_ranks(*arguments: Any, timeout: float = 120.0) -> None:
    """Run a script twice at the same time, with arguments followed by the rank and the number of ranks."""
    _run_together([start([*arguments, rank, 2]) for rank in range(2)], timeout)


def run_ranks_of_lightning(*arguments: Any, timeout: float = 120.0) -> list[str]:
    """Run a script on two ranks of a Trainer with ``devices=2``, and return their outputs.

    The environment is that in which Lightning's launcher starts the second rank; no rank starts another.
    """
    both = {"NODE_RANK": "0", **_rendezvous()}
    return _run_together([start(arguments, {**both, "LOCAL_RANK": str(rank)}) for rank in range(2)], timeout)


def run_ranks_of_torchrun(*arguments: Any, folder: Path, timeout: float = 120.0) -> None:
    """Run a script on two ranks, in the environment that ``torchrun --nproc-per-node 2`` gives them."""
    both = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none", **_rendezvous()}
    both |= {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
    ranks = [{**both, "RANK": str(rank), "LOCAL_RANK": str(rank), "ROLE_RANK": str(rank)} for rank in range(2)]
    _run_together([start(arguments, environment, folder=folder) for environment in ranks], timeout)


def _rendezvous() -> dict[str, str]:
    """Return the variables with which two ranks find each other on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _run_together(processes: Sequence[Forked], timeout: float) -> list[str]:
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return outputs


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until a condition is true; fail after that time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
