"""Run scripts in separate processes; none of them outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def start(arguments: Sequence[Any], **kwargs: Any) -> subprocess.Popen[str]:
    """Start Python with arguments, with one thread and its output in a pipe."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},  # scripts import tests.toys
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **kwargs,
    )


def run(*arguments: Any, timeout: float = 120.0) -> str:
    """Run Python with arguments, and return its output; what it has started ends with it if it takes too long."""
    with start(arguments, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, output
    return output


def run_two_ranks(*arguments: Any, timeout: float = 120.0) -> None:
    """Run Python twice at the same time, with arguments followed by the rank and the number of ranks."""
    processes = [start([*arguments, rank, 2]) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
