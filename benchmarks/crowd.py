"""Simulated collectors in separate processes, so that a thousand of them do not wait for one interpreter.

Used by ``benchmarks.capacity``. Each process connects to the coordinator and runs up to ``PER_PROCESS`` collectors in
threads.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.simulated import MakeChannel, Record, SimulatedCollector
from lightning_ding.distributed.messages import version

PER_PROCESS = 100
STACK = 512 * 1024  # bytes of a collector's thread
STOP_TIMEOUT = 60.0


class Crowd:
    """Simulated collectors of a process.

    Args:
        connect: Function that connects the process to the coordinator, and returns what makes a connection of a worker.
        collectors: Number of collectors.
        period: Seconds between two blocks of a collector.
        seed: Seed of the times of the first blocks.
        timeout: Seconds in which each collector must get a task.
    """

    def __init__(
        self, connect: Callable[[], MakeChannel], collectors: int, period: float, seed: int, timeout: float
    ) -> None:
        self._pipe, other = get_context("spawn").Pipe()
        arguments = (other, connect, collectors, period, seed, timeout)
        self._process = get_context("spawn").Process(target=_simulate, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def wait(self) -> None:
        """Wait until each collector has a task.

        Raises:
            RuntimeError: If some have none in time.
        """
        if missing := self._pipe.recv():
            raise RuntimeError(missing)

    def between(self, start: float, end: float) -> Record:
        """Return the messages of an interval of ``time.perf_counter``, and all events."""
        self._pipe.send((start, end))
        messages, events = self._pipe.recv()
        return Record(messages, events)

    def stop(self) -> int:
        """Stop all collectors, and return how many have ended before."""
        self._pipe.send(None)
        ended: int = self._pipe.recv()
        self._process.join(STOP_TIMEOUT)
        self._process.kill()
        return ended


def _simulate(
    pipe: Connection, connect: Callable[[], MakeChannel], collectors: int, period: float, seed: int, timeout: float
) -> None:
    threading.stack_size(STACK)
    logging.disable(logging.WARNING)  # collectors that are stopped have no coordinator
    version()  # imports all policies, which threads must not do at the same time
    record, generator, make = Record(), random.Random(seed), connect()
    workers = [SimulatedCollector(make, record, period, generator) for _ in range(collectors)]
    for worker in workers:
        worker.start()
    until = time.monotonic() + timeout
    missing = sum(not worker.has_task.wait(max(0.0, until - time.monotonic())) for worker in workers)
    pipe.send(f"{missing} collectors got no task in {timeout} s: {record.events}" if missing else None)
    while (interval := pipe.recv()) is not None:
        found = record.between(*interval)
        pipe.send((found.messages, found.events))
    pipe.send(sum(not worker.is_alive() for worker in workers))
    for worker in workers:
        worker.stop()
    until = time.monotonic() + STOP_TIMEOUT / 2
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))


def together(records: list[Record]) -> Record:
    """Return the messages and events of several processes as one record."""
    whole = Record()
    for record in records:
        whole.messages += record.messages
        whole.events.update(record.events)
    return whole


def sizes(collectors: int) -> list[int]:
    """Return the number of collectors of each process.

    Example:
        >>> sizes(250)
        [100, 100, 50]
    """
    full, rest = divmod(collectors, PER_PROCESS)
    return [PER_PROCESS] * full + [rest] * bool(rest)
