"""The processes of a run are found, also those that no longer look like it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.distributed.process_tree import ProcessTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
VARIABLE = "TREE"
SESSION = "session_2026-01-02_03-04-05_678901_234"
Shells = list[subprocess.Popen[bytes]]


@pytest.fixture
def shells() -> Iterator[Shells]:
    """Return a list of shells that read their stdin, and end them."""
    found: Shells = []
    yield found
    with ExitStack() as ended:
        for shell in found:
            ended.enter_context(shell)  # closes its stdin and waits
            shell.kill()


def start(shells: Shells, *arguments: object, name: str = "python", code: str = "read", mark: object = "") -> int:
    """Start a shell that looks like another program, and return its id."""
    command = [name, "-c", code, "x", *map(str, arguments)]
    environment = {VARIABLE: str(mark)}
    made = subprocess.Popen(command, executable="/bin/bash", stdin=subprocess.PIPE, env=environment)
    shells.append(made)
    return made.pid


def test_process_that_the_run_has_started_is_found_after_its_parent_was_killed(tmp_path: Path, shells: Shells) -> None:
    tree = ProcessTree(tmp_path, VARIABLE)
    parent = start(shells, code="exec 3<&0; env -i /bin/bash -c 'read -u 3' & read")
    tree.add(parent)
    end = time.monotonic() + 10.0
    while not (child := [command for pid, command in tree.find().items() if pid != parent]) or "env" in child[0]:
        assert time.monotonic() < end
    shells[0].kill()
    shells[0].wait()
    assert list(tree.find().values()) == ["/bin/bash -c read -u 3"]
    stdin = shells[0].stdin
    assert stdin is not None
    stdin.close()
    assert tree.wait_for_end(10.0) == {}


def test_process_is_found_by_its_environment_its_folder_and_its_session_of_ray(tmp_path: Path, shells: Shells) -> None:
    tree = ProcessTree(tmp_path, VARIABLE)
    ours = {
        start(shells, f"--session-dir=/tmp/ray/{SESSION}", name="gcs_server", mark=tmp_path),
        start(shells, f"--session-name={SESSION}", name="raylet"),
        start(shells, f"--config={tmp_path}/run.yaml"),
    }
    start(shells, f"--config={tmp_path}.other/run.yaml")
    start(shells, "--session-name=session_2026-01-02_03-04-05_678901_999", name="raylet")
    start(shells, tmp_path / "log", name="tail")
    start(shells, mark=f"{tmp_path}.other")
    assert tree.find().keys() == ours


def test_processes_that_are_left_are_returned_after_the_time_limit(tmp_path: Path, shells: Shells) -> None:
    left = start(shells, mark=tmp_path)
    assert ProcessTree(tmp_path, VARIABLE).wait_for_end(0.0) == {left: "python -c read x"}
