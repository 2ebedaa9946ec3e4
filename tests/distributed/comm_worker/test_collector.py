from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding.distributed import NaiveCollector, ZerglingParallelCollector, published_weights as weights
from lightning_ding.distributed.comm_worker import collector as comm_collector
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.transport import Channel, LeaseLostError, Refusal
from lightning_ding.policy.base.normaliser import Normaliser
from tests.distributed.comm_worker.fake_coordinator import FakeCoordinator
from tests.distributed.weight_policy import ENV, POLICY, WeightPolicy


class GivenChannel(CommCollector):
    made: Channel | None = None

    def _make_channel(self) -> Channel:
        assert self.made is not None
        return self.made


def task(task_id: str = "a", **changes: Any) -> dict[str, Any]:
    env = {"env_id": ENV, "collector_env_num": 2, "evaluator_env_num": 2}
    cfg = {"type": "zergling", "policy": POLICY, "env": env, "n_sample": 6, "policy_update_path": ["mine"], **changes}
    return {"task_id": task_id, "buffer_id": "buffer", "collector_cfg": cfg, "opponent": None}


def run(coordinator: FakeCoordinator, **collector: Any) -> GivenChannel:
    comm = GivenChannel({"system": {"collector": collector}}, coordinator.channel())
    assert comm.start() == 0
    return comm


def test_tasks_are_done_and_closed_with_what_they_gave() -> None:
    coordinator = FakeCoordinator([task("a"), task("b", seed=1)])
    coordinator.publish("mine", 3)
    run(coordinator)
    said = coordinator.said("collector_data_task")
    assert [(one["task_id"], one["run_id"], one["seq"]) for one in said] == [
        *(("a", 1, seq) for seq in range(4)),
        *(("b", 2, seq) for seq in range(4)),
    ]
    assert [one["data_id"] is None for one in said] == [True, False, False, False] * 2
    names = {"policy_iter", "env_step", "cur_episode", "cur_sample", "cur_step", "get_data_time"}
    assert set(said[1]["metadata"]) == names | {"returns", "lengths", "dropped_episodes", "wait_time"}
    assert [block["action"].flatten().tolist() for block in coordinator.blocks()] == [[3.0] * 6] * 6
    closed = coordinator.said("collector_close_task")
    assert [(one["task_id"], one["info"]["sample_count"]) for one in closed] == [("a", 18), ("b", 18)]
    assert closed[0]["info"]["train_iter"] == 3


@pytest.mark.parametrize("way", ["in the answer", "by request", "replaced meanwhile"])
def test_newer_weights_are_taken_when_an_answer_names_them(way: str) -> None:
    coordinator = FakeCoordinator([task()])
    coordinator.asks_for_weights = way == "by request"
    coordinator.publish("mine", 3)

    def publish_after_second(message: dict[str, Any]) -> Any:
        if message["seq"] != 2:
            return None
        coordinator.publish("mine", 7 if way == "replaced meanwhile" else 8)
        answer = coordinator._collector_data_task(message)
        if way == "replaced meanwhile":
            coordinator.store.delete(answer["weights"]["mine"])
            coordinator.publish("mine", 8)
        return answer

    coordinator.answers["collector_data_task"] = publish_after_second
    run(coordinator)
    assert [block["policy_version"].tolist() for block in coordinator.blocks()] == [[3] * 6, [3] * 6, [8] * 6]
    assert [block["action"].flatten().tolist() for block in coordinator.blocks()] == [[3.0] * 6, [3.0] * 6, [8.0] * 6]
    assert [one["serials"] for one in coordinator.said("collector_data_task")][1:3] == [{"mine": 0}] * 2
    assert [one["serial"] for one in coordinator.said("get_policy")] == [-1, 0][: 1 if way == "in the answer" else 2]


def test_collector_acts_on_normalised_observations_and_sends_raw_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, seen = FakeCoordinator([task()]), []
    coordinator.publish("mine", 1)
    model = coordinator.store.get(coordinator.policies["mine"][0]).tensors["model"]
    forward = WeightPolicy._forward_collect

    def note(policy: WeightPolicy, obs: torch.Tensor, **kwargs: Any) -> Any:
        seen.append(obs)
        return forward(policy, obs, **kwargs)

    monkeypatch.setattr(WeightPolicy, "_forward_collect", note)
    normaliser = Normaliser()
    normaliser.begin(spaces.Box(-np.inf, np.inf, (2,)), norm_obs=True)
    normaliser.update({"obs": torch.tensor([[1.0, 2.0], [2.0, 5.0], [6.0, 4.0]])})
    block = {"model": model, "normaliser": normaliser.state_dict()}
    coordinator.policies["mine"] = (coordinator.store.put("policy", block), 0, 1)
    run(coordinator)
    sent = torch.cat([block["obs"] for block in coordinator.blocks()])
    assert torch.equal(torch.cat(seen)[: len(sent)], normaliser.normalise_obs(sent))
    assert not torch.equal(torch.cat(seen)[: len(sent)], sent)


def test_a_message_that_is_not_taken_yet_is_sent_again_as_it_is_and_the_waiting_told() -> None:
    coordinator = FakeCoordinator([task()])
    coordinator.publish("mine", 1)
    refusals = iter([True, True])

    def wait_twice(message: dict[str, Any]) -> Any:
        if message["seq"] == 1 and next(refusals, False):
            return coordinator.data_answer(accepted=False, wait=0.05)
        return None

    coordinator.answers["collector_data_task"] = wait_twice
    run(coordinator)
    said = coordinator.said("collector_data_task")
    assert [one["seq"] for one in said] == [0, 1, 1, 1, 2, 3]
    assert said[1] == said[2] == said[3]
    assert [one["metadata"]["wait_time"] for one in said] == pytest.approx([0, 0, 0, 0, 0.1, 0])
    assert coordinator.said("collector_close_task")[0]["info"]["sample_count"] == 18


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    coordinator = FakeCoordinator([task()])
    coordinator.publish("mine", 1)
    channel = coordinator.channel()
    put, failures = channel.store.put, iter([True, True])

    def full_twice(kind: Any, *block: Any) -> Any:
        if kind == "data" and next(failures, False):
            raise OSError(28, "No space left on device")
        return put(kind, *block)

    monkeypatch.setattr(comm_collector, "DISK_WAIT", 0.01)
    monkeypatch.setattr(channel.store, "put", full_twice)
    assert GivenChannel(None, channel).start() == 0
    assert caplog.text.count("transitions cannot be written") == 2
    assert coordinator.said("collector_close_task")[0]["info"]["sample_count"] == 18
    assert coordinator.said("fail") == []


def test_transitions_that_are_no_longer_needed_are_deleted() -> None:
    coordinator = FakeCoordinator([task()])
    coordinator.publish("mine", 1)
    closing = {"accepted": False, "close": True}
    coordinator.answers["collector_data_task"] = lambda message: (
        coordinator.data_answer(**closing) if message["seq"] == 1 else None
    )
    run(coordinator)
    assert len(coordinator.store) == 1  # the weights
    assert len(coordinator.said("collector_close_task")) == 1


@pytest.mark.parametrize(("refusal", "failures"), [(LeaseLostError("gone"), 0), (Refusal(422, "of a wrong form"), 1)])
def test_a_refused_message_ends_the_task_and_its_transitions_are_deleted(refusal: Refusal, failures: int) -> None:
    coordinator = FakeCoordinator([task("a"), task("b")], num_messages=1)
    coordinator.publish("mine", 1)

    def refuse_first(message: dict[str, Any]) -> Any:
        if message["task_id"] == "a" and message["seq"] == 1:
            raise refusal

    coordinator.answers["collector_data_task"] = refuse_first
    run(coordinator)
    assert [one["task_id"] for one in coordinator.said("collector_close_task")] == ["b"]
    assert len(coordinator.said("fail")) == failures
    assert len(coordinator.store) == 2  # the weights, and the transitions of the second task
    assert [one["seq"] for one in coordinator.said("collector_data_task") if one["task_id"] == "b"] == [0, 1]


def test_an_evaluation_is_closed_with_its_result_and_sends_no_data() -> None:
    coordinator = FakeCoordinator([task(eval_flag=True, n_episode=3)])
    coordinator.publish("mine", 2)
    run(coordinator)
    assert coordinator.said("collector_data_task") == []
    (closed,) = coordinator.said("collector_close_task")
    assert (closed["info"]["train_iter"], closed["info"]["reward_raw"]) == (2, [8.0] * 3)


def test_an_evaluation_is_broken_off_when_a_heartbeat_brings_the_wish() -> None:
    endless = {"env_id": ENV, "env_kwargs": {"length": 10**9}}
    coordinator = FakeCoordinator([task(eval_flag=True, n_episode=1, env=endless)], lease=0.1)
    coordinator.publish("mine", 2)
    coordinator.is_closing = True
    run(coordinator)
    (closed,) = coordinator.said("collector_close_task")
    assert closed["info"]["collector_done"] is False


def test_weights_that_are_not_there_yet_are_waited_for() -> None:
    coordinator = FakeCoordinator([task()])
    threading.Timer(0.3, lambda: coordinator.publish("mine", 5)).start()
    run(coordinator)
    assert coordinator.blocks()[0]["policy_version"].tolist() == [5] * 6


def test_the_log_says_once_that_weights_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "LONG", 0.3)
    coordinator = FakeCoordinator([task()])
    threading.Timer(1.5, lambda: coordinator.publish("mine", 5)).start()
    run(coordinator)
    assert [one.message for one in caplog.records if "published" in one.message] == [
        "no weights of 'mine' were published in 0.3 s: is a learner running?"
    ]


def test_a_collector_whose_env_hangs_sends_no_heartbeats_and_its_task_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = FakeCoordinator([task()], lease=0.1)
    coordinator.publish("mine", 1)
    count = []

    def hang(*_: Any) -> Any:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            before = len(coordinator.said("heartbeat"))
            time.sleep(0.6)
            if len(coordinator.said("heartbeat")) == before:
                count.append(before)
                raise ArithmeticError("it came back after all")

    monkeypatch.setattr(ZerglingParallelCollector, "_collect_once", hang)
    run(coordinator, stall_timeout=0.2)
    assert count


def test_a_collector_can_be_closed_from_another_thread() -> None:
    coordinator = FakeCoordinator([task()], num_messages=10**9)
    coordinator.publish("mine", 1)
    comm = GivenChannel(None, coordinator.channel())
    threading.Timer(1.0, comm.close).start()
    assert comm.start() == 0
    assert len(coordinator.said("collector_data_task")) > 1
    assert coordinator.messages[-1][0] == "disconnect"
    again = GivenChannel(None, coordinator.channel())
    again.close()
    assert again.start() == 0
    assert coordinator.tasks == []


def test_a_channel_is_made_and_closed_if_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = FakeCoordinator()
    closed = []
    channel = coordinator.channel()
    monkeypatch.setattr(channel, "close", lambda: closed.append(True))
    comm = GivenChannel()
    comm.made = channel
    uid = comm._uid
    assert comm.start() == 0
    assert closed == [True]
    assert comm._uid == uid == coordinator.said("connect")[0]["worker_id"]
    given = GivenChannel(None, channel)
    given.start()
    assert closed == [True]


def test_threads_of_torch_are_as_configured() -> None:
    run(FakeCoordinator(), num_threads=2)
    assert torch.get_num_threads() == 2
    run(FakeCoordinator(), num_threads=None)
    assert torch.get_num_threads() == 2
    run(FakeCoordinator(), num_threads=1)
    assert torch.get_num_threads() == 1


def test_a_naive_collector_sends_twenty_trajectories_of_one_step() -> None:
    coordinator = FakeCoordinator([task("a"), task("b")], num_messages=10**9)
    naive = NaiveCollector(channel=coordinator.channel())
    assert naive.start() == 0
    assert naive.sent == 40
    assert [block["obs"][:, 0].tolist() for block in coordinator.blocks()] == [[float(n)] for n in range(20)] * 2
    assert [one["info"]["collector_done"] for one in coordinator.said("collector_close_task")] == [True, True]


def test_a_naive_collector_sends_again_what_is_not_taken_yet() -> None:
    coordinator = FakeCoordinator([task()], num_messages=3)
    refusals = iter([True, True])

    def wait_twice(message: dict[str, Any]) -> Any:
        return coordinator.data_answer(accepted=False, wait=0.01) if next(refusals, False) else None

    coordinator.answers["collector_data_task"] = wait_twice
    NaiveCollector(channel=coordinator.channel()).start()
    assert [one["seq"] for one in coordinator.said("collector_data_task")] == [0, 0, 0, 1, 2, 3]


def test_a_naive_collector_ends_its_task_when_it_is_closed() -> None:
    coordinator = FakeCoordinator([task()], num_messages=4)
    naive = NaiveCollector(channel=coordinator.channel())
    naive.start()
    assert naive.sent == 5
