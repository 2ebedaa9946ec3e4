"""The benchmark of a coordinator's capacity: what it measures, and which runs it does not accept."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.capacity import UNLIMITED, Fleet, cpu_of_programs, is_served, measure, show
from benchmarks.crowd import sizes
from benchmarks.footprint import descendants
from benchmarks.measured_coordinator import DiskMeter
from benchmarks.simulated import ROWS, PlainChannel, put_block
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs.server import FlaskServer
from lightning_ding.distributed.transport import CoordinatorGoneError, LeaseLostError, Message, Refusal
from tests.processes import start, wait_for

TOKEN = "0123456789abcdef"


def test_soak_without_its_load_or_with_lost_leases_is_no_success() -> None:
    good: dict[str, Any] = {"blocks_per_second": 96.0, "events": Counter({"weights downloads": 3})}

    assert is_served(good, wanted=100.0)
    assert not is_served({**good, "blocks_per_second": 94.0}, wanted=100.0)
    assert not is_served({**good, "events": Counter({"lost leases": 1})}, wanted=100.0)


class Lost:
    def __init__(self) -> None:
        self.store: Any = None

    def call(self, name: str, message: Message | None = None) -> Message:
        raise CoordinatorGoneError("gone")

    def close(self) -> None:
        pass


def connect_to_nothing() -> type[Lost]:
    return Lost


class Running:
    connect = staticmethod(connect_to_nothing)


def test_simulated_learner_that_ends_too_early_is_an_error() -> None:
    fleet: Any = Fleet(Running(), 0, 10.0, 1.0)  # type: ignore[arg-type]
    fleet.start()
    fleet._learner.join(10)
    with pytest.raises(RuntimeError, match=r"1 simulated workers ended too early.*lost coordinators"):
        fleet.stop()


@pytest.mark.slow  # a process imports torch
def test_simulated_collectors_that_end_too_early_are_an_error() -> None:
    fleet: Any = Fleet(Running(), 2, 10.0, 1.0, timeout=0.5)  # type: ignore[arg-type]
    fleet._learner.start()
    with pytest.raises(RuntimeError, match=r"2 collectors got no task in 0\.5 s.*lost coordinators.: 2"):
        fleet._crowds[0].wait()
    with pytest.raises(RuntimeError, match=r"3 simulated workers ended too early"):
        fleet.stop()


def test_collectors_are_shared_out_to_processes() -> None:
    assert sizes(1) == [1]
    assert sizes(250) == [100, 100, 50]
    assert sum(sizes(1000)) == 1000


class Program:
    """A process as psutil lists it."""

    def __init__(self, command: list[str] | None, seconds: float | None) -> None:
        used = None if seconds is None else SimpleNamespace(user=seconds, system=0.5)
        self.info = {"cmdline": command, "cpu_times": used}


def test_cpu_time_is_added_up_by_program(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [
        Program(["/usr/bin/python3.11", "-m", "benchmarks.capacity"], 1.0),
        Program(["/usr/bin/python3.11", "-c", "spawn_main()", "--multiprocessing-fork"], 2.0),
        Program(["/opt/bin/python3.11", "-c", "spawn_main()", "--multiprocessing-fork"], 3.0),
        Program(["ray::MeasuredActor"], 4.0),
        Program(["ray::MeasuredActor.handle"], 5.0),
        Program([], 6.0),  # a thread of the kernel
        Program(["ended"], None),
    ]
    monkeypatch.setattr("psutil.process_iter", lambda _: programs)
    assert cpu_of_programs() == {"python3": 1.5, "collectors": 6.0, "ray::MeasuredActor": 10.0}


def test_samples_have_the_sizes_of_folder_and_journal_that_were_measured_last(tmp_path: Path) -> None:
    journal = tmp_path / "coordinator" / "journal"
    journal.mkdir(parents=True)
    (journal / "entry").write_bytes(b"x" * 100_000)
    meter = DiskMeter(tmp_path)
    (tmp_path / "data").write_bytes(b"x" * 500_000)
    between = time.perf_counter()
    meter._samples.append(meter._sample())
    meter.stop()

    early, late = meter.add_to([{"time": 0.0, "cpu": 1.0}, {"time": time.perf_counter()}])
    assert 100_000 <= early["journal_bytes"] <= early["disk_bytes"] < 400_000
    assert 600_000 <= late["disk_bytes"] < 900_000
    assert early["time"] == 0.0 < between
    assert early["cpu"] == 1.0


def test_plain_channel_understands_the_answers_of_the_server(tmp_path: Path) -> None:
    def answer(name: str, message: Message) -> Message:
        if name == "refuse":
            raise Refusal(422, "no such form")
        if name == "lose":
            raise LeaseLostError("another owner")
        return {"name": name, **message}

    server = FlaskServer(answer, token=TOKEN)
    server.start()
    channel = PlainChannel({"host": "127.0.0.1", "port": server.port}, TOKEN, FileStore(tmp_path))
    large = "é" * 100_000
    assert channel.call("echo", {"text": large}) == {"name": "echo", "text": large}
    assert channel.call("echo") == {"name": "echo"}
    with pytest.raises(Refusal, match="422: no such form"):
        channel.call("refuse")
    with pytest.raises(LeaseLostError, match="another owner"):
        channel.call("lose")
    server.close()
    with pytest.raises(CoordinatorGoneError):
        channel.call("echo")


def test_simulated_block_is_one_that_the_store_reads(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    block = store.get(put_block(store, 7))

    assert block.tensors["policy_version"].tolist() == [7] * ROWS
    assert block.tensors["obs"].shape == (ROWS, 4)
    assert block.tensors["terminated"].dtype == torch.bool
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.skipif(which("cc") is None, reason="cc makes the disk slow")
@pytest.mark.parametrize("fsync_ms", [0.0, 50.0])
def test_thousand_collectors_get_answers_within_a_second_on_a_slow_disk_too(fsync_ms: float) -> None:
    found = measure("flask_fs", 1000, 10.0, 30.0, UNLIMITED, fsync_ms)
    print(show(f"fsync + {fsync_ms:g} ms", found))
    assert is_served(found, wanted=100.0)
    assert found["block_ms"]["p99"] < 1000
    assert found["switches_per_block"] < 40


@pytest.mark.slow
def test_run_does_not_outlive_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    options = ["--only", "throughput", "--seconds", "1000", "--output", tmp_path / "result.json"]
    family: list[int] = []
    with start(["-m", "benchmarks.distributed", *options]) as benchmark:
        try:
            wait_for(lambda: len(descendants(benchmark.pid)) >= 3)  # itself once more, the run, its coordinator
            family = descendants(benchmark.pid)
            benchmark.kill()

            wait_for(lambda: not any(map(_is_alive, family)))
        finally:
            for pid in [benchmark.pid, *family]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
