from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker, report_of
from lightning_ding.distributed.messages import version
from lightning_ding.distributed.transport import CoordinatorGoneError, LeaseLostError, Refusal
from tests.distributed.comm_worker.fake_coordinator import FakeCoordinator
from tests.processes import start, wait_for

TASKS = [{"task_id": "a"}, {"task_id": "b"}]


@contextmanager
def connected(coordinator: FakeCoordinator, stall_timeout: float | None = None) -> Iterator[CommWorker]:
    worker = CommWorker(coordinator.channel(), "collector", stall_timeout)
    try:
        worker.connect()
        yield worker
    finally:
        worker.close()


def test_a_worker_says_what_it_is_and_leaves_when_the_run_is_over() -> None:
    coordinator = FakeCoordinator(TASKS)
    worker = CommWorker(coordinator.channel(), "learner")
    done: list[AssignedTask] = []
    assert worker.run(done.append) == 0
    assert [(task.task_id, task.run_id, task.task_info) for task in done] == [("a", 1, TASKS[0]), ("b", 2, TASKS[1])]
    (hello,) = coordinator.said("connect")
    assert (hello["role"], hello["version"]) == ("learner", version())
    assert hello["resource"]["cpu"] >= 1
    assert len(worker.worker_id) == 32
    assert coordinator.messages[-1] == ("disconnect", {"worker_id": worker.worker_id})
    assert worker.worker_id != CommWorker(coordinator.channel(), "learner").worker_id


def test_messages_bear_the_worker_and_its_task() -> None:
    coordinator = FakeCoordinator(TASKS)
    with connected(coordinator) as worker:
        worker.call("hello", number=3)
        worker.next_task()
        worker.call("hello", number=4)
    ids = {"worker_id": worker.worker_id}
    assert coordinator.said("hello") == [{**ids, "number": 3}, {**ids, "task_id": "a", "run_id": 1, "number": 4}]


def test_a_worker_whose_lease_is_lost_drops_its_task_connects_again_and_does_the_next_one() -> None:
    coordinator = FakeCoordinator(TASKS)
    after: list[str] = []

    def refuse_first(message: dict[str, Any]) -> Any:
        if message["task_id"] == "a":
            raise LeaseLostError("it has another owner")

    coordinator.answers["hello"] = refuse_first
    worker = CommWorker(coordinator.channel(), "collector")

    def work(task: AssignedTask) -> None:
        worker.call("hello")
        after.append(task.task_id)

    assert worker.run(work) == 0
    assert after == ["b"]
    assert len(coordinator.said("connect")) == 2
    assert coordinator.said("fail") == []


def test_a_late_answer_about_a_former_task_does_not_drop_the_next_one() -> None:
    coordinator = FakeCoordinator(TASKS)
    with connected(coordinator) as worker:
        worker.next_task()

        def refuse_late(message: dict[str, Any]) -> Any:
            worker.next_task()  # another thread takes the next task
            raise LeaseLostError("it has another owner")

        coordinator.answers["hello"] = refuse_late
        with pytest.raises(LeaseLostError):
            worker.call("hello")
        assert worker.task is not None
        assert worker.task.task_id == "b"


def test_a_worker_that_hangs_for_longer_than_its_lease_says_so_once_to_whom_it_concerns() -> None:
    coordinator = FakeCoordinator(TASKS, lease=0.1)
    told: list[float] = []
    with connected(coordinator, stall_timeout=0.2) as worker:
        worker.on_stall = told.append
        wait_for(lambda: told)
        assert told[0] > 0.3
        worker.tick()
        told.clear()
        time.sleep(0.2)
        assert not told


def test_a_process_that_hangs_ends_with_124_and_its_stacks() -> None:
    command = [
        sys.executable,
        "-c",
        "from lightning_ding.distributed.comm_worker.loop import end_process; end_process(7.0)",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 124
    assert "end_process" in ended.stderr


def test_worker_connects_again_to_a_restarted_coordinator() -> None:
    coordinator = FakeCoordinator(TASKS)
    with connected(coordinator) as worker:
        once = iter([True])

        def know_nobody(message: dict[str, Any]) -> Any:
            if next(once, False):
                raise LeaseLostError("unknown worker")

        coordinator.answers["task"] = know_nobody
        task = worker.next_task()
    assert task is not None
    assert task.task_id == "a"
    assert len(coordinator.said("connect")) == 2


def test_worker_waits_as_long_as_the_coordinator_says() -> None:
    coordinator = FakeCoordinator(TASKS)
    asked: list[float] = []

    def tell_to_wait(message: dict[str, Any]) -> Any:
        asked.append(time.monotonic())
        return {"task": None, "shutdown": False, "wait": 0.25} if len(asked) == 1 else None

    coordinator.answers["task"] = tell_to_wait
    with connected(coordinator) as worker:
        assert worker.next_task() is not None
    assert asked[1] - asked[0] >= 0.25


def test_what_a_task_raises_is_reported_with_its_end_and_the_next_task_is_done() -> None:
    coordinator = FakeCoordinator(TASKS)
    done: list[str] = []

    def fail(depth: int) -> None:
        if not depth:
            raise ValueError("the reason is\n" + "x" * 5000)
        fail_deeper(depth)  # two functions, because Python would leave out the lines of one that calls itself

    def fail_deeper(depth: int) -> None:
        fail(depth - 1)

    def work(task: AssignedTask) -> None:
        if task.task_id == "a":
            fail(10)
        done.append(task.task_id)

    assert CommWorker(coordinator.channel(), "collector").run(work) == 0
    (report,) = coordinator.said("fail")
    reason, gap, *stack = report["error"].splitlines()
    assert reason == "ValueError: the reason is " + "x" * (1000 - 26)
    assert gap == "  ..."
    assert stack[-2].endswith("in fail")  # the innermost call
    assert len("\n".join(stack)) <= 2000
    assert (report["task_id"], report["run_id"]) == ("a", 1)
    assert done == ["b"]


def test_report_contains_the_causes_of_an_error() -> None:
    def fail() -> None:
        try:
            os.environ["NOPE"]
        except KeyError as error:
            raise ValueError("no such key") from error

    with pytest.raises(ValueError, match="no such key") as raised:
        fail()
    reason, *stack = report_of(raised.value).splitlines()
    assert reason == "ValueError: no such key"
    assert "KeyError: 'NOPE'" in stack
    assert not [line for line in stack if line.startswith("ValueError")]


def test_refused_failure_report_does_not_end_the_worker() -> None:
    coordinator = FakeCoordinator(TASKS)

    def refuse(message: dict[str, Any]) -> Any:
        raise Refusal(404, "unknown task")

    coordinator.answers["fail"] = refuse
    assert CommWorker(coordinator.channel(), "collector").run(lambda task: task.task_info["nothing"]) == 0
    assert len(coordinator.said("fail")) == 2


def test_heartbeats_come_while_the_worker_ticks_or_gets_answers_and_stop_when_it_hangs() -> None:
    coordinator = FakeCoordinator(TASKS, lease=0.2)
    with connected(coordinator, stall_timeout=0.5) as worker:
        worker.next_task()
        wait_for(lambda: coordinator.said("heartbeat"))
        assert coordinator.said("heartbeat")[-1] == {"worker_id": worker.worker_id, "task_id": "a", "run_id": 1}
        time.sleep(1.5)
        hung = len(coordinator.said("heartbeat"))
        time.sleep(0.5)
        assert len(coordinator.said("heartbeat")) == hung
        worker.tick()
        wait_for(lambda: len(coordinator.said("heartbeat")) > hung)
        time.sleep(1.5)
        hung = len(coordinator.said("heartbeat"))
        worker.call("hello")
        wait_for(lambda: len(coordinator.said("heartbeat")) > hung)


def test_messages_take_the_place_of_heartbeats() -> None:
    coordinator = FakeCoordinator(TASKS, lease=4.0)
    with connected(coordinator) as worker:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            worker.call("hello")
            time.sleep(0.05)
        assert coordinator.said("heartbeat") == []
        wait_for(lambda: coordinator.said("heartbeat"))


def test_worker_without_a_stall_timeout_keeps_sending_heartbeats() -> None:
    coordinator = FakeCoordinator(TASKS, lease=0.04)
    with connected(coordinator):
        wait_for(lambda: len(coordinator.said("heartbeat")) > 20)


def test_heartbeat_that_finds_a_lost_lease_ends_the_task_at_the_next_tick() -> None:
    coordinator = FakeCoordinator(TASKS, lease=0.1)

    def refuse_first(message: dict[str, Any]) -> Any:
        if message.get("task_id") == "a":
            raise LeaseLostError("it has another owner")

    coordinator.answers["heartbeat"] = refuse_first
    worker = CommWorker(coordinator.channel(), "collector")
    done = []

    def work(task: AssignedTask) -> None:
        deadline = time.monotonic() + (20 if task.task_id == "a" else 0.3)
        while time.monotonic() < deadline:
            worker.tick()
            time.sleep(0.01)
        done.append(task.task_id)

    assert worker.run(work) == 0
    assert done == ["b"]


def test_a_heartbeat_that_fails_is_not_the_last_one() -> None:
    coordinator = FakeCoordinator(TASKS, lease=0.1)

    def break_down(message: dict[str, Any]) -> Any:
        raise OSError("no route")

    coordinator.answers["heartbeat"] = break_down
    with connected(coordinator):
        wait_for(lambda: len(coordinator.said("heartbeat")) >= 3)


def test_lost_heartbeat_is_sent_again_long_before_the_lease_ends() -> None:
    coordinator = FakeCoordinator(TASKS, lease=2.0)
    beats: list[float] = []

    def lose_first(message: dict[str, Any]) -> Any:
        beats.append(time.monotonic())
        if len(beats) == 1:
            raise OSError("no route")

    coordinator.answers["heartbeat"] = lose_first
    began = time.monotonic()
    with connected(coordinator):
        wait_for(lambda: len(beats) == 2)
    assert beats[0] - began >= 0.9  # half of the lease, so that messages can take the place of heartbeats
    assert beats[1] - beats[0] < 0.8


def test_a_wish_to_close_the_task_reaches_it() -> None:
    coordinator = FakeCoordinator(TASKS[:1], lease=0.1)
    coordinator.is_closing = True
    worker = CommWorker(coordinator.channel(), "collector")
    closed = threading.Event()

    def work(task: AssignedTask) -> None:
        worker.on_close = closed.set
        assert closed.wait(20)

    assert worker.run(work) == 0
    assert coordinator.said("fail") == []


def test_worker_leaves_with_the_given_exit_code() -> None:
    coordinator = FakeCoordinator(TASKS)
    worker = CommWorker(coordinator.channel(), "learner")
    assert worker.run(lambda task: worker.leave(143)) == 143
    assert len(coordinator.said("task")) == 1


def test_a_worker_without_a_coordinator_leaves_with_125() -> None:
    coordinator = FakeCoordinator(TASKS)

    def vanish(message: dict[str, Any]) -> Any:
        raise CoordinatorGoneError("for 120 s")

    for name in ("connect", "task", "hello"):
        coordinator.answers = {name: vanish}
        worker = CommWorker(coordinator.channel(), "learner")
        assert worker.run(lambda task, worker=worker: worker.call("hello") and None) == 125  # type: ignore[misc]


def test_a_worker_that_is_not_wanted_says_why() -> None:
    coordinator = FakeCoordinator()

    def refuse(message: dict[str, Any]) -> Any:
        raise Refusal(426, "version 9 is wanted")

    coordinator.answers["connect"] = refuse
    with pytest.raises(Refusal, match="version 9 is wanted"):
        CommWorker(coordinator.channel(), "learner").run(lambda task: None)


def test_roles_and_timeouts_out_of_range_are_refused() -> None:
    channel = FakeCoordinator().channel()
    with pytest.raises(ValueError, match="role"):
        CommWorker(channel, "actor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stall_timeout"):
        CommWorker(channel, "learner", 0)


SCRIPT = """
import sys, time
from lightning_ding.distributed.comm_worker.loop import CommWorker, report_of
from tests.distributed.comm_worker.fake_coordinator import FakeCoordinator

coordinator = FakeCoordinator([{"task_id": "a"}])

def work(task):
    print("working", flush=True)
    for _ in range(600):
        time.sleep(0.1)

code = CommWorker(coordinator.channel(), "collector").run(work)
print([name for name, _ in coordinator.messages], flush=True)
sys.exit(code)
"""


def test_a_sigterm_ends_a_worker_at_once_and_it_says_goodbye(tmp_path: Path) -> None:
    process = start(["-c", SCRIPT])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 143
    assert output.strip().endswith("['connect', 'task', 'disconnect']")
