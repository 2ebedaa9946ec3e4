"""A coordinator that measures its process once a second, over HTTP in a separate process or as Ray's actor.

Used by ``benchmarks.capacity``. The coordinator and its server are those of the product. The size of its folder is
measured outside of its process, because looking at thousands of files takes time from the answers.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.simulated import MakeChannel, PlainChannel
from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs.auth import read_token
from lightning_ding.envs.process.lifeline import die_with, lifeline

START_TIMEOUT = 120.0
NAMESPACE = "capacity"
OBJECT_STORE = 512 * 1024**2
DISK_EVERY = 10.0  # seconds between two measurements of the folder
Sample = dict[str, float]


class Meter:
    """Takes a sample of this process every second, in a thread.

    Args:
        coordinator: The coordinator in this process.
        take: Receives each sample.
    """

    def __init__(self, coordinator: Coordinator, take: Callable[[Sample], None]) -> None:
        self._coordinator = coordinator
        self._take = take
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self._thread.start()

    def sample(self) -> Sample:
        """Return what this process holds now."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        counters, used = self._coordinator.status(), resource.getrusage(resource.RUSAGE_SELF)
        return {
            "time": time.perf_counter(),
            "cpu": used.ru_utime + used.ru_stime,
            "switches": float(used.ru_nvcsw + used.ru_nivcsw),
            "memory_mib": int(status["VmRSS"].split()[0]) / 1024,
            "threads": float(status["Threads"]),
            "files": float(len(os.listdir("/proc/self/fd"))),
            "queue": float(getattr(self._coordinator._server, "unanswered", 0)),  # Ray does not report it
            "collectors": float(counters["collector_tasks"]["running"]),
            "env_step": float(counters["env_step"]),
            "refused": float(counters["refused"]),
            "journal_depth": counters.get("journal_depth", 0.0),
        }

    def _run(self) -> None:
        while True:
            self._take(self.sample())
            time.sleep(1.0)


class DiskMeter:
    """Measures the folder of a run every ten seconds, with ``du`` of GNU in a separate process.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._samples = [self._sample()]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disk meter", daemon=True)
        self._thread.start()

    def add_to(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples with the bytes of journal and folder that were measured last before each, or first of all."""
        found = list(self._samples)
        times = [one["time"] for one in found]
        return [{**found[max(0, bisect_right(times, one["time"]) - 1)], **one} for one in samples]

    def stop(self) -> None:
        """Stop measuring."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(DISK_EVERY):
            self._samples.append(self._sample())

    def _sample(self) -> Sample:
        journal = self._folder / "coordinator" / "journal"
        command = ["du", "-sB1", str(journal), str(self._folder)]  # the second sum leaves out the first
        lines = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.split("\n")
        sizes = {line.split("\t")[1]: float(line.split("\t")[0]) for line in lines if line}
        in_journal = sizes.get(str(journal), 0.0)
        disk = in_journal + sizes.get(str(self._folder), 0.0)
        return {"time": time.perf_counter(), "journal_bytes": in_journal, "disk_bytes": disk}


def serve(file: Path) -> None:
    """Run a coordinator over HTTP and print samples as lines of JSON, until the standard input ends.

    Args:
        file: JSON file with the config of the run.
    """
    torch.set_num_threads(1)
    coordinator = Coordinator(json.loads(file.read_text()))
    coordinator.start()
    Meter(coordinator, lambda sample: print(json.dumps(sample), flush=True))
    sys.stdin.read()
    os._exit(0)


SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static int late(const char *name, int file) { usleep(DELAY); return ((int (*)(int))dlsym(RTLD_NEXT, name))(file); }
int fsync(int file) { return late("fsync", file); }
int fdatasync(int file) { return late("fdatasync", file); }
"""


def environment_of_slow_disk(fsync_ms: float, folder: Path) -> dict[str, str]:
    """Return the environment of a process whose ``fsync`` takes so many milliseconds longer, that of SQLite too.

    A C compiler makes the library for it in the folder; 0 needs none.
    """
    if not fsync_ms:
        return dict(os.environ)
    source, library = folder / "slow_disk.c", folder / "slow_disk.so"
    source.write_text(SLOW_DISK)
    delay = f"-DDELAY={int(1000 * fsync_ms)}"
    subprocess.run(["cc", "-shared", "-fPIC", delay, "-o", str(library), str(source), "-ldl"], check=True)
    return {**os.environ, "LD_PRELOAD": str(library.resolve())}


class MeasuredActor:
    """The product's actor of a coordinator, with its samples.

    Args:
        config: Config of the run.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        from lightning_ding.distributed.ray.workers import CoordinatorActor

        torch.set_num_threads(1)
        self._actor = CoordinatorActor(resolve(ParallelConfig, config))
        if self._actor.mistake() is not None:
            raise RuntimeError(str(self._actor.mistake()))
        self._samples: list[Sample] = []
        Meter(self._actor._coordinator, self._samples.append)

    def handle(self, name: str, message: Any, deleted: Any) -> Any:
        """Answer a call of ``RayChannel``."""
        return self._actor.handle(name, message, deleted)

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def samples(self) -> list[Sample]:
        """Return all samples."""
        return list(self._samples)


class Coordinating:
    """A running coordinator.

    Args:
        connect: Connects a process to it, and returns what makes a connection of a worker; it can be pickled.
        samples: Returns all samples so far.
        pid: Id of its process.
    """

    def __init__(self, connect: Callable[[], MakeChannel], samples: Callable[[], list[Sample]], pid: int) -> None:
        self.connect = connect
        self.samples = samples
        self.pid = pid


@contextmanager
def coordinating(config: dict[str, Any], fsync_ms: float = 0.0) -> Iterator[Coordinating]:
    """Run a coordinator in a separate process, which ends with this one.

    Args:
        config: Config of the run.
        fsync_ms: Milliseconds by which each ``fsync`` of a coordinator over HTTP is delayed, >= 0.
    """
    with _over_ray(config) if config["system"]["transport"] == "ray" else _over_http(config, fsync_ms) as running:
        disk = DiskMeter(Path(config["main"]["exp_name"]))
        try:
            yield Coordinating(running.connect, lambda: disk.add_to(running.samples()), running.pid)
        finally:
            disk.stop()


@contextmanager
def _over_http(config: dict[str, Any], fsync_ms: float) -> Iterator[Coordinating]:
    folder = Path(config["main"]["exp_name"])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "capacity.json"
    file.write_text(json.dumps(config))
    end = lifeline().fileno()
    command = [sys.executable, "-m", "benchmarks.capacity", "--serve", str(file), "--lifeline", str(end)]
    log = (folder / "coordinator.log").open("w")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "pass_fds": (end,)}
    pipes["env"] = environment_of_slow_disk(fsync_ms, folder)
    with log, subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        samples: list[Sample] = []
        try:
            if not select.select([process.stdout], [], [], START_TIMEOUT)[0] or not (line := process.stdout.readline()):
                raise RuntimeError(f"the coordinator does not start:\n{(folder / 'coordinator.log').read_text()}")
            samples.append(json.loads(line))
            lines = process.stdout
            threading.Thread(target=lambda: samples.extend(map(json.loads, lines)), daemon=True).start()
            yield Coordinating(partial(_http_channels, config), lambda: list(samples), process.pid)
        finally:
            process.kill()


@contextmanager
def _over_ray(config: dict[str, Any]) -> Iterator[Coordinating]:
    import ray

    from lightning_ding.distributed.ray import coordinator_class

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE)
    try:
        actor = coordinator_class(MeasuredActor, NAMESPACE).remote(config)
        pid = ray.get(actor.pid.remote(), timeout=START_TIMEOUT)
        connect = partial(_ray_channels, ray.get_runtime_context().gcs_address)
        yield Coordinating(connect, lambda: ray.get(actor.samples.remote()), pid)
    finally:
        ray.shutdown()


def _http_channels(config: dict[str, Any]) -> MakeChannel:
    folder = Path(config["main"]["exp_name"])
    address = json.loads((folder / "coordinator.json").read_text())
    token, store = read_token(None, folder), FileStore.of(resolve(ParallelConfig, config))
    return lambda: PlainChannel(address, token, store)


def _ray_channels(address: str) -> MakeChannel:
    import ray

    from lightning_ding.distributed.ray.channel import RayChannel

    if not ray.is_initialized():
        ray.init(address, log_to_driver=False)
    return lambda: RayChannel(NAMESPACE, 60.0)


def end_with(number: int) -> None:
    """End this process when the process that holds the other end of a lifeline ends."""
    from multiprocessing.connection import Connection

    _kept.append(Connection(number, writable=False))
    die_with(_kept[0])


_kept: list[Any] = []  # references, without which the descriptor would be closed
