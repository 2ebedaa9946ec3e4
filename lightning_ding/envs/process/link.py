"""One process of envs, seen from its parent: asking it, waiting for its answer, and its end."""

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
from typing import Any

from gymnasium.vector.utils import clear_mpi_env_vars

from lightning_ding.envs.process.error import Failure, end_of
from lightning_ding.envs.process.life import lifeline
from lightning_ding.envs.process.memory import RESETTING, STEPPING, Block
from lightning_ding.envs.process.script import dumps_for_child, hidden_script
from lightning_ding.envs.process.signals import sigterm_held_back
from lightning_ding.envs.process.worker import DONE, ERROR, MORE, STEP, serve

Limits = tuple["float | None", "float | None"]
"""Seconds for an answer, and seconds more for one that has come to a reset behind a step; None is no limit."""
QUICK = 0.2  # seconds in which the processes are heard in order, before all of them are watched at once
STALL = 10.0  # seconds in which a message that has begun must go on
STARTING = "the start of its process"
AT_ONCE = 0.1  # seconds in which others may tell of their end beside one that has
SLICE = 0.5  # seconds of one wait; when one takes much longer, this process was stopped, and others perhaps with it
LONGEST = 3600.0  # seconds; the system takes no number for granted
UNKNOWN = 255  # exit code, also of a process that lives, when the fork server that would know is dead


class EnvProcess:
    """A process with envs of its own.

    What broke is in ``failure``. Behind a death or a hang the process is killed, and neither its pipe nor its memory is
    used again: a new one takes its place.

    Args:
        context: How processes are started.
        env_ids: The envs in it.
    """

    def __init__(self, context: BaseContext, env_ids: range) -> None:
        self.env_ids = env_ids
        self.rows = slice(env_ids.start, env_ids.stop)
        self.failure: Failure | None = None
        """What went wrong with the last request."""
        self.answer: Any = None
        """What came with the last answer."""
        self.lost: Failure | None = None
        """Why the episodes of its envs were lost, if the next step is still to say so."""
        self.owes = False
        """Whether an answer is to come."""
        self.is_alive = False
        self.block: Block | None = None
        self._doing = STARTING
        self._pipe, child_pipe = context.Pipe()
        self._file = self._pipe.fileno()
        name = f"envs {env_ids.start}-{env_ids.stop - 1}"
        self.process: Any = context.Process(  # type: ignore[attr-defined]
            target=serve, args=(child_pipe, lifeline()), name=name, daemon=True
        )
        hidden = nullcontext() if context.get_start_method() == "fork" else hidden_script()
        with clear_mpi_env_vars(), sigterm_held_back(), hidden:
            self.process.start()
        child_pipe.close()
        self.is_alive = self.owes = True
        self._heard = select.poll()
        self._heard.register(self._file, select.POLLIN)
        self._heard.register(self.process.sentinel, select.POLLIN)
        self._speaks = select.poll()
        self._speaks.register(self._file, select.POLLIN)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            with socket.socket(fileno=os.dup(self._file)) as end:
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(STALL), 0))

    def ask(self, doing: str, request: tuple[Any, ...] | None = None) -> None:
        """Send a request; None is to step with the actions in the shared memory.

        Args:
            doing: What errors call it.
            request: Name of a method of ``Worker`` and its arguments.
        """
        self.send(doing, None if request is None else dumps_for_child(request))

    def send(self, doing: str, data: Any) -> None:
        """Send a request that is pickled already, or None."""
        self._doing, self.failure, self.answer = doing, None, None
        if self.block is not None:
            self.block.at[1] = STEPPING  # until the process says otherwise; it may have been resetting before
        self.owes = (
            True  # before the first byte: whatever breaks in here, no answer is taken for that to another request
        )
        try:
            if data is None:
                os.write(self._file, STEP)
            else:
                os.write(self._file, MORE)
                self._pipe.send_bytes(data)
        except OSError:
            self._has_died()

    def share(self, block: Block) -> None:
        """Give it the shared memory."""
        self.ask(STARTING, ("share",))
        try:
            with socket.socket(fileno=os.dup(self._file)) as end:
                socket.send_fds(end, [DONE], [block.file])
            self.block = block
        except OSError:
            self._has_died()
        finally:
            block.close_file()

    def hear(self, seconds: float) -> bool:
        """Wait for the answer or the end of the process and take it; return whether it came in time."""
        if not self._heard.poll(seconds * 1000):
            return False
        self.take()
        return True

    def take(self) -> None:
        """Take the answer that is there, or note that the process died."""
        code, data = b"", None
        try:
            if self._speaks.poll(0):  # or only its end was seen, and reading would wait
                code = os.read(self._file, 1)
            if code in (MORE, ERROR):
                data = self._pipe.recv_bytes()
        except (OSError, EOFError):
            code = b""
        if code not in (DONE, MORE, ERROR):
            self._has_died()
        elif data is not None:
            self._unpickle(code, data)
        self.owes = False

    def limit(self, limits: Limits) -> float | None:
        """Return the seconds that the process has for this answer; more if a reset follows the step."""
        first, more = limits
        if first is None or not self._is_resetting_behind_a_step():
            return first
        return None if more is None else first + more

    def give_up(self, seconds: float) -> None:
        """End a process that gave no answer in time."""
        self.failure = Failure("hung", tuple(self.env_ids), self._now(), f"no answer within {seconds:g} s")
        self.kill()

    def end(self, seconds: float) -> bool:
        """Wait for a process that was asked to close, end it if need be, and return whether it ended itself."""
        if not self.is_alive:
            return True
        self.process.join(min(seconds, LONGEST))
        ended = self.process.exitcode is not None
        self.kill()
        return ended

    def kill(self) -> None:
        """End the process now; nothing of it is used again."""
        if not self.is_alive:
            return
        self.is_alive = self.owes = False
        if self.process.exitcode in (None, UNKNOWN):
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(STALL)
        self._pipe.close()
        if self.process.exitcode is not None:
            self.process.close()

    def sources(self) -> list[Any]:
        """Return what becomes ready when the process answers or ends."""
        return [self._pipe, self.process.sentinel]

    def _unpickle(self, code: bytes, data: bytes) -> None:
        try:
            answer = ForkingPickler.loads(data)
        except Exception as error:  # classes of envs may raise anything when they are put together again
            summary = f"its answer cannot be unpickled: {type(error).__name__}: {error}"
            trace = "".join(traceback.format_exception(error))
            self.failure = Failure("raised", tuple(self.env_ids), self._now(), summary, trace)
            return
        if code == MORE:
            self.answer = answer
        else:
            number, summary, trace = answer
            self.failure = Failure("raised", (self.env_ids[number],), self._now(), summary, trace)

    def _has_died(self) -> None:
        self.process.join(1.0)
        self.failure = Failure("died", tuple(self.env_ids), self._now(), end_of(self.process.exitcode))
        self.kill()

    def _is_resetting_behind_a_step(self) -> bool:
        return self._doing == "step()" and self.block is not None and bool(self.block.at[1] == RESETTING)

    def _now(self) -> str:
        return "the reset() that its step() led to" if self._is_resetting_behind_a_step() else self._doing


def gather(processes: Sequence[EnvProcess], limits: Limits, give_up_on: Sequence[str] = ()) -> None:
    """Wait until every process that owes an answer has given it, has died, or was ended because it gave none.

    Args:
        processes: Some of them may owe nothing.
        limits: How long one has.
        give_up_on: Kinds of failure behind which there is no waiting for the others.
    """
    start = time.monotonic()
    for process in processes:
        if process.owes and not process.hear(QUICK - min(time.monotonic() - start, QUICK)):
            break
        if process.failure is not None and process.failure.kind in give_up_on:
            break
    passed = min(time.monotonic() - start, QUICK)
    while owing := [process for process in processes if process.owes]:
        lost = any(p.failure is not None and p.failure.kind in give_up_on for p in processes)
        ready, seconds = _wait(owing, AT_ONCE if lost else _rest(owing, limits, passed))
        passed += seconds
        for process in owing:
            if any(source in ready for source in process.sources()):
                process.take()
            elif not lost and (limit := process.limit(limits)) is not None and passed >= limit:
                process.give_up(limit)
        if lost and not ready:
            return


def _wait(processes: Sequence[EnvProcess], seconds: float) -> tuple[list[Any], float]:
    """Wait until one of them answers or ends; return what is ready and the seconds that count for deadlines."""
    start = time.monotonic()
    ready = connection.wait([source for process in processes for source in process.sources()], seconds)
    passed = time.monotonic() - start
    return ready, passed if passed < seconds + SLICE else seconds / 2


def _rest(processes: Sequence[EnvProcess], limits: Limits, passed: float) -> float:
    """Return the seconds until the first of them may be late, not more than a slice."""
    all_limits = [limit for process in processes if (limit := process.limit(limits)) is not None]
    return min(max(min(all_limits, default=SLICE + passed) - passed, 0.0), SLICE)
