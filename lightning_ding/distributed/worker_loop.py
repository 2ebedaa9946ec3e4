"""The life of a worker: it connects, asks for tasks, does them, and says that it is alive meanwhile."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch

from lightning_ding import __version__
from lightning_ding.config import require
from lightning_ding.distributed.channel import Channel, Message
from lightning_ding.distributed.errors import CoordinatorGoneError, LeaseLostError, Refusal
from lightning_ding.distributed.sigterm import Leave, raised_on_sigterm
from lightning_ding.distributed.wire import SCHEMA
from lightning_ding.exit_codes import ORPHANED, STALLED, TERMINATED

logger = logging.getLogger(__name__)

BEATS = 4  # in the time of a lease, so that three may get lost
LONGEST_REPORT = 2000  # characters of a traceback, from its end
GOODBYE = 3.0  # seconds that a worker takes at most to say that it leaves


def end_process(silence: float) -> None:
    """Show what all threads stand at, and end this process with 124, so that whoever started it starts another."""
    logger.critical("nothing has gone on for %.1f s: this process ends", silence)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(STALLED)


class Task(NamedTuple):
    """What the coordinator gave a worker to do."""

    name: str
    """``collector_start_task`` or ``learner_start_task``."""
    task_id: str
    run_id: int | str
    """Of this attempt at the task; what another attempt's owner sends is refused."""
    task_info: dict[str, Any]


class CommWorker:
    """One worker's connection to the coordinator, and the task that it owns.

    Everything that is sent goes through :meth:`call`. A daemon thread renews the lease, as long as :meth:`tick` is
    called or answers come: a worker that hangs loses its task to another one.

    Args:
        channel: The way to the coordinator, for several threads at once; who made it closes it.
        role: ``"collector"`` or ``"learner"``.
        stall_timeout: Seconds without a tick or an answer after which it counts as hung, > 0; None for never.
    """

    def __init__(
        self, channel: Channel, role: Literal["collector", "learner"], stall_timeout: float | None = None
    ) -> None:
        require(role in ("collector", "learner"), "role", '"collector" or "learner"', role)
        good = stall_timeout is None or stall_timeout > 0
        require(good, "stall_timeout", "> 0 seconds or None", stall_timeout)
        self.role = role
        self.channel = channel
        self.worker_id = uuid.uuid4().hex
        """Random for each start of a process, so that a second one is never taken for the first."""
        self.task: Task | None = None
        """The one that it owns."""
        self.on_close: Callable[[], None] | None = None
        """Called, perhaps from another thread, when the coordinator wants the task closed."""
        self.on_stall: Callable[[float], None] | None = None
        """Called with the seconds for which nothing has gone on, when the lease is over too because of that."""
        self._stall_timeout = stall_timeout
        self._lease = 15.0
        self._is_connected = False
        self._is_leaving = False
        self._exit_code = 0
        self._lost: Task | None = None
        self._last_tick = time.monotonic()
        self._stopping = threading.Event()
        self._heart: threading.Thread | None = None

    # ------------------------------------------------------------------ talking

    def connect(self) -> None:
        """Make this worker known to the coordinator, any number of times, and begin to send heartbeats.

        Raises:
            Refusal: If it is not wanted, as one of another version is (426).
            CoordinatorGoneError: If there is no coordinator.
        """
        resource = {"cpu": os.cpu_count() or 1, "gpu": torch.cuda.device_count()}
        about = {"worker_id": self.worker_id, "role": self.role, "version": __version__, "schema": SCHEMA}
        answer = self.channel.call("connect", {**about, "resource": resource})
        self._lease = float(answer["lease"])
        self._is_connected = True
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._heart.start()

    def call(self, name: str, **fields: Any) -> Message:
        """Send a message about the task, if there is one, and return the answer.

        Args:
            name: Of the message.
            fields: What it says beside ``worker_id``, ``task_id`` and ``run_id``.

        Raises:
            LeaseLostError: If the task has gone to another; it is dropped, and ``next_task`` connects again.
            Refusal: If the coordinator does not take the message.
            CoordinatorGoneError: If it could not be reached for too long.
        """
        task = self.task
        try:
            answer = self.channel.call(name, {**self._about(task), **fields})
        except LeaseLostError:
            if task is self.task:  # another thread's late answer must not drop the next one
                self._drop()
            raise
        self._last_tick = time.monotonic()
        return answer

    def tick(self) -> None:
        """Say that something goes on; to be called at each step of the work, from any thread.

        Raises:
            LeaseLostError: If a heartbeat was told that the task has gone to another.
        """
        self._last_tick = time.monotonic()
        if self._lost is not None and self._lost is self.task:
            self._drop()
            raise LeaseLostError("the task has gone to another worker")

    def next_task(self) -> Task | None:
        """Wait for a task and return it; None if the run is over or this worker leaves.

        Raises:
            Refusal: If this worker is not wanted.
            CoordinatorGoneError: If the coordinator could not be reached for too long.
        """
        self.task = None
        while not self._is_leaving:
            try:
                if not self._is_connected:
                    self.connect()
                answer = self.call("task")  # waits there for a moment if there is none
            except LeaseLostError:
                continue  # the coordinator was started anew and knows nobody
            if answer["shutdown"]:
                return None
            if (given := answer["task"]) is not None:
                self.task = Task(given["name"], given["task_id"], given["run_id"], given["task_info"])
                return self.task
            self._stopping.wait(answer.get("wait", 0.0))
        return None

    # ------------------------------------------------------------------ life

    def run(self, work: Callable[[Task], None]) -> int:
        """Do tasks until the run is over.

        Args:
            work: Does a task and sends what closes it. What it raises is reported, and the next task is asked for; a
                task whose lease is lost is dropped without a word.

        Returns:
            The exit code of the process: 0 when the run is over, 143 after a SIGTERM, 125 if the coordinator is gone,
            or what :meth:`leave` was given.

        Raises:
            Refusal: If this worker is not wanted.
        """
        try:
            with raised_on_sigterm():
                while (task := self.next_task()) is not None:
                    self._do(task, work)
        except CoordinatorGoneError as error:
            logger.error("%s leaves: %s", self.role, error)
            return ORPHANED
        except Leave:
            logger.info("%s leaves after a SIGTERM", self.role)
            return TERMINATED
        finally:
            self.close()
        return self._exit_code

    def leave(self, exit_code: int = 0) -> None:
        """Let the next look for a task find none, and :meth:`run` return this."""
        self._is_leaving = True
        self._exit_code = exit_code

    def close(self) -> None:
        """Stop the heartbeats and say goodbye, which lets go of the task; any number of times."""
        self._is_leaving = True
        self._stopping.set()
        if self._is_connected:
            self._is_connected = False
            goodbye = threading.Thread(target=self._say_goodbye, name="goodbye", daemon=True)
            goodbye.start()  # the coordinator may be gone, and the channel would look for it for long
            goodbye.join(GOODBYE)
        self.task = None

    def _do(self, task: Task, work: Callable[[Task], None]) -> None:
        try:
            work(task)
        except LeaseLostError as error:
            logger.warning("%s dropped the task %s: %s", self.role, task.task_id, error)
        except CoordinatorGoneError:
            raise
        except Exception as error:
            logger.exception("%s failed in the task %s", self.role, task.task_id)
            self._report(error)
        finally:
            self.on_close = None

    def _report(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            self.call("fail", error=text[-LONGEST_REPORT:])
        except Refusal as refusal:  # such as that the task has gone to another
            logger.info("nobody wants to know of the failure: %s", refusal)

    def _say_goodbye(self) -> None:
        try:
            self.channel.call("disconnect", {"worker_id": self.worker_id})
        except (Refusal, CoordinatorGoneError) as error:
            logger.info("%s could not say goodbye: %s", self.role, error)

    def _drop(self) -> None:
        self.task = None
        self._is_connected = False

    def _about(self, task: Task | None) -> Message:
        about: Message = {"worker_id": self.worker_id}
        return about if task is None else {**about, "task_id": task.task_id, "run_id": task.run_id}

    # ------------------------------------------------------------------ heartbeats

    def _beat(self) -> None:
        while not self._stopping.wait(self._lease / BEATS):
            silence = time.monotonic() - self._last_tick
            if self._stall_timeout is None or silence <= self._stall_timeout:
                self._beat_once(self.task)
            else:
                logger.error("nothing has gone on for %.1f s: the lease is not renewed", silence)
                if self.on_stall is not None and silence > self._stall_timeout + self._lease:
                    self.on_stall(silence)

    def _beat_once(self, task: Task | None) -> None:
        try:
            answer = self.channel.call("heartbeat", self._about(task))
        except LeaseLostError:
            self._lost = task
        except Exception as error:  # the next one may get through, and the worker's own calls say what is wrong
            logger.warning("a heartbeat failed: %s", error)
        else:
            on_close = self.on_close
            if answer.get("close") and on_close is not None and task is self.task:
                on_close()
