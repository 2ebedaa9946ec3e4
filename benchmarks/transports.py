"""Cost of a transport: blocks of transitions from a collector to the coordinator.

Used by ``benchmarks.distributed``. The other side is a separate process, which reads each block, moves it into a file
as the journal does, and answers. No policy, no env, no buffer.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lightning_ding.distributed.transport import Channel, Message, Store

ROWS = 64
PIECES = 100
NAMESPACE = "benchmark"
TRANSPORTS = ("flask_fs", "ray")
OBJECT_STORE = 256 * 1024**2


def block_of(observation: Any) -> dict[str, Any]:
    """Return a block of transitions whose observations are all as ``observation``."""
    obs = np.stack([observation] * ROWS)
    numbers = {name: np.arange(ROWS) for name in ("action", "env_id", "episode_id", "policy_version")}
    ends = {name: np.zeros(ROWS, bool) for name in ("terminated", "truncated")}
    return {"obs": obs, "next_obs": obs.copy(), "reward": np.ones(ROWS, np.float32), **numbers, **ends}


BLOCKS = {
    "cartpole": block_of(np.zeros(4, np.float32)),
    "image_84x84x4": block_of(np.zeros((84, 84, 4), np.uint8)),
}


class Taker:
    """Does with a block what the coordinator does, but for the buffer.

    Args:
        folder: Folder of the file into which blocks are moved.
        store: Store that contains the blocks.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._file = folder / "journal.safetensors"
        self._store = store

    def handle(self, name: str, message: Message) -> Message:
        """Read a block, move it into the journal and say so."""
        tensors = self._store.get(message["data_id"]).tensors
        self._store.move(message["data_id"], self._file)
        return {"accepted": True, "rows": len(tensors["reward"])}


class TakerActor:
    """The taker as Ray's actor.

    Args:
        folder: Folder of the file into which blocks are moved.
    """

    def __init__(self, folder: Path) -> None:
        from lightning_ding.distributed.ray.store import RayStore

        self._store = RayStore(folder)
        self._taker = Taker(folder, self._store)

    def handle(self, name: str, message: Message, deleted: Any) -> Any:
        """Answer a call of ``RayChannel``."""
        from lightning_ding.distributed.ray.workers import answer

        return answer(self._taker.handle, self._store, name, message, deleted)


def serve(folder: Path) -> None:
    """Be the taker over HTTP, until the standard input ends."""
    from lightning_ding.distributed.file_store import FileStore
    from lightning_ding.distributed.flask_fs.server import FlaskServer

    server = FlaskServer(Taker(folder, FileStore(folder / "data")).handle, "127.0.0.1", 0, None, 0, 1_000_000)
    server.start()
    print(json.dumps({"port": server.port}), flush=True)
    sys.stdin.read()
    server.close()


@contextmanager
def channel_to_taker(transport: str, folder: Path) -> Iterator[Channel]:
    """Start a taker, and give the way to it."""
    if transport == "ray":
        import ray

        from lightning_ding.distributed.ray import coordinator_class
        from lightning_ding.distributed.ray.channel import RayChannel

        ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE)
        actor = coordinator_class(TakerActor, NAMESPACE).remote(folder)
        try:
            yield RayChannel(NAMESPACE, 60.0)
        finally:
            ray.kill(actor)
            ray.shutdown()
        return
    from lightning_ding.distributed.flask_fs.channel import FlaskChannel

    command = [sys.executable, "-m", "benchmarks.distributed", "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            ready, _, _ = select.select([server.stdout], [], [], 60.0)
            port = json.loads(server.stdout.readline())["port"] if ready else None
            yield FlaskChannel(folder, "127.0.0.1", port, None, 0, 60.0, 2_000_000_000)
        finally:
            server.stdin.close()
            server.wait(30.0)


def cost(transport: str) -> dict[str, float]:
    """Return the median microseconds per transition of each size, of putting a block and of the message about it."""
    result: dict[str, float] = {}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with TemporaryDirectory() as folder, channel_to_taker(transport, Path(folder)) as channel:
        for size, block in BLOCKS.items():
            put, called = zip(*[_send(channel, block) for _ in range(PIECES + 10)][10:], strict=True)
            result[f"{size}_put_us"] = 1e6 / ROWS * statistics.median(put)
            result[f"{size}_message_us"] = 1e6 / ROWS * statistics.median(called)
            result[f"{size}_us"] = 1e6 / ROWS * statistics.median(map(sum, zip(put, called, strict=True)))
    return result


def _send(channel: Channel, block: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds of putting a block, and of the message that hands it over."""
    start = time.perf_counter()
    handle = channel.store.put("data", block)
    put = time.perf_counter()
    reply = channel.call("collector_data_task", {"data_id": handle})
    end = time.perf_counter()
    assert reply["rows"] == ROWS
    return put - start, end - put
