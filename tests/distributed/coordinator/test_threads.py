"""A started coordinator, with its own threads and workers in others."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.distributed.coordinator import endpoints
from lightning_ding.distributed.coordinator.coordinator import Periodic
from lightning_ding.distributed.coordinator.sample_ratio import LONGEST, SHORTEST, PollInterval
from tests.distributed.coordinator.coordinating import Clock, Run, Worker, config, transitions
from tests.processes import wait_for

DEADLINE = 60.0


def test_collectors_and_a_learner_at_the_same_time_lose_and_repeat_nothing(tmp_path: Path) -> None:
    cfg = config(tmp_path / "run", samples_per_insert=2.0, tolerance=2.0, snapshot_interval=0.05)
    run = Run(cfg | {"main": {**cfg["main"], "max_env_step": 400}})
    run.coordinator.start()
    learner, collectors = Worker(run, "learner"), [Worker(run, "collector") for _ in range(2)]
    errors: list[Exception] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def do() -> None:
            try:
                work()
            except Exception as error:
                errors.append(error)

        return do

    def learn() -> None:
        learner.take()
        step = 0
        while not (answer := learner.get(train_iter=step))["stop"]:
            if answer["data"] is not None:
                step += 2
                run.store.delete(answer["data"])
                learner.publish(step)
        learner.call("learner_close_task", info={"learner_step": step, "learner_done": True, "results": {}})
        assert learner.take()["shutdown"]

    def collect(collector: Worker, first: int) -> None:
        collector.take()
        answer: dict[str, Any] = {"close": False}
        while not answer["close"]:
            answer = collector.send(transitions(first=first))
            first += 4 * answer["accepted"]
        collector.call("collector_close_task", info={"eval_flag": False, "collector_done": True})
        assert collector.take()["shutdown"]

    works = [learn, lambda: collect(collectors[0], 0), lambda: collect(collectors[1], 10_000)]
    threads = [threading.Thread(target=guarded(work), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    wait_for(lambda: errors or run.coordinator.wait(0.1))
    assert errors == []
    reward = sorted(run.rows()["reward"])
    ratio = run.replay.ratio
    run.coordinator.close()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert 400 <= result["env_step"] <= 404
    assert result["env_step"] == len(set(reward)) == len(reward)
    assert abs(ratio.balance) <= 2 * 8 + 2 * 8


def test_who_asks_for_a_task_gets_it_as_soon_as_there_is_one(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", commander={"collector_task_space": 0}))
    collector = Worker(run, "collector")
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(collector.take()["task"]), daemon=True)
    thread.start()
    run.coordinator.handle("increase_collector", {"n": 1})
    thread.join(DEADLINE)
    assert given[0] is not None


def test_eight_workers_wait_for_a_task_at_a_time_and_others_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "TASK_WAIT", DEADLINE)
    run = Run(config(tmp_path / "run", commander={"collector_task_space": 0}))
    collectors = [Worker(run, "collector") for _ in range(9)]
    threads = [threading.Thread(target=collector.take, daemon=True) for collector in collectors[:8]]
    for thread in threads:
        thread.start()
    wait_for(lambda: run.coordinator._num_waiting == 8)
    assert collectors[8].take() == {"task": None, "shutdown": False, "wait": DEADLINE}
    run.coordinator.handle("increase_collector", {"n": 9})
    for thread in threads:
        thread.join(DEADLINE)
    answer = collectors[8].take()
    assert (answer["task"] is not None, answer["wait"]) == (True, 0.0)
    assert all(collector.task for collector in collectors)


def test_heartbeat_never_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config(tmp_path / "run"))
    learner = Worker(run, "learner")
    learner.take()
    monkeypatch.setattr(run.coordinator.run, "commit", lambda: pytest.fail("it waits for a write"))
    assert learner.call("heartbeat") == {"close": False}


def test_block_is_acknowledged_while_a_slow_disk_writes_a_task(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", commander={"collector_task_space": 2}))
    Worker(run, "learner").take()
    collector, other = Worker(run, "collector"), Worker(run, "collector")
    collector.take()
    with run.coordinator.run._writing:
        taker = threading.Thread(target=other.take, daemon=True)
        taker.start()
        wait_for(lambda: run.coordinator.run._noted > run.coordinator.run._written)
        run.coordinator.run._owed = run.coordinator.run._noted  # as during a write
        assert collector.send(transitions())["accepted"]
        assert taker.is_alive()
    taker.join(DEADLINE)
    assert other.task


def test_a_failing_thread_ends_the_run_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config(tmp_path / "run", lease=0.2))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the commander is broken")

    run.coordinator.start()
    monkeypatch.setattr(run.coordinator.run.scheduler.commander, "next_task", broken)
    wait_for(lambda: run.coordinator.failure)
    assert "the commander is broken" in str(run.coordinator.failure)
    run.coordinator.close()


def test_a_full_disk_is_tried_again() -> None:
    calls: list[int] = []
    told: list[str] = []

    def save() -> None:
        calls.append(1)
        raise OSError(28, "No space left on device")

    thread = Periodic("saving", 0.01, save, told.append)
    thread.start()
    wait_for(lambda: len(calls) >= 3)
    thread.stop()
    assert told == []


def test_only_the_time_of_the_function_makes_its_calls_rarer() -> None:
    """Useless files pile up until they are deleted, so rarer snapshots would save none of that time."""
    calls: list[str] = []

    def delete() -> None:
        calls.append("delete")
        time.sleep(0.2)

    thread = Periodic("saving", 0.01, lambda: calls.append("save"), calls.append, delete)
    began = time.monotonic()
    thread.start()
    wait_for(lambda: len(calls) >= 6)
    assert time.monotonic() - began < 4.0  # a pause that counted the 0.2 s would alone be 4 s
    assert calls[:6] == ["save", "delete"] * 3
    thread.stop()


def test_the_wait_is_a_share_of_the_mean_interval_within_bounds() -> None:
    clock = Clock()
    pace = PollInterval(clock)
    assert pace.wait(0.5) == SHORTEST
    for clock.now in (1.0, 1.04, 1.08):
        pace.note()
    assert pace.wait(0.5) == pytest.approx(0.02)
    clock.now += 0.09
    pace.note()
    assert pace.wait(1.0) == pytest.approx(0.05)  # 0.04 + 0.2 * (0.09 - 0.04)
    clock.now += 1000
    pace.note()
    assert pace.wait(1.0) == LONGEST


def test_the_status_can_be_asked_while_episodes_end(tmp_path: Path) -> None:
    run, is_over = Run(config(tmp_path / "run")), threading.Event()
    returns = run.replay.intake.returns

    def end_episodes() -> None:
        while not is_over.is_set():
            returns.extend([1.0])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=end_episodes) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        means = [run.coordinator.run.status()["return_mean"] for _ in range(4000)]
    finally:
        is_over.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert means[-1] == 1.0
