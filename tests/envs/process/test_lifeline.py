"""Env processes end after their parent has ended, but not because it receives a signal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ding.envs import ProcessVectorEnv
from tests.toys.envs import CountingEnv

ROOT = Path(__file__).parents[3]
PARENT = """
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver
from lightning_ding.envs import EnvProcessError, ProcessVectorEnv
from tests.envs.hanging import HangingEnv
import numpy as np

if __name__ == "__main__":
    envs = ProcessVectorEnv([HangingEnv] * 2, context=sys.argv[1], step_timeout=None)
    envs.set_attr("how", sys.argv[2])
    envs.reset()
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    if sys.argv[2] == "lose the fork server":
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
        start = time.monotonic()
        try:
            envs.step(np.zeros(2, dtype=np.int64))
        except EnvProcessError as error:
            print(type(error).__name__, time.monotonic() - start, flush=True)
        time.sleep(60)
    if sys.argv[2] != "end":
        envs.step(np.zeros(2, dtype=np.int64))
"""


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def start_parent(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), *arguments]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert parent.stdout is not None
    return parent, [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize(
    ("context", "how"),
    [("forkserver", "sleeps"), ("forkserver", "holds the lock of Python"), ("fork", "holds the lock of Python")],
)
def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path, context: str, how: str) -> None:
    parent, children = start_parent(tmp_path, context, how)
    assert len(children) == 2
    time.sleep(0.3)  # into the step
    assert all(lives(pid) for pid in children)

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    assert wait_for(lambda: not any(lives(pid) for pid in children), seconds=5)


def test_processes_without_their_fork_server_are_ended_immediately(tmp_path: Path) -> None:
    parent, children = start_parent(tmp_path, "forkserver", "lose the fork server")

    assert parent.stdout is not None
    name, seconds = parent.stdout.readline().split()
    assert name == "EnvProcessError"
    assert float(seconds) < 5
    assert len(children) == 2
    assert wait_for(lambda: not any(lives(pid) for pid in children), seconds=5)
    assert parent.poll() is None
    parent.kill()
    parent.wait()


def test_a_script_that_forgets_to_close_its_envs_ends_and_leaves_no_process(tmp_path: Path) -> None:
    parent, children = start_parent(tmp_path, "forkserver", "end")

    assert parent.wait(timeout=60) == 0
    assert len(children) == 2
    assert wait_for(lambda: not any(lives(pid) for pid in children), seconds=5)


def children_of(envs: ProcessVectorEnv) -> list[Any]:
    return [process.process for process in envs._processes.all]


def test_ctrl_c_does_not_end_the_processes() -> None:
    envs = ProcessVectorEnv([CountingEnv] * 2)
    envs.reset()
    for process in children_of(envs):
        os.kill(process.pid, signal.SIGINT)
    time.sleep(0.3)

    assert envs.step(np.zeros(2, dtype=np.int64))[0].tolist() == [[0, 0, 1]] * 2
    envs.close()


def test_processes_print_their_stacks_and_continue() -> None:
    envs = ProcessVectorEnv([CountingEnv])
    envs.reset()
    os.kill(children_of(envs)[0].pid, signal.SIGUSR1)
    time.sleep(0.3)

    assert envs.step(np.zeros(1, dtype=np.int64))[0].tolist() == [[0, 0, 1]]
    envs.close()


def test_a_fork_of_the_parent_does_not_end_its_processes() -> None:
    envs = ProcessVectorEnv([CountingEnv])
    envs.reset()
    fork = multiprocessing.get_context("fork").Process(target=envs.close)
    fork.start()
    fork.join(20)

    assert fork.exitcode == 0
    assert envs.step(np.zeros(1, dtype=np.int64))[0].tolist() == [[0, 0, 1]]
    envs.close()
