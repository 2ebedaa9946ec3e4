"""Many workers at a time: what they share, what happens in parallel, and how often they ask again."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError as FutureTimeoutError
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.capacity import config_of
from benchmarks.simulated import PlainChannel, Record, SimulatedCollector, SimulatedLearner
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.sample_ratio import SampleRatio
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.flask_fs.auth import read_token
from lightning_ding.distributed.transport import Block
from tests.distributed.coordinator.coordinating import Run, Worker, both, config, transitions

WORKERS = 16


def at_the_same_time(calls: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions that run in one thread each."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=30) for future in [pool.submit(call) for call in calls]]


def test_tasks_that_are_requested_at_the_same_time_share_writes_to_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run", commander={"collector_task_space": WORKERS}))
    workers = [Worker(run, "collector") for _ in range(WORKERS)]
    writes, known, database = [], [], run.coordinator.run.database
    write = database.write

    def write_slowly(changes: Any, is_synced: bool = True) -> None:
        time.sleep(0.05)
        writes.append(changes)
        write(changes, is_synced)

    monkeypatch.setattr(database, "write", write_slowly)

    def take(worker: Worker) -> None:
        worker.take()
        known.append(worker.name in {task["owner"] for _, task in database.read("tasks")})

    at_the_same_time([partial(take, worker) for worker in workers])
    assert known == [True] * WORKERS  # each answer came after the write with its task
    assert len(writes) <= 4


def test_change_whose_write_failed_is_written_before_the_next_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"))
    worker = Worker(run, "learner")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run.coordinator.run.database, "write", fail)
        with pytest.raises(OSError, match="No space"):
            worker.take()
    at_the_same_time([worker.take])  # the same task again, which changes nothing, in another thread
    run.restart()
    (task,) = run.coordinator.run.scheduler.book.running("learner")
    assert task.owner == worker.name


def test_entries_of_two_collectors_are_written_at_the_same_time_and_kept_in_both_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run", commander={"collector_task_space": 2}))
    Worker(run, "learner").take()
    first, second = Worker(run, "collector"), Worker(run, "collector")
    first.take(), second.take()
    move, both_write, second_is_in = run.store.move, threading.Barrier(2, timeout=20), threading.Event()

    def move_slowly(handle: Any, file: Path, block: Block | None) -> None:
        both_write.wait()  # breaks unless both threads come here
        if file.name.startswith("000000000001"):
            assert second_is_in.wait(20)
        move(handle, file, block)

    monkeypatch.setattr(run.store, "move", move_slowly)

    def send_second() -> None:
        while not run.replay._in_flight:  # the first has its number
            time.sleep(0.001)
        second.send(transitions(first=100))
        second_is_in.set()

    at_the_same_time([lambda: first.send(transitions()), send_second])
    assert sorted(run.rows()["reward"]) == [0, 1, 2, 3, 100, 101, 102, 103]
    monkeypatch.undo()
    run.coordinator.save()
    run.restart()
    assert sorted(run.rows()["reward"]) == [0, 1, 2, 3, 100, 101, 102, 103]
    for collector, number in ((first, 4), (second, 104)):
        assert collector.send(transitions(first=number), seq=1)["accepted"]
    run.restart()
    assert sorted(run.rows()["reward"]) == [*range(8), *range(100, 108)]
    assert (run.counts.env_step, run.counts.accepted) == (16, 4)


def test_snapshot_waits_for_entries_that_are_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config(tmp_path / "run"))
    _, collector = both(run)
    collector.send(transitions())
    move, began, may_move = run.store.move, threading.Event(), threading.Event()

    def move_late(handle: Any, file: Path, block: Block | None) -> None:
        began.set()
        assert may_move.wait(20)
        move(handle, file, block)

    monkeypatch.setattr(run.store, "move", move_late)
    sender = threading.Thread(target=lambda: collector.send(transitions(first=4)), daemon=True)
    sender.start()
    assert began.wait(20)
    saver = threading.Thread(target=run.coordinator.save, daemon=True)
    saver.start()
    saver.join(0.1)
    assert saver.is_alive()
    may_move.set()
    saver.join(20)
    sender.join(20)
    assert run.replay.stats()["journal_depth"] == 0
    run.restart()
    assert run.rows()["reward"] == list(range(8))


def test_data_are_accepted_while_a_slow_disk_syncs_a_snapshot_and_deletes_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"))
    _, collector = both(run)
    collector.send(transitions())
    run.coordinator.save()  # the next snapshot makes this entry superfluous
    collector.send(transitions(first=4))
    sent = 1

    def send_meanwhile(*_: Any) -> None:
        nonlocal sent
        sent += 1
        thread = threading.Thread(target=lambda: collector.send(transitions(first=4 * sent)), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()

    delete_until = run.replay.journal.delete_until

    def delete_slowly(number: int) -> None:
        send_meanwhile()
        delete_until(number)

    monkeypatch.setattr("lightning_ding.distributed.coordinator.journal.sync_tree", send_meanwhile)
    monkeypatch.setattr(run.replay.journal, "delete_until", delete_slowly)
    run.coordinator.save()
    assert (sent, run.replay.stats()["journal_depth"]) == (3, 2)
    run.restart()
    assert sorted(run.rows()["reward"]) == list(range(16))
    assert list(run.entries) == [2, 3, 4]


def test_request_that_arrives_again_while_its_round_is_drawn_gets_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions(), returns=[1.0], lengths=[4])
    draw, began, may_draw = run.replay.draw, threading.Event(), threading.Event()

    def draw_slowly(*arguments: Any) -> Any:
        began.set()
        assert may_draw.wait(20)
        return draw(*arguments)

    monkeypatch.setattr(run.replay, "draw", draw_slowly)
    request = {"batch_size": 4, "num_batches": 2, "cur_learner_iter": 0, "rank": 0, "number": 0}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(learner.call, "learner_get_data_task", **request)
        assert began.wait(20)
        second = pool.submit(learner.call, "learner_get_data_task", **request)
        with pytest.raises(FutureTimeoutError):
            second.result(timeout=0.05)
        may_draw.set()
        assert second.result(20) == first.result(20)
    assert first.result()["episodes"]["returns"] == [1.0]
    assert run.replay.ratio.sampled == 8
    assert len(run.store) == 1


def test_request_that_arrives_again_after_a_full_disk_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions())

    def fail(kind: str, tensors: Any) -> None:
        raise OSError(28, "No space left on device")

    request = {"batch_size": 4, "num_batches": 1, "cur_learner_iter": 0, "rank": 0, "number": 0}
    with monkeypatch.context() as patch:
        patch.setattr(run.store, "put", fail)
        with pytest.raises(OSError, match="No space"):
            learner.call("learner_get_data_task", **request)
    assert learner.call("learner_get_data_task", **request)["data"] is not None


def test_blocks_that_are_being_written_count_for_the_ratio() -> None:
    ratio = SampleRatio(samples_per_insert=2.0, warm_up=0, tolerance=1.0, round_size=8)
    ratio.insert(4)  # a balance of 8, which is one round
    assert ratio.may_insert(learner_waits=False)
    assert not ratio.may_insert(learner_waits=False, pending=1)
    assert ratio.may_insert(learner_waits=True, pending=1)


def test_the_more_workers_there_are_the_longer_waiting_collectors_pause(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", tolerance=0.5, samples_per_insert=2.0))
    _, collector = both(run)
    seq = 0
    while (answer := collector.send(transitions(first=4 * seq)))["accepted"]:
        seq += 1
    assert answer["wait"] == 0.01
    for _ in range(98):
        Worker(run, "collector")
    assert collector.send(transitions())["wait"] == 0.5  # 100 workers ask 200 times a second


@pytest.mark.slow
def test_snapshot_that_takes_three_leases_costs_no_worker_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectors, lease = 40, 2.0
    cfg = config_of("flask_fs", collectors, str(tmp_path / "run"))
    cfg["system"]["coordinator"] |= {"lease": lease, "snapshot_interval": 3600.0}
    coordinator = Coordinator(cfg)
    coordinator.start()
    token, store = read_token(None, tmp_path / "run"), coordinator.run.store
    assert isinstance(store, FileStore)
    address = json.loads((tmp_path / "run" / "coordinator.json").read_text())
    record, generator = Record(), random.Random(0)
    make = partial(PlainChannel, address, token, store)
    learner = SimulatedLearner(make, record, 100, 3600.0, 0.5)
    workers = [learner, *(SimulatedCollector(make, record, 0.5, generator) for _ in range(collectors))]
    for worker in workers:
        worker.start()
    assert all(worker.has_task.wait(60) for worker in workers)
    (replay,) = coordinator.run.replays.values()
    deadline = time.monotonic() + 60
    while replay.counts.accepted < 2 * collectors:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monkeypatch.setattr(replay.intake, "save_buffer", lambda folder: time.sleep(3 * lease))
    coordinator.save()
    time.sleep(lease)  # the next sweeps of the leases
    assert record.events["lost leases"] == 0
    assert len(coordinator.scheduler.book.running("collector")) == collectors
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(20)
    coordinator.close()
