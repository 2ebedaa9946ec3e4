"""If the benchmark is killed, the processes of its run end as well."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.footprint import descendants
from tests.processes import start


@pytest.mark.slow
def test_run_does_not_outlive_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    options = ["--only", "throughput", "--seconds", "1000", "--output", tmp_path / "result.json"]
    family: list[int] = []
    with start(["-m", "benchmarks.distributed", *options]) as benchmark:
        try:
            _wait_until(lambda: len(descendants(benchmark.pid)) >= 3)  # itself once more, the run, its coordinator
            family = descendants(benchmark.pid)
            benchmark.kill()

            _wait_until(lambda: not any(map(_is_alive, family)))
        finally:
            for pid in [benchmark.pid, *family]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
