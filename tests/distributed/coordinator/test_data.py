"""The data that collectors send to the coordinator."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.transport import LeaseLostError, Refusal
from tests.distributed.coordinator.coordinating import Run, Worker, both, config, transitions


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(config(tmp_path / "run"))


def refused(status: int, collector: Worker, rows: Any, **said: Any) -> str:
    with pytest.raises(Refusal) as caught:
        collector.send(rows, **said)
    assert caught.value.status == status
    return caught.value.reason


def test_an_accepted_block_is_in_the_buffer_and_counted(run: Run) -> None:
    _, collector = both(run)
    answer = collector.send(transitions(), env_step=4, returns=[1.5, 2.5], lengths=[3, 5])
    assert answer["accepted"]
    assert not answer["duplicate"]
    assert run.rows()["reward"] == [0, 1, 2, 3]
    assert (run.counts.env_step, run.counts.episode, run.counts.sample) == (4, 2, 4)
    assert len(run.store) == 0


def test_an_accepted_block_is_read_from_the_store_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)
    get = Mock(wraps=run.store.get)
    monkeypatch.setattr(run.store, "get", get)
    collector.send(transitions())
    assert get.call_count == 1


def test_a_message_that_comes_twice_counts_once(run: Run) -> None:
    _, collector = both(run)
    collector.send(transitions())
    answer = collector.send(transitions(), seq=0)
    assert answer["accepted"]
    assert answer["duplicate"]
    assert (run.counts.env_step, len(run.rows()["reward"])) == (4, 4)


def test_a_message_that_comes_twice_at_the_same_time_counts_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)
    get, answers = run.store.get, []

    def get_late(handle: Any) -> Any:
        monkeypatch.undo()
        said = {"env_step": 4, "returns": [], "lengths": []}
        answers.append(collector.call("collector_data_task", seq=0, data_id=handle, metadata=said))
        return get(handle)  # which the other one has taken

    monkeypatch.setattr(run.store, "get", get_late)
    answers.append(collector.send(transitions()))
    assert [answer["duplicate"] for answer in answers] == [False, True]
    assert (run.counts.env_step, run.counts.refused, run.rows()["reward"]) == (4, 0, [0, 1, 2, 3])


def test_a_gap_in_the_numbers_of_messages_is_refused(run: Run) -> None:
    _, collector = both(run)
    collector.send(transitions())
    assert "1" in refused(400, collector, transitions(), seq=2)
    assert collector.send(transitions(first=4))["accepted"]


def test_envs_and_episodes_of_two_collectors_are_distinguished(run: Run) -> None:
    _, first = both(run)
    second = Worker(run, "collector")
    second.take()
    first.send(transitions(episode=7))
    second.send(transitions(first=10, episode=7))
    rows = run.rows()
    assert rows["env_id"] == [0, 1, 2, 3, 4, 5, 6, 7]
    numbers = [value >> 32 for value in rows["episode_id"]]
    assert len(set(numbers)) == 2
    assert {value & (2**32 - 1) for value in rows["episode_id"]} == {7}


def test_only_the_dropped_episode_of_its_own_collector_is_never_drawn(run: Run) -> None:
    _, first = both(run)
    second = Worker(run, "collector")
    second.take()
    first.send(transitions(episode=7))
    second.send(transitions(first=10, episode=7))
    first.send(None, dropped_episodes=[7])
    assert run.replay.buffer.count() == 4
    drawn = run.replay.buffer.sample(4)
    assert sorted(drawn["reward"].tolist()) == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"obs": torch.zeros(4, 3), "next_obs": torch.zeros(4, 3)}, "shape"),
        ({"action": torch.zeros(4)}, "type"),
        ({"obs": torch.full((4, 2), torch.nan)}, "finite"),
        ({"reward": torch.full((4,), torch.inf)}, "finite"),
        ({"truncated": None}, "truncated"),
        ({"reward": None}, "reward"),
        ({"extra": torch.zeros(4)}, "extra"),
        ({"reward": torch.zeros(3)}, "axis"),
        ({"reward": torch.zeros(())}, "axis"),
        ({"env_id": torch.tensor([0, 1, 2, 4])}, "env_id"),
        ({"env_id": torch.tensor([0, 1, 2, -1])}, "env_id"),
        ({"env_id": torch.zeros(4)}, "env_id"),
        ({"env_id": torch.zeros(4, dtype=torch.bool)}, "env_id"),
        ({"env_id": torch.zeros(4, dtype=torch.complex64)}, "type"),
        ({"reward": torch.zeros(4, dtype=torch.bfloat16)}, "type"),
        ({"obs": {"image": torch.zeros(4, 2).to(torch.float8_e4m3fn)}}, "type"),
        ({"episode_id": torch.full((4,), 2**32)}, "episode_id"),
        ({"policy_version": torch.full((4,), -1)}, "policy_version"),
    ],
)
def test_a_bad_block_is_refused_and_the_run_continues(run: Run, changed: dict[str, Any], what: str) -> None:
    _, collector = both(run)
    collector.send(transitions())
    assert what in refused(422, collector, transitions(first=4, **changed))
    assert (run.counts.env_step, run.counts.refused, len(run.store)) == (4, 1, 0)
    collector.send(transitions(first=8))
    assert run.rows()["reward"] == [0, 1, 2, 3, 8, 9, 10, 11]
    run.restart()
    assert run.rows()["reward"] == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize(
    "said",
    [
        {"env_step": -1},
        {"env_step": 1.5},
        {"env_step": None},
        {"returns": [1.0], "lengths": []},
        {"returns": [float("nan")], "lengths": [1]},
        {"returns": "1", "lengths": [1]},
        {"returns": [1.0], "lengths": [1], "infos": []},
        {"returns": [1.0], "lengths": [1], "infos": [{"laps": "3"}]},
        {"returns": [1.0], "lengths": [1], "infos": [{"laps": float("inf")}]},
        {"returns": [1.0], "lengths": [1], "infos": [3.0]},
        {"dropped_episodes": [2**32]},
        {"wait_time": "long"},
        {"seq": -1},
        {"seq": "0"},
        {"seq": True},
    ],
)
def test_a_malformed_message_is_refused_and_counts_nothing(run: Run, said: dict[str, Any]) -> None:
    _, collector = both(run)
    refused(400, collector, transitions(), **said)
    assert (run.counts.env_step, run.counts.sample, run.counts.episode) == (0, 0, 0)


def test_a_block_that_is_not_there_is_refused(run: Run) -> None:
    _, collector = both(run)
    said = {"env_step": 4, "returns": [], "lengths": []}
    with pytest.raises(Refusal, match="404"):
        collector.call("collector_data_task", seq=0, data_id={"kind": "data", "name": "none"}, metadata=said)
    assert collector.send(transitions())["accepted"]


@pytest.mark.parametrize("kind", ["policy", "batch", "priority"])
def test_a_collector_cannot_use_up_a_block_that_is_not_data(run: Run, kind: Any) -> None:
    _, collector = both(run)
    handle = run.store.put(kind, transitions())
    said = {"env_step": 4, "returns": [], "lengths": [], "dropped_episodes": []}
    with pytest.raises(Refusal, match="data_id must be the handle of a data block") as caught:
        collector.call("collector_data_task", seq=0, data_id=handle, metadata=said)
    assert caught.value.status == 400
    assert run.store.get(handle).tensors["reward"].tolist() == [0, 1, 2, 3]
    assert collector.send(transitions())["accepted"]


def test_a_learner_cannot_use_up_a_block_that_holds_no_priorities(run: Run) -> None:
    learner, _ = both(run)
    handle = run.store.put("policy", transitions())
    with pytest.raises(Refusal, match="priority_info must be the handle of a priority block"):
        learner.call("learner_learn_task", info={"learner_step": 1, "priority_info": handle, "learner_done": False})
    assert run.store.get(handle).tensors["reward"].tolist() == [0, 1, 2, 3]


def test_late_data_of_a_lost_lease_are_refused_and_another_has_the_task(run: Run) -> None:
    _, collector = both(run)
    run.elapse(16)
    with pytest.raises(LeaseLostError):
        collector.send(transitions())
    other = Worker(run, "collector")
    other.take()
    assert other.info()["collector_cfg"]["seed"] != collector.info()["collector_cfg"]["seed"]
    collector.connect()
    with pytest.raises(LeaseLostError):
        collector.send(transitions())
    assert other.send(transitions())["accepted"]
    assert run.counts.env_step == 4


def test_collector_receives_settings_weights_and_the_warm_up(tmp_path: Path) -> None:
    policy = {"random_collect_size": 6, "other": {"eps": {"start": 1.0, "end": 0.0, "decay": 8, "type": "linear"}}}
    run = Run(config(tmp_path / "run", policy))
    learner, collector = both(run)
    told = collector.send(transitions())
    assert told["random"]
    assert told["policy"] == {}
    assert told["collect_setting"]["eps"] == pytest.approx(0.5)
    assert learner.publish(3) == 1
    told = collector.send(transitions(first=4))
    assert not told["random"]
    assert told["policy"] == {learner.info()["policy_id"]: 1}
    assert told["weights"] == {}
    assert told["collect_setting"]["eps"] == pytest.approx(0.0)


def test_answer_contains_the_weights_that_are_newer_than_those_of_the_collector(run: Run) -> None:
    learner, collector = both(run)
    policy_id = learner.info()["policy_id"]
    learner.publish(3)
    learner.publish(8)
    answers = [collector.send(transitions(first=4 * i), serials={policy_id: 1 + i, "another": 1}) for i in range(2)]
    newest = collector.call("get_policy", policy_id=policy_id, serial=1)
    assert answers[0]["weights"] == {policy_id: newest["handle"]}
    assert answers[0]["policy_version"] == {policy_id: 8}
    assert (answers[1]["weights"], answers[1]["policy_version"]) == ({}, {})
    assert [answer["policy"] for answer in answers] == [{policy_id: 2}] * 2
    wrong: list[Any] = [[], {policy_id: "1"}, {policy_id: -1}]
    for serials in wrong:
        with pytest.raises(Refusal, match="400"):
            collector.send(None, serials=serials)


def test_too_old_transitions_are_left_out_counted_and_acknowledged(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_policy_lag=10))
    learner, collector = both(run)
    learner.publish(20)
    version = torch.tensor([9, 10, 11, 20])
    assert collector.send(transitions(policy_version=version))["accepted"]
    assert run.rows()["reward"] == [1, 2, 3]
    assert (run.counts.too_old, run.counts.sample, run.counts.env_step) == (1, 4, 4)
    assert run.coordinator.status()["policy_lag"] == pytest.approx((11 + 10 + 9 + 0) / 4)
    assert run.coordinator.status()["policy_lag_max"] == 11


def test_a_disk_that_takes_nothing_lets_the_collector_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run.store, "move", full)
        answer = collector.send(transitions())
    assert not answer["accepted"]
    assert answer["wait"] > 0
    assert run.counts.env_step == 0
    assert collector.send(transitions())["accepted"]


def test_data_of_a_killed_collector_vanish_and_announced_data_stay(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "run" / "data")
    run = Run(config(tmp_path / "run", samples_per_insert=2.0, tolerance=1.0, lease=10.0), store)
    _, collector = both(run)
    killed = store.put("data", transitions())
    for first in (0, 4, 8):
        assert collector.send(transitions(first=first))["accepted"]
    waiting = store.put("data", transitions(first=12))
    about = {"env_step": 4, "returns": [], "lengths": []}
    message = {"seq": 3, "data_id": waiting, "metadata": about}

    def announce_for(seconds: float) -> None:
        for _ in range(int(seconds / 5)):
            run.elapse(5)
            assert not collector.call("collector_data_task", **message)["accepted"]
            run.coordinator.run.delete_unannounced()

    run.coordinator.run.delete_unannounced()
    announce_for(75.0)
    assert set(store.names("data")) == {killed["name"], waiting["name"]}
    announce_for(5.0)  # eight leases have passed
    assert store.names("data") == [waiting["name"]]
    run.restart()
    announce_for(200.0)
    assert store.get(waiting).tensors["reward"].tolist() == [12, 13, 14, 15]
    assert run.rows()["reward"] == list(range(12))


def test_data_of_a_killed_collector_vanish_while_the_coordinator_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_ding.distributed.coordinator.run_state.KEPT_SECONDS", 0.01)
    store = FileStore(tmp_path / "run" / "data")
    store.put("data", transitions())
    coordinator = Coordinator(config(tmp_path / "run", lease=0.02), store)
    coordinator.start()
    end = time.monotonic() + 20.0
    while store.names("data"):
        assert time.monotonic() < end
        time.sleep(0.01)
    coordinator.close()


def test_folder_of_data_that_was_replaced_by_a_link_does_not_end_the_run(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "run" / "data")
    run = Run(config(tmp_path / "run"), store)
    (store.folder / "data").rmdir()
    (store.folder / "data").symlink_to(tmp_path)
    with pytest.raises(OSError, match="a link out of the store"):  # logged and tried again
        run.coordinator.run.delete_unannounced()
