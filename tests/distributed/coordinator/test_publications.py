"""Publications of weights that a signal interrupts."""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.distributed.coordinator import publications
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.stop_signals import StopSignal
from lightning_ding.distributed.transport import LeaseLostError, Refusal
from tests.distributed.coordinator.coordinating import Run, both, config
from tests.entry.runs import wait_until
from tests.processes import Forked, start


def test_signal_during_a_publication_leaves_the_previous_weights_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "data"))
    learner, collector = both(run)
    learner.publish(1)

    def write_half(tensors: Any, file: Path, metadata: Any) -> None:
        file.write_bytes(b"half of the weights")
        raise StopSignal

    with monkeypatch.context() as patch:
        patch.setattr("lightning_ding.distributed.block_files.write_tensors", write_half)
        with pytest.raises(StopSignal):
            learner.publish(2)
    answer = collector.call("get_policy", policy_id=learner.info()["policy_id"], serial=-1)
    assert run.store.get(answer["handle"]).tensors["weight"].tolist() == [1.0]
    assert len(list((tmp_path / "data" / "policy").iterdir())) == 1
    assert learner.publish(3) == 2


def test_weights_whose_index_could_not_be_written_are_written_and_deleted_with_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "data"))
    learner, collector = both(run)
    for version in range(1, 4):
        learner.publish(version)
    before = len(list((tmp_path / "data" / "policy").iterdir()))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    handle = run.store.put("policy", {"weight": torch.tensor([4.0])})
    said = {"policy_id": learner.info()["policy_id"], "policy_version": 4, "data_id": handle}
    with monkeypatch.context() as patch:
        patch.setattr(run.coordinator.run.database, "write", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="no space left"):
                learner.call("learner_send_policy", **said)
    learner.call("learner_send_policy", **said)  # as the channel does until it is answered

    assert len(list((tmp_path / "data" / "policy").iterdir())) == before
    run.restart()
    answer = collector.call("get_policy", policy_id=said["policy_id"], serial=-1)
    assert run.store.get(answer["handle"]).tensors["weight"].tolist() == [4.0]


def test_packed_weights_are_on_the_disk_before_the_database_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "data"))
    learner, _ = both(run)
    learner.publish(1)
    weights, done = run.coordinator.run.weights, list[Any]()
    write = weights.write
    monkeypatch.setattr(publications, "sync_tree", lambda folder: done.append([one.name for one in folder.iterdir()]))

    def note_and_write() -> None:
        done.append("database")
        write()

    monkeypatch.setattr(weights, "write", note_and_write)
    weights.pack()
    assert done == [["0.safetensors"], "database"]


def test_refused_weights_and_priorities_are_deleted_and_published_ones_stay(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")
    run = Run(config(tmp_path / "run"), store)
    learner, _ = both(run)
    policy_id = learner.info()["policy_id"]
    published = store.put("policy", {"weight": torch.tensor([1.0])})
    said = {"policy_id": policy_id, "policy_version": 1, "data_id": published}
    learner.call("learner_send_policy", **said)
    for wrong in ({"policy_id": "another"}, {"policy_version": -1}):
        refused = store.put("policy", {"weight": torch.tensor([2.0])})
        with pytest.raises(Refusal):
            learner.call("learner_send_policy", **(said | {"data_id": refused} | wrong))
    learner.call("fail", error="the lease is lost")  # from now on 409

    late = store.put("policy", {"weight": torch.tensor([3.0])})
    priority = store.put("priority", {"priority": torch.tensor([3.0])})
    for handle in (late, published):  # the second, because the answer to an earlier copy was lost
        with pytest.raises(LeaseLostError):
            learner.call("learner_send_policy", **(said | {"data_id": handle}))
    with pytest.raises(LeaseLostError):
        learner.call("learner_learn_task", info={"learner_step": 1, "priority_info": priority})

    assert (store.names("policy"), store.names("priority")) == ([published["name"]], [])
    run.restart()
    assert run.store.get(run.coordinator.run.weights.newer(policy_id, -1)["handle"]).tensors["weight"].tolist() == [1.0]


def test_weights_of_a_killed_learner_vanish_and_published_ones_stay(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")
    run = Run(config(tmp_path / "run", lease=10.0), store)
    learner, collector = both(run)
    learner.publish(1)
    published = set(store.names("policy"))
    store.put("policy", {"weight": torch.tensor([2.0])})  # killed before it could send its message

    def elapse(seconds: float) -> None:
        for _ in range(int(seconds / 5)):
            run.elapse(5)
            run.coordinator.run.delete_unannounced()
            for worker in (learner, collector):
                worker.call("heartbeat")

    run.coordinator.run.delete_unannounced()
    elapse(75.0)
    assert len(store.names("policy")) == 2
    elapse(5.0)  # eight leases have passed
    assert set(store.names("policy")) == published
    elapse(200.0)
    run.restart()
    elapse(200.0)
    assert set(store.names("policy")) == published


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_learner_that_is_killed_while_it_writes_weights_leaves_the_previous_ones_and_another_continues(
    number: signal.Signals, tmp_path: Path
) -> None:
    coordinator = Coordinator(config(tmp_path / "run", lease=1.0))
    coordinator.start()
    policies = tmp_path / "run" / "data" / "policy"

    def learner(version: int, seconds: float = 0.0) -> Forked:
        module = "tests.distributed.coordinator.publisher_script"
        return start(["-m", module, tmp_path / "run", version, seconds])

    def newest() -> tuple[int, set[float]]:
        (task,) = (one for one in coordinator.run.scheduler.book.tasks.values() if one.role == "learner")
        published = coordinator.run.weights.newer(task.info["policy_id"], -1)
        tensors = coordinator.run.store.get(published["handle"]).tensors
        return published["serial"], set(tensors["weight"].tolist())

    with learner(1) as process:
        assert process.wait(60) == 0
    with learner(2, seconds=20.0) as process:
        wait_until(lambda: [file for file in policies.glob(".*.tmp") if file.stat().st_size], process)
        process.send_signal(number)
        assert process.wait(10) == (143 if number == signal.SIGTERM else -9)
    assert newest() == (1, {1.0})
    assert len(list(policies.glob(".*.tmp"))) == (number == signal.SIGKILL)
    with learner(3) as process:
        assert process.wait(60) == 0
    assert newest() == (2, {3.0})
    assert len(list(policies.glob("[!.]*"))) == 2  # the newest ones, and those before
    coordinator.close()
