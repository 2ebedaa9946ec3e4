"""The supervisor restarts the processes of a distributed run and ends them together; stubs replace the roles."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.folder import PARTS_OF_STATE, database_of
from lightning_ding.distributed.coordinator.resume import limits_of
from lightning_ding.distributed.flask_fs.auth import read_token
from lightning_ding.entry import supervisor, supervisor as child
from lightning_ding.entry.supervisor import RunFailedError, RunSupervisor
from tests import processes
from tests.processes import wait_for

Run = Callable[..., dict[str, Any]]
WORK = {"coordinator": ["finish"], "learner": ["work"], "collector": ["work"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(child, "PROGRAM", "tests.entry.stub_roles")
    monkeypatch.setattr(supervisor, "END_TIMEOUT", 0.5)
    monkeypatch.syspath_prepend(processes.ROOT)
    return tmp_path / "run"


def run(folder: Path, restarts: int = 2, resume: bool = False, **plan: list[Any]) -> dict[str, Any]:
    system = {"restarts": restarts, "collector": {"num": 1}}
    cfg = resolve(ParallelConfig, {"main": {"exp_name": str(folder)}, "system": system})
    made = RunSupervisor(cfg, resume)
    (folder / "plan.json").write_text(json.dumps(WORK | plan))
    return made.run()


def write_state(folder: Path, end: dict[str, Any] | None = None) -> None:
    """Write the state of a run; with the record of its end, that of a finished one."""
    (folder / "coordinator").mkdir(parents=True)
    state: dict[str, Any] = {name: {} for name in PARTS_OF_STATE}
    database_of(folder).write({("state", name): value for name, value in {**state, "finished": end}.items()})


def starts(folder: Path, role: str) -> list[str]:
    return (folder / f"starts-{role}").read_text().splitlines()


def alive(folder: Path) -> list[int]:
    """Return the processes that were started and are still there."""
    pids = [
        int(line.partition("pid=")[2]) for file in folder.glob("starts-*") for line in file.read_text().splitlines()
    ]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_run_ends_with_its_result_and_leaves_no_process(folder: Path) -> None:
    assert run(folder) == {"env_step": 7}
    assert [len(starts(folder, role)) for role in WORK] == [1, 1, 1]
    assert alive(folder) == []


@pytest.mark.parametrize("death", ["kill", 1, 125])
def test_worker_that_dies_is_started_again(folder: Path, death: Any) -> None:
    plan: Any = {"collector": [death, "work"], "coordinator": ["work"]}
    threading.Timer(0.0, _finish_when, (folder, lambda: len(starts(folder, "collector")) == 2)).start()
    assert run(folder, **plan) == {"env_step": 8}
    assert len(starts(folder, "collector")) == 2


def test_coordinator_that_dies_is_started_again_and_resumes_what_it_had_saved(folder: Path) -> None:
    run(folder, coordinator=["kill", "finish"])
    assert ["--resume" in line for line in starts(folder, "coordinator")] == [False, False]
    assert all("address=False" in line for line in starts(folder, "coordinator"))  # no worker sends anything to it
    other = folder.with_name("other")
    write_state(other)
    run(other, resume=True, coordinator=["kill", "finish"])
    assert ["--resume" in line for line in starts(other, "coordinator")] == [True, True]


def test_process_that_dies_too_often_ends_the_run_with_its_last_line(folder: Path) -> None:
    with pytest.raises(RunFailedError, match=r"learner-0 ended with exit code 1 after 2 restarts, see .*does 1"):
        run(folder, coordinator=["work"], learner=[1])
    assert len(starts(folder, "learner")) == 3
    assert alive(folder) == []


@pytest.mark.parametrize("code", [2, 3])
def test_process_that_would_end_in_the_same_way_is_not_started_again(folder: Path, code: int) -> None:
    with pytest.raises(RunFailedError, match=f"coordinator-0 ended with exit code {code}, see"):
        run(folder, coordinator=[code])
    assert len(starts(folder, "coordinator")) == 1


def test_worker_that_was_told_to_go_is_started_again_only_with_a_new_coordinator(folder: Path) -> None:
    assert run(folder, collector=[0]) == {"env_step": 7}
    assert len(starts(folder, "collector")) == 1
    other = folder.with_name("other")
    threading.Timer(0.0, _kill_when, (other, lambda: len(starts(other, "collector")) == 1)).start()
    run(other, collector=[0], coordinator=["work", "finish"])
    assert len(starts(other, "collector")) >= 2


def test_warnings_and_errors_come_to_stderr_with_the_role(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(folder)
    assert "collector-0: 2026-01-01 00:00:00,000 WARNING stub: collector does work" in capfd.readouterr().err
    assert "collector does work" in (folder / "logs" / "collector-0.log").read_text()


def test_process_that_does_not_end_is_killed(folder: Path) -> None:
    began = time.monotonic()
    run(folder, learner=["stubborn"])
    assert time.monotonic() - began < 10
    assert alive(folder) == []


def test_coordinator_that_dies_after_writing_the_result_is_not_restarted(folder: Path) -> None:
    assert run(folder, coordinator=["finish and kill"]) == {"env_step": 7}
    assert len(starts(folder, "coordinator")) == 1


def test_error_of_the_coordinator_is_the_error_of_the_run(folder: Path) -> None:
    with pytest.raises(RunFailedError, match=r"the run was given up, see .*logs: too many failures"):
        run(folder, coordinator=["give up"])


def test_run_over_without_a_result_is_a_failure(folder: Path) -> None:
    with pytest.raises(RunFailedError, match="has written no result"):
        run(folder, coordinator=[0])


def test_result_of_a_finished_run_stays_if_its_coordinator_cannot_continue_and_is_replaced_if_it_can(
    folder: Path,
) -> None:
    limits = limits_of(resolve(ParallelConfig, {"main": {"max_env_step": 8}}))
    write_state(folder, {"ended_by": "max_env_step", "env_step": 8, "train_iter": 0, "limits": limits})
    result = folder / "result.json"
    result.write_text('{"env_step": 8}')
    with pytest.raises(RunFailedError, match="coordinator-0 ended with exit code 2"):
        run(folder, resume=True, coordinator=[2])
    assert result.read_text() == '{"env_step": 8}'
    assert run(folder, resume=True) == {"env_step": 7}


def test_second_run_does_not_disturb_a_running_one(folder: Path) -> None:
    write_state(folder)
    kept = {name: folder / name for name in ("config.json", "coordinator.json", "result.json")}
    for name, file in kept.items():
        file.write_text(name)
    with (folder / "coordinator.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for resume in (False, True):
            with pytest.raises(ValueError, match=f"another coordinator uses '{folder}'"):
                run(folder, resume=resume)
    assert {name: file.read_text() for name, file in kept.items()} == {name: name for name in kept}
    assert run(folder, resume=True) == {"env_step": 7}


def test_run_without_a_token_makes_one_that_only_its_owner_can_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTNING_DING_TOKEN", raising=False)
    run(folder)
    token = read_token(None, folder)
    assert token is not None
    assert len(token) == 64
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    write_state(folder)
    run(folder, resume=True)
    assert read_token(None, folder) == token
    monkeypatch.setenv("LIGHTNING_DING_TOKEN", "x" * 16)
    assert read_token(None, folder) == "x" * 16
    run(folder.with_name("other"))
    assert not (folder.with_name("other") / "token").exists()


SCRIPT = """
import sys
from pathlib import Path
from tests.entry import test_supervisor
from lightning_ding.entry import supervisor as child
child.PROGRAM = "tests.entry.stub_roles"
test_supervisor.run(Path(sys.argv[1]), coordinator=["work"], learner=["stubborn"])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_no_process_outlives_the_one_that_started_it(folder: Path, number: int) -> None:
    with processes.start(["-c", SCRIPT, folder], start_new_session=True) as process:
        wait_for(lambda: (folder / "is-stubborn").exists() and len(alive(folder)) == 3)
        process.send_signal(number)
        if number != signal.SIGKILL:
            time.sleep(0.5)
            process.send_signal(number)  # waits no longer
        code = process.wait(30)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: alive(folder) == [])


def _finish_when(folder: Path, condition: Callable[[], bool]) -> None:
    wait_for(lambda: (folder / "starts-collector").exists() and condition())
    (folder / "result.json").write_text('{"env_step": 8}')
    (folder / "end").touch()


def _kill_when(folder: Path, condition: Callable[[], bool]) -> None:
    wait_for(lambda: (folder / "starts-collector").exists() and condition())
    time.sleep(0.5)
    os.kill(int(starts(folder, "coordinator")[0].partition("pid=")[2]), signal.SIGKILL)
