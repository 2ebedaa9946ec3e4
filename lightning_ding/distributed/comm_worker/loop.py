"""The loop of a worker: connect to the coordinator, request tasks, do them, and send heartbeats."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lightning_ding.config import require
from lightning_ding.distributed.messages import version
from lightning_ding.distributed.stop_signals import StopSignal, raised_once
from lightning_ding.distributed.transport import (
    ROLES,
    Channel,
    CoordinatorGoneError,
    LeaseLostError,
    Message,
    Refusal,
    Role,
)
from lightning_ding.utils.exit_codes import ORPHANED, STALLED, TERMINATED

logger = logging.getLogger(__name__)

FIRST_BEAT = 1 / 2  # share of a lease without an answer after which a worker sends a heartbeat
NEXT_BEAT = 1 / 8  # share of a lease until a lost heartbeat is sent again, so that three may get lost
LONGEST_REASON, LONGEST_STACK = 1000, 2000  # first characters of an error, and last ones of its traceback, in a report
GOODBYE = 3.0  # seconds at most to disconnect


def end_process(silence: float) -> None:
    """Print the stacks of all threads and end this process with exit code 124, after which it is restarted."""
    logger.critical("no progress for %.1f s: this process ends", silence)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(STALLED)


def report_of(error: BaseException) -> str:
    """Return the report of an error: the error itself in the first line, which a log or a result shows, and its stack.

    Example:
        >>> report_of(ValueError("no such key: 'nope'"))
        "ValueError: no such key: 'nope'"
    """
    what = traceback.format_exception_only(type(error), error)
    reason = " ".join("".join(what).split())[:LONGEST_REASON]
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__)[: -len(what)])
    if len(stack) > LONGEST_STACK:
        stack = "  ...\n" + stack[-LONGEST_STACK:].partition("\n")[2]  # whole lines
    return f"{reason}\n{stack}".rstrip()


class AssignedTask(NamedTuple):
    """A task as the coordinator sends it to a worker."""

    name: str
    """``collector_start_task`` or ``learner_start_task``."""
    task_id: str
    run_id: int | str
    """Id of this attempt at the task; messages of other attempts are refused."""
    task_info: dict[str, Any]


class CommWorker:
    """A worker's connection to the coordinator, and the task that it owns.

    All messages go through :meth:`call`, and each renews the lease. A daemon thread renews it in between, as long as
    :meth:`tick` is called or answers arrive. A worker that hangs therefore loses its task to another one.

    Args:
        channel: Channel to the coordinator, used by several threads; the caller closes it.
        role: ``"collector"`` or ``"learner"``.
        stall_timeout: Seconds without a tick or an answer after which the worker is considered hung, > 0; None for
            never.
        worker_id: Id of the worker, which no other process may have; None for a new random one.
    """

    def __init__(
        self, channel: Channel, role: Role, stall_timeout: float | None = None, worker_id: str | None = None
    ) -> None:
        require(role in ROLES, "role", '"collector" or "learner"', role)
        good = stall_timeout is None or stall_timeout > 0
        require(good, "stall_timeout", "> 0 seconds or None", stall_timeout)
        self.role = role
        self.channel = channel
        self.worker_id = worker_id or uuid.uuid4().hex
        """Random for each process, so that a restarted worker is never taken for the previous one."""
        self.task: AssignedTask | None = None
        """The task that this worker owns."""
        self.on_close: Callable[[], None] | None = None
        """Function that is called, possibly from another thread, when the coordinator closes the task."""
        self.on_stall: Callable[[float], None] | None = None
        """Function that is called with the seconds without progress once the lease has ended too."""
        self._stall_timeout = stall_timeout
        self._lease = 15.0
        self._is_connected = False
        self._is_leaving = False
        self._exit_code = 0
        self._lost: AssignedTask | None = None
        self._last_tick = self._renewed_at = time.monotonic()
        self._stopping = threading.Event()
        self._heart: threading.Thread | None = None

    # ------------------------------------------------------------------ messages

    def connect(self) -> None:
        """Register this worker with the coordinator and start the heartbeats; may be called repeatedly.

        Raises:
            Refusal: If the coordinator refuses this worker, for example because of its version (426).
            CoordinatorGoneError: If the coordinator could not be reached for too long.
        """
        resource = {"cpu": os.cpu_count() or 1, "gpu": torch.cuda.device_count()}
        about = {"worker_id": self.worker_id, "role": self.role, "version": version()}
        answer = self.channel.call("connect", {**about, "resource": resource})
        self._lease = float(answer["lease"])
        self._is_connected = True
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._heart.start()

    def call(self, name: str, **fields: Any) -> Message:
        """Send a message about the current task, if there is one, and return the answer.

        Args:
            name: Name of the message.
            fields: Content of the message in addition to ``worker_id``, ``task_id`` and ``run_id``.

        Raises:
            LeaseLostError: If another worker has the task now; it is dropped, and ``next_task`` connects again.
            Refusal: If the coordinator refuses the message.
            CoordinatorGoneError: If the coordinator could not be reached for too long.
        """
        task, sent_at = self.task, time.monotonic()
        try:
            answer = self.channel.call(name, {**self._about(task), **fields})
        except LeaseLostError:
            if task is self.task:  # a late answer to another thread must not drop the next task
                self._drop()
            raise
        self._last_tick, self._renewed_at = time.monotonic(), sent_at
        return answer

    def tick(self) -> None:
        """Record progress; call it at each step of the work, from any thread.

        Raises:
            LeaseLostError: If a heartbeat has found that another worker has the task now.
        """
        self._last_tick = time.monotonic()
        if self._lost is not None and self._lost is self.task:
            self._drop()
            raise LeaseLostError("another worker has the task now")

    def next_task(self) -> AssignedTask | None:
        """Wait for a task and return it; None if the run is over or :meth:`leave` was called.

        Raises:
            Refusal: If the coordinator refuses this worker.
            CoordinatorGoneError: If the coordinator could not be reached for too long.
        """
        self.task = None
        while not self._is_leaving:
            try:
                if not self._is_connected:
                    self.connect()
                answer = self.call("task")  # the coordinator delays the answer a little if there is no task
            except LeaseLostError:
                continue  # the coordinator was restarted and does not know this worker
            if answer["shutdown"]:
                return None
            if (given := answer["task"]) is not None:
                self.task = AssignedTask(given["name"], given["task_id"], given["run_id"], given["task_info"])
                return self.task
            self._stopping.wait(answer.get("wait", 0.0))
        return None

    # ------------------------------------------------------------------ start and end

    def run(self, work: Callable[[AssignedTask], None]) -> int:
        """Do tasks until the run is over.

        Args:
            work: Function that does a task and sends the message that closes it. Its errors are reported to the
                coordinator, and the next task is requested; a task whose lease is lost is dropped without a report.

        Returns:
            The exit code of the process: 0 when the run is over, 143 after SIGTERM, 125 if the coordinator is gone, or
            the argument of :meth:`leave`.

        Raises:
            Refusal: If the coordinator refuses this worker.
        """
        try:
            with raised_once(StopSignal, [signal.SIGTERM]):
                while (task := self.next_task()) is not None:
                    self._do(task, work)
        except CoordinatorGoneError as error:
            logger.error("%s leaves: %s", self.role, error)
            return ORPHANED
        except StopSignal:
            logger.info("%s leaves after a SIGTERM", self.role)
            return TERMINATED
        finally:
            self.close()
        return self._exit_code

    def leave(self, exit_code: int = 0) -> None:
        """Make :meth:`run` return an exit code instead of requesting another task."""
        self._is_leaving = True
        self._exit_code = exit_code

    def close(self) -> None:
        """Stop the heartbeats and disconnect, which releases the task; may be called repeatedly."""
        self._is_leaving = True
        self._stopping.set()
        if self._is_connected:
            self._is_connected = False
            goodbye = threading.Thread(target=self._disconnect, name="disconnect", daemon=True)
            goodbye.start()  # without a coordinator, the channel would retry for a long time
            goodbye.join(GOODBYE)
        self.task = None

    def _do(self, task: AssignedTask, work: Callable[[AssignedTask], None]) -> None:
        try:
            work(task)
        except LeaseLostError as error:
            logger.warning("%s dropped the task %s: %s", self.role, task.task_id, error)
        except CoordinatorGoneError:
            raise
        except Exception as error:
            logger.exception("%s failed in the task %s", self.role, task.task_id)
            try:
                self.call("fail", error=report_of(error))
            except Refusal as refusal:  # for example because another worker has the task now
                logger.info("the coordinator refuses the report of the failure: %s", refusal)
        finally:
            self.on_close = None

    def _disconnect(self) -> None:
        try:
            self.channel.call("disconnect", {"worker_id": self.worker_id})
        except (Refusal, CoordinatorGoneError) as error:
            logger.info("%s could not disconnect: %s", self.role, error)

    def _drop(self) -> None:
        self.task = None
        self._is_connected = False

    def _about(self, task: AssignedTask | None) -> Message:
        about: Message = {"worker_id": self.worker_id}
        return about if task is None else {**about, "task_id": task.task_id, "run_id": task.run_id}

    # ------------------------------------------------------------------ heartbeats

    def _beat(self) -> None:
        beat_at = 0.0
        while not self._stopping.wait(max(0.0, self._next_beat(beat_at) - time.monotonic())):
            if self._next_beat(beat_at) > time.monotonic():
                continue  # an answer has renewed the lease during the wait
            beat_at = time.monotonic()
            silence = beat_at - self._last_tick
            if self._stall_timeout is None or silence <= self._stall_timeout:
                if self._beat_once(self.task):
                    self._renewed_at = max(self._renewed_at, beat_at)
            else:
                logger.error("no progress for %.1f s: the lease is not renewed", silence)
                if self.on_stall is not None and silence > self._stall_timeout + self._lease:
                    self.on_stall(silence)

    def _next_beat(self, previous: float) -> float:
        """Return the time of the next heartbeat after a previous one, which may have been lost."""
        return max(self._renewed_at + FIRST_BEAT * self._lease, previous + NEXT_BEAT * self._lease)

    def _beat_once(self, task: AssignedTask | None) -> bool:
        """Send a heartbeat, and return whether it was answered."""
        try:
            answer = self.channel.call("heartbeat", self._about(task))
        except LeaseLostError:
            self._lost = task
        except Exception as error:  # the next one may succeed, and the worker's own calls raise lasting errors
            logger.warning("a heartbeat failed: %s", error)
            return False
        else:
            on_close = self.on_close
            if answer.get("close") and on_close is not None and task is self.task:
                on_close()
        return True
