from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_ding.distributed.block_files import read_block
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.transport import ANSWERED_AT_ONCE, CoordinatorGoneError, LeaseLostError, Refusal


@pytest.fixture
def channel(stand_in: Any, namespace: str) -> RayChannel:
    return RayChannel(namespace, reconnect_timeout=60.0)


def test_answers_and_refusals_come_through(channel: RayChannel) -> None:
    assert channel.call("echo", {"n": 1, "rows": [1.5, None, "x"]}) == {"n": 1, "rows": [1.5, None, "x"]}
    assert channel.call("echo") == {}
    with pytest.raises(Refusal, match="422: because") as refused:
        channel.call("refuse", {"status": 422})
    assert refused.value.status == 422
    with pytest.raises(LeaseLostError, match="409: because"):
        channel.call("refuse", {"status": 409})
    with pytest.raises(ZeroDivisionError, match="a defect"):  # not tried again
        channel.call("defect")


@pytest.mark.parametrize("size", [3, 50_000])
def test_data_arrive_and_are_written(channel: RayChannel, folder: Path, size: int) -> None:
    handle = channel.store.put("data", {"x": torch.arange(size)})

    assert channel.call("journal", {"data_id": handle})["accepted"]

    assert read_block(folder / "journal.safetensors", 10**6).tensors["x"].tolist() == list(range(size))


@pytest.mark.parametrize("size", [3, 50_000])
def test_data_that_were_not_accepted_can_be_sent_again(channel: RayChannel, folder: Path, size: int) -> None:
    message = {"data_id": channel.store.put("data", {"x": torch.arange(size)})}

    assert not channel.call("not_yet", message)["accepted"]
    with pytest.raises(Refusal):
        channel.call("refuse", {**message, "status": 409})
    assert channel.call("journal", message)["accepted"]
    assert read_block(folder / "journal.safetensors", 10**6).tensors["x"].tolist() == list(range(size))


def test_message_is_sent_again_while_the_coordinator_s_disk_is_full(channel: RayChannel, folder: Path) -> None:
    message = {"data_id": channel.store.put("data", {"x": torch.arange(3)})}

    assert channel.call("full_disk", message)["accepted"]

    assert read_block(folder / "journal.safetensors", 10_000).tensors["x"].tolist() == [0, 1, 2]


def test_heartbeats_and_other_messages_are_answered_while_all_threads_for_data_wait(channel: RayChannel) -> None:
    with ThreadPoolExecutor(ANSWERED_AT_ONCE + 5) as senders:
        waiting = [senders.submit(channel.call, "collector_data_task") for _ in range(ANSWERED_AT_ONCE + 5)]
        start = time.monotonic()
        assert channel.call("heartbeat") == {}
        channel.call("free")
        assert time.monotonic() - start < 15.0  # data wait for up to 30 s
        assert all(one.result()["accepted"] for one in waiting)


def test_disk_that_stays_full_is_named_when_the_time_is_over(stand_in: Any, namespace: str) -> None:
    with pytest.raises(CoordinatorGoneError, match=r"no answer to 'always_full' .* in 1 s: OSError: .*no space left"):
        RayChannel(namespace, reconnect_timeout=1.0).call("always_full")


def test_priorities_in_the_info_of_a_message_arrive(channel: RayChannel) -> None:
    handle = channel.store.put("priority", {"priority": torch.tensor([0.5, 1.5])})

    assert channel.call("learned", {"info": {"learner_step": 3, "priority_info": handle}}) == {"sum": 2.0}


def test_batch_is_held_until_the_learner_deletes_it(channel: RayChannel) -> None:
    handle = channel.call("batch", {"rows": 4})["data"]
    assert channel.store.get(handle).tensors["obs"].tolist() == [0, 1, 2, 3]
    assert channel.call("held") == {"rounds": 1}

    channel.store.delete(handle)

    assert channel.call("held") == {"rounds": 0}


def test_refused_weights_leave_nothing_behind(channel: RayChannel, folder: Path) -> None:
    handle = channel.store.put("policy", {"w": torch.zeros(2)})

    with pytest.raises(LeaseLostError):
        channel.call("refuse", {"status": 409, "data_id": handle})

    assert not (folder / "policy" / f"{handle['name']}.safetensors").exists()


def test_names_of_deleted_rounds_are_sent_again_if_their_message_got_no_answer(monkeypatch: Any) -> None:
    exceptions = pytest.importorskip("ray").exceptions
    channel = RayChannel("nowhere", 1.0)
    sent = []

    class Actor:
        handle: Any = None

        @staticmethod
        def remote(name: str, message: Any, deleted: list[str]) -> None:
            sent.append(deleted)

    def get(reference: Any, timeout: float) -> Any:
        if len(sent) == 1:
            raise exceptions.GetTimeoutError
        return {"reply": {}}

    Actor.handle = Actor
    monkeypatch.setattr(channel, "_ray", SimpleNamespace(exceptions=exceptions, get=get))
    monkeypatch.setattr(channel, "_forget_connection", lambda: None)
    channel._actor = Actor
    name = "0" * 32
    channel.store.delete({"kind": "batch", "name": name})
    assert channel.call("status") == {}
    assert sent == [[name], [name]]
    assert channel.store.take_deleted() == []


@pytest.mark.slow
def test_weights_outlive_the_learner_and_the_coordinator_and_calls_continue(
    ray: Any, channel: RayChannel, namespace: str
) -> None:
    class Learner:
        def publish(self) -> None:
            way = RayChannel(namespace, 60.0)
            way.call("publish", {"data_id": way.store.put("policy", {"w": torch.full((40_000,), 2.0)})})

    learner = ray.remote(Learner).remote()
    ray.get(learner.publish.remote())
    ray.kill(learner)
    first = channel.call("newest")["handle"]
    assert channel.store.get(first).tensors["w"].sum().item() == 80_000
    pid = channel.call("pid")["pid"]

    ray.kill(ray.get_actor("coordinator", namespace), no_restart=False)
    deadline = time.monotonic() + 60
    while channel.call("pid")["pid"] == pid:  # the old process may still answer, with references that die with it
        assert time.monotonic() < deadline

    handle = channel.call("newest")["handle"]
    assert handle == first
    assert RayChannel(namespace, 60.0).call("newest")["handle"] == first
    assert channel.store.get(handle).tensors["w"].sum().item() == 80_000  # the new process has shared them again


def test_coordinator_that_is_not_there_is_looked_for_as_long_as_told(ray: Any, namespace: str) -> None:
    start = time.monotonic()

    with pytest.raises(CoordinatorGoneError, match="no answer to 'echo' from the actor 'nobody'"):
        RayChannel(namespace, reconnect_timeout=0.5, name="nobody").call("echo")

    assert 0.2 < time.monotonic() - start < 20


@pytest.mark.slow
def test_channel_of_a_process_that_is_not_in_ray_says_so_and_starts_none() -> None:
    code = """
import ray
from lightning_ding.distributed.transport import CoordinatorGoneError
from lightning_ding.distributed.ray.channel import RayChannel
try:
    RayChannel("nowhere", reconnect_timeout=60.0).call("echo")
except CoordinatorGoneError as error:
    assert "not connected to Ray" in str(error), error
else:
    raise AssertionError
assert not ray.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
