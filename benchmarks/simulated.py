"""Simulated workers of a distributed run: they send real messages and real blocks, but step no envs.

Used by ``benchmarks.capacity``. Every simulated collector is a thread with a separate connection, and the product's
``CommWorker`` with its heartbeats. Messages go through a channel that records how long each answer takes.
"""

from __future__ import annotations

import json
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from typing_extensions import override

from lightning_ding.distributed.block_files import flatten, replacing
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.config import LearningTask
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs import CHANNEL_HEADER
from lightning_ding.distributed.published_weights import fetch_weights, publish_weights
from lightning_ding.distributed.transport import Channel, CoordinatorGoneError, LeaseLostError, Message, Refusal, Store

ROWS = 64
ENVS = 4
TIMEOUT = 60.0  # seconds for an answer
DATA = "collector_data_task"
MakeChannel = Callable[[], Channel]


@dataclass
class Record:
    """Measurements of all simulated workers of a process."""

    messages: list[tuple[float, str, float]] = field(default_factory=list)
    """Time of each answer, name of the message, and seconds from the request to the answer."""
    events: Counter[str] = field(default_factory=Counter)
    """Numbers of lost leases, refusals, blocks that had to wait, and downloads of weights."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, name: str) -> None:
        """Count an event."""
        with self.lock:
            self.events[name] += 1

    def between(self, start: float, end: float) -> Record:
        """Return the messages that were answered in an interval, with all events."""
        kept = [one for one in list(self.messages) if start <= one[0] < end]
        return Record(kept, Counter(self.events))


class PlainChannel(Channel):
    """Sends the messages of a ``FlaskChannel`` over plain sockets, with a small part of the CPU time.

    Like that channel it has one connection for each thread, and sends a request in one piece. It understands only the
    answers of the coordinator, which all give their length.

    Args:
        address: Host and port of the coordinator.
        token: Token of the run.
        store: Store of the run, shared by all workers.
    """

    def __init__(self, address: Mapping[str, Any], token: str | None, store: FileStore) -> None:
        self._address = (str(address["host"]), int(address["port"]))
        lines = (f"Host: {address['host']}:{address['port']}", f"{CHANNEL_HEADER}: 0", f"Authorization: Bearer {token}")
        self._headers = "\r\n".join((*lines, "Content-Type: application/json"))
        self.store = store
        self._of_thread = threading.local()

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        body = json.dumps(message or {}).encode()
        head = f"POST /{name} HTTP/1.1\r\n{self._headers}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        try:
            connection = self._connection()
            connection.sendall(head + body)
            status, content = _read_answer(connection)
        except OSError as error:
            self.close()
            raise CoordinatorGoneError(str(error)) from error
        if status == 200:
            return dict(content["data"])
        reason = str(content["message"])
        raise LeaseLostError(reason) if status == 409 else Refusal(status, reason)

    @override
    def close(self) -> None:
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            connection.close()
            self._of_thread.connection = None

    def _connection(self) -> socket.socket:
        connection: socket.socket | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = socket.create_connection(self._address, TIMEOUT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _read_answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return the status and the content of the coordinator's answer.

    Raises:
        OSError: If the connection ends before the answer is complete.
    """
    received, needed = b"", -1
    while needed < 0 or len(received) < needed:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the connection was closed in an answer")
        received += part
        if needed < 0 and (end := received.find(b"\r\n\r\n")) >= 0:
            begin = received.lower().index(b"\r\ncontent-length:") + 17
            head = end + 4
            needed = head + int(received[begin : received.index(b"\r", begin)])
    return int(received[9:12]), dict(json.loads(received[head:]))


class TimedChannel(Channel):
    """Records the duration of every message of another channel."""

    def __init__(self, channel: Channel, record: Record) -> None:
        self._channel = channel
        self._record = record
        self.store = channel.store

    @override
    def call(self, name: str, message: Message | None = None) -> Message:
        start = time.perf_counter()
        try:
            return self._channel.call(name, message)
        finally:
            end = time.perf_counter()
            self._record.messages.append((end, name, end - start))

    @override
    def close(self) -> None:
        self._channel.close()


@lru_cache(maxsize=1)
def block_of(rows: int = ROWS) -> dict[str, Any]:
    """Return a block of transitions as CartPole-v1 gives them."""
    obs = np.random.default_rng(0).normal(size=(rows + 1, 4)).astype(np.float32)
    ends = {name: torch.zeros(rows, dtype=torch.bool) for name in ("terminated", "truncated")}
    return {
        "obs": torch.from_numpy(obs[:-1].copy()),
        "next_obs": torch.from_numpy(obs[1:].copy()),
        "action": torch.zeros(rows, dtype=torch.int64),
        "reward": torch.ones(rows),
        "env_id": torch.arange(rows) % ENVS,
        "episode_id": torch.arange(rows) % ENVS,
        **ends,
    }


@lru_cache(maxsize=4)
def file_of_block(version: int) -> bytes:
    """Return the file of a block that was collected with a version of the weights."""
    return save(flatten({**block_of(), "policy_version": torch.full((ROWS,), version)}))


def put_block(store: Store, version: int) -> Any:
    """Store a block and return its handle; over HTTP by writing a file whose bytes were made once for all collectors.

    Args:
        store: Store of the run.
        version: Version of the weights that the block was collected with.
    """
    if not isinstance(store, FileStore):
        return store.put("data", {**block_of(), "policy_version": torch.full((ROWS,), version)})
    name = secrets.token_hex(16)
    with replacing(store.folder / "data" / f"{name}.safetensors") as temporary:
        temporary.write_bytes(file_of_block(version))
    return {"kind": "data", "name": name}


class Simulated(threading.Thread):
    """A worker in a thread that does tasks until it is stopped.

    Args:
        make_channel: Makes a connection of this worker alone.
        record: Record of all workers.
    """

    role: Any

    def __init__(self, make_channel: MakeChannel, record: Record) -> None:
        super().__init__(daemon=True)
        self._make_channel = make_channel
        self._record = record
        self._stopping = threading.Event()
        self.has_task = threading.Event()

    def stop(self) -> None:
        """End the current task soon."""
        self._stopping.set()

    @override
    def run(self) -> None:
        channel = TimedChannel(self._make_channel(), self._record)
        worker = CommWorker(channel, self.role)
        try:
            while not self._stopping.is_set() and (task := worker.next_task()) is not None:
                self.has_task.set()
                try:
                    self.work(worker, task)
                except LeaseLostError:
                    self._record.note("lost leases")
                except Refusal as refusal:
                    self._record.note(f"refusals with status {refusal.status}")
        except CoordinatorGoneError:
            self._record.note("lost coordinators")
        finally:
            worker.close()
            channel.close()

    def work(self, worker: CommWorker, task: AssignedTask) -> None:
        """Do a task until this worker is stopped."""
        raise NotImplementedError


class SimulatedCollector(Simulated):
    """Sends a block every ``period`` seconds, and downloads each new publication of the weights.

    Args:
        make_channel: Makes a connection of this worker alone.
        record: Record of all workers.
        period: Seconds from one block to the next; 0 sends as fast as possible.
        generator: Random numbers for the time of the first block.
    """

    role = "collector"

    def __init__(self, make_channel: MakeChannel, record: Record, period: float, generator: random.Random) -> None:
        super().__init__(make_channel, record)
        self._period = period
        self._first = generator.random() * period

    @override
    def work(self, worker: CommWorker, task: AssignedTask) -> None:
        policy_id, serial, version = task.task_info["collector_cfg"]["policy_update_path"][0], -1, 0
        while (weights := fetch_weights(worker, policy_id, serial)) is None:
            if self._stopping.wait(0.5):
                return
        serial, version = weights["serial"], weights["iter"]
        answer = self._send(worker, 0, None, {})  # the first message of a task has no data
        due, seq = time.perf_counter() + self._first, 1
        while not answer["close"]:
            if self._stopping.wait(max(0.0, due - time.perf_counter())):
                return
            worker.tick()
            due = max(due + self._period, time.perf_counter() - self._period)
            handle = put_block(worker.channel.store, version)
            while not (answer := self._send(worker, seq, handle, {policy_id: serial}))["accepted"]:
                self._record.note("blocks that waited")
                if answer["close"] or self._stopping.wait(answer["wait"]):
                    return
            seq += 1
            if answer["policy"].get(policy_id, -1) > serial:
                weights = fetch_weights(worker, policy_id, serial, answer)
                if weights is not None:
                    self._record.note("weights downloads")
                    serial, version = weights["serial"], weights["iter"]

    @staticmethod
    def _send(worker: CommWorker, seq: int, handle: Any, serials: dict[str, int]) -> Message:
        about = {"env_step": 0 if handle is None else ROWS, "returns": [], "lengths": [], "dropped_episodes": []}
        return worker.call(DATA, seq=seq, data_id=handle, metadata=about, serials=serials)


class SimulatedLearner(Simulated):
    """Draws rounds and publishes weights at fixed intervals, without learning.

    Args:
        make_channel: Makes a connection of this worker alone.
        record: Record of all workers.
        weights: Size of the published weights, in numbers.
        publish_every: Seconds from one publication to the next.
        round_every: Seconds from one round to the next.
    """

    role = "learner"

    def __init__(
        self, make_channel: MakeChannel, record: Record, weights: int, publish_every: float, round_every: float
    ) -> None:
        super().__init__(make_channel, record)
        self._model = {"weight": torch.zeros(weights)}
        self._publish_every = publish_every
        self._round_every = round_every

    @override
    def work(self, worker: CommWorker, task: AssignedTask) -> None:
        learning, train_iter, number, due = LearningTask.read(task.task_info), 0, 0, 0.0
        while not self._stopping.wait(self._round_every):
            worker.tick()
            if time.perf_counter() >= due:
                publish_weights(worker, learning, {"model": self._model, "iter": train_iter})
                due = time.perf_counter() + self._publish_every
            said = {"batch_size": 64, "num_batches": 4, "cur_learner_iter": train_iter, "rank": 0, "number": number}
            answer = worker.call("learner_get_data_task", **said, options={})
            number += 1
            if answer["data"] is not None:
                worker.channel.store.get(answer["data"])
                worker.channel.store.delete(answer["data"])
                train_iter += 4
            if answer["stop"]:
                return
