"""An env process as seen from its parent: requests, answers, failures and its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from multiprocessing import connection
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

from gymnasium.vector.utils import clear_mpi_env_vars

from lightning_ding.envs.process.errors import Failure, describe_exit
from lightning_ding.envs.process.lifeline import lifeline, sigterm_blocked
from lightning_ding.envs.process.main_module import dumps_for_child, hidden_script
from lightning_ding.envs.process.shared_memory import SharedArrays
from lightning_ding.envs.process.worker import DONE, ERROR, MORE, SHORT, STEP, read_message, send_message, serve
from lightning_ding.envs.sync import IDLE, RESETTING

Limits = tuple["float | None", "float | None"]
"""Seconds for what one env does, and seconds for its reset after a step; None for no limit."""
QUICK = 0.2  # seconds of waiting for the processes in order, before waiting for all of them at once
STALL = 10.0  # seconds until an interrupted message fails
STARTING = "the start of its process"
AT_ONCE = 0.1  # seconds of waiting for further failures after the first one
SLICE = 0.5  # seconds of one wait; a much longer wait means that this process, and perhaps the others, was suspended
LONGEST = 3600.0  # seconds; the longest timeout passed to the system, which rejects very large numbers
UNKNOWN = 255  # exit code if the fork server is dead, also of a living process


class EnvProcess:
    """A process that runs one or more envs.

    After a failure, ``failure`` is set. A process that died or hung is killed, and its pipe and memory are not used
    again; a new process replaces it.

    Args:
        context: Multiprocessing context that starts the process.
        env_ids: Numbers of the envs in the process.
    """

    def __init__(self, context: BaseContext, env_ids: range) -> None:
        self.env_ids = env_ids
        self.rows = slice(env_ids.start, env_ids.stop)
        self.failure: Failure | None = None
        """The failure of the last request, if any."""
        self.answer: Any = None
        """The message of the last answer."""
        self.lost: Failure | None = None
        """The failure that lost the episodes of its envs, until the next step reports it."""
        self.is_pending = False
        """Whether a request has not been answered."""
        self.is_alive = False
        self.block: SharedArrays | None = None
        self._requested = STARTING
        self._place = [0, IDLE]  # the current env in the worker, and what it does
        self._since = 0.0  # seconds into the wait at which that was noticed
        self._pipe, child_pipe = context.Pipe()
        self._file = self._pipe.fileno()
        name = f"envs {env_ids.start}-{env_ids.stop - 1}"
        self.process: Any = context.Process(  # type: ignore[attr-defined]
            target=serve, args=(child_pipe, lifeline()), name=name, daemon=True
        )
        hidden = nullcontext() if context.get_start_method() == "fork" else hidden_script()
        with clear_mpi_env_vars(), sigterm_blocked(), hidden:
            self.process.start()
        child_pipe.close()
        self.is_alive = self.is_pending = True
        self._answer_or_end = select.poll()
        self._answer_or_end.register(self._file, select.POLLIN)
        self._answer_or_end.register(self.process.sentinel, select.POLLIN)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            with socket.socket(fileno=os.dup(self._file)) as end:
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(STALL), 0))

    def ask(self, operation: str, request: tuple[Any, ...]) -> None:
        """Send a request: the name of the operation in errors, and name and arguments of a method of ``EnvWorker``."""
        self.send(operation, dumps_for_child(request))

    def send(self, operation: str, data: Any) -> None:
        """Send a request that is already pickled, or None for a step with the actions in the shared memory."""
        self._requested, self.failure, self.answer = operation, None, None
        self._place, self._since = [0, IDLE], 0.0
        if self.block is not None:
            self.block.position[:] = self._place  # until the process changes it
        self.is_pending = True  # set first, so that after an error here no answer is assigned to a wrong request
        try:
            send_message(self._file, STEP if data is None else MORE, data)
        except OSError:
            self._handle_death()

    def share(self, block: SharedArrays) -> None:
        """Send the shared memory to the process."""
        self.ask(STARTING, ("share",))
        if not self.is_alive:
            block.close_file()
            return
        try:
            with socket.socket(fileno=os.dup(self._file)) as end:
                socket.send_fds(end, [DONE], [block.file])
            self.block = block
        except OSError:
            self._handle_death()
        finally:
            block.close_file()

    def wait_for_answer(self, seconds: float) -> bool:
        """Wait for the answer or the end of the process; return whether either came in time."""
        ready = dict(self._answer_or_end.poll(seconds * 1000))
        if ready:
            self.read_answer(self._file in ready)
        return bool(ready)

    def read_answer(self, is_there: bool) -> None:
        """Read the answer that has arrived, or record that the process ended without one."""
        code, data = b"", b""
        try:
            if is_there or self._file in dict(self._answer_or_end.poll(0)):  # reading would block without an answer
                code, data = read_message(self._file, SHORT)
        except (OSError, EOFError):
            code = b""
        if code not in (DONE, MORE, ERROR):
            self._handle_death()
        elif data:
            self._unpickle(code, data)
        self.is_pending = False

    def limit(self, limits: Limits, passed: float) -> float | None:
        """Return the time limit in seconds of what the current env does, which begins when it was noticed.

        ``passed`` is the time in seconds since the request.
        """
        place = [0, IDLE] if self.block is None else self.block.position.tolist()
        if place != self._place:
            self._place, self._since = place, passed
        seconds = limits[1 if self._is_resetting_after_step() else 0]
        return None if seconds is None else self._since + seconds

    def give_up(self, limits: Limits) -> None:
        """End a process that did not answer in time."""
        seconds = limits[1 if self._is_resetting_after_step() else 0]
        self.failure = self._lost("hung", f"no answer within {seconds:g} s")
        self.kill()

    def end(self, seconds: float) -> bool:
        """Wait for a process that was asked to close, kill it if necessary, and return whether it ended itself."""
        if not self.is_alive:
            return True
        self.process.join(min(seconds, LONGEST))
        ended = self.process.exitcode is not None
        self.kill()
        return ended

    def kill(self) -> None:
        """End the process immediately."""
        if not self.is_alive:
            return
        self.is_alive = self.is_pending = False
        if self.process.exitcode in (None, UNKNOWN):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(STALL)
        self._pipe.close()
        if self.process.exitcode is not None:
            self.process.close()

    def sources(self) -> list[Any]:
        """Return the objects that become ready when the process answers or ends."""
        return [self._pipe, self.process.sentinel]

    def _unpickle(self, code: bytes, data: Any) -> None:
        try:
            answer = ForkingPickler.loads(data)
        except Exception as error:  # unpickling a user's class may raise any exception
            summary = f"its answer cannot be unpickled: {type(error).__name__}: {error}"
            trace = "".join(traceback.format_exception(error))
            self.failure = Failure("raised", tuple(self.env_ids), self._operation(), summary, trace)
            return
        if code == MORE:
            self.answer = answer
        else:
            number, *details = answer
            self.failure = Failure("raised", (self.env_ids[number],), self._operation(), *details)

    def _handle_death(self) -> None:
        self.process.join(1.0)
        self.failure = self._lost("died", describe_exit(self.process.exitcode))
        self.kill()

    def _lost(self, kind: Literal["died", "hung"], summary: str) -> Failure:
        """Return the failure of all envs of a lost process, which names the one that was stepped or reset then."""
        number, does = [0, IDLE] if self.block is None else self.block.position.tolist()
        current = self.env_ids[number] if len(self.env_ids) > 1 and does != IDLE else None
        summary += "" if current is None else f" in env {current}"
        return Failure(kind, tuple(self.env_ids), self._operation(), summary, current=current)

    def _is_resetting_after_step(self) -> bool:
        return self._requested == "step()" and self.block is not None and bool(self.block.position[1] == RESETTING)

    def _operation(self) -> str:
        return "the reset() that its step() led to" if self._is_resetting_after_step() else self._requested


def gather(processes: Sequence[EnvProcess], limits: Limits, give_up_on: Sequence[str] = ()) -> None:
    """Wait until every process with a pending request has answered, has died, or was killed at its time limit.

    After a failure of one of the kinds ``give_up_on``, the other processes are not awaited.
    """
    start = time.monotonic()
    for process in processes:
        if process.is_pending and not process.wait_for_answer(QUICK - min(time.monotonic() - start, QUICK)):
            break
        if process.failure is not None and process.failure.kind in give_up_on:
            break
    passed = min(time.monotonic() - start, QUICK)
    while pending := [process for process in processes if process.is_pending]:
        lost = any(p.failure is not None and p.failure.kind in give_up_on for p in processes)
        ready, seconds = _wait(pending, AT_ONCE if lost else _rest(pending, limits, passed))
        passed += seconds
        for process in pending:
            answer, end = process.sources()
            if answer in ready or end in ready:
                process.read_answer(answer in ready)
            elif not lost and (limit := process.limit(limits, passed)) is not None and passed >= limit:
                process.give_up(limits)
        if lost and not ready:
            return


def _wait(processes: Sequence[EnvProcess], seconds: float) -> tuple[list[Any], float]:
    """Wait until a process answers or ends; return what is ready, and the seconds that count towards time limits."""
    start = time.monotonic()
    ready = connection.wait([source for process in processes for source in process.sources()], seconds)
    passed = time.monotonic() - start
    return ready, passed if passed < seconds + SLICE else seconds / 2


def _rest(processes: Sequence[EnvProcess], limits: Limits, passed: float) -> float:
    """Return the seconds until the first time limit, at most ``SLICE``."""
    all_limits = [limit for process in processes if (limit := process.limit(limits, passed)) is not None]
    return min(max(min(all_limits, default=SLICE + passed) - passed, 0.0), SLICE)
