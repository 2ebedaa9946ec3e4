"""Collectors with a real coordinator, and a learner whose weights are numbers that grow."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from lightning_ding.distributed import NaiveCollector
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from tests.distributed.weight_policy import ENV, POLICY
from tests.entry.runs import PROGRAM
from tests.processes import ROOT, run, wait_for

LENGTH = 4  # steps of an episode


class Collector(CommCollector):
    def _make_channel(self) -> Any:
        raise AssertionError


@contextmanager
def coordinating(cfg: dict[str, Any]) -> Iterator[tuple[Coordinator, Callable[[], InProcessChannel]]]:
    store = MemoryStore()
    coordinator = Coordinator(cfg, store)
    coordinator.start()
    try:
        yield coordinator, lambda: InProcessChannel(coordinator.handle, store)
    finally:
        coordinator.close()


def rows_of(coordinator: Coordinator) -> dict[str, torch.Tensor]:
    (replay,) = coordinator.run.replays.values()
    storage = cast(Any, replay.buffer)._storage
    return {name: torch.as_tensor(column[: storage.count].copy()) for name, column in storage.columns.items()}


def config(folder: Path, **commander: Any) -> dict[str, Any]:
    env = {"env_id": ENV, "env_kwargs": {"length": LENGTH}, "collector_env_num": 2, "n_evaluator_episode": 3}
    return {
        "main": {"exp_name": str(folder), "policy": POLICY, "env": env},
        "system": {"coordinator": {"samples_per_insert": 1.0, "tolerance": 1e6, "commander": commander}},
    }


def test_rows_evaluations_and_counts_of_two_collectors_are_those_of_the_weights_that_acted(tmp_path: Path) -> None:
    with coordinating(config(tmp_path, eval_interval=0.3)) as (coordinator, channel):
        learner = CommWorker(channel(), "learner")

        def learn(task: AssignedTask) -> None:
            version = 0
            while version < 5 or len(coordinator.run.results.evaluations) < 3:
                value = torch.full((1,), float(version))
                handle = learner.channel.store.put("policy", {"model": {"first": value, "second": value.clone()}})
                policy_id = task.task_info["policy_id"]
                learner.call("learner_send_policy", policy_id=policy_id, policy_version=version, data_id=handle)
                time.sleep(0.1)
                version += 1
            learner.call("learner_close_task", info={"learner_step": version, "learner_done": True, "results": {}})

        threads = [threading.Thread(target=learner.run, args=(learn,))]
        threads += [threading.Thread(target=Collector(None, channel()).start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
            assert not thread.is_alive()
        rows, status = rows_of(coordinator), coordinator.status()
        evaluations = coordinator.run.results.evaluations
    assert torch.equal(rows["action"].flatten().long(), rows["policy_version"])
    assert torch.equal(rows["action"], rows["second"])
    assert len(rows["policy_version"].unique()) > 1
    assert len(rows["env_id"].unique()) >= 4  # two collectors of two envs
    assert status["env_step"] == status["sample"] == len(rows["action"])
    for episode in rows["episode_id"].unique():
        ended = rows["terminated"][rows["episode_id"] == episode].tolist()
        assert not any(ended[:-1])
        assert ended[-1] == (len(ended) == LENGTH)
    assert len(evaluations) >= 3
    for evaluation in evaluations:
        assert evaluation["reward_raw"] == [float(LENGTH * evaluation["train_iter"])] * 3


def test_trajectories_of_naive_collectors_are_counted_once_each(tmp_path: Path) -> None:
    with coordinating(config(tmp_path, type="naive")) as (coordinator, channel):
        collectors = [NaiveCollector(channel=channel()) for _ in range(2)]
        threads = [threading.Thread(target=collector.start) for collector in collectors]
        for thread in threads:
            thread.start()
        wait_for(lambda: all(collector.sent >= 20 for collector in collectors))
        for collector in collectors:
            collector.close()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        rows, status = rows_of(coordinator), coordinator.status()
    sent = sum(collector.sent for collector in collectors)
    assert sent >= 40
    assert status["sample"] == status["env_step"] == sent == len(rows["episode_id"].unique())


@pytest.mark.slow
def test_a_league_learns_to_beat_a_random_player_in_nine_games_of_ten(tmp_path: Path) -> None:
    file = ROOT / "recipes/configs/parallel_league_tictactoe.yaml"
    run(*PROGRAM, "--config", file, "--set", f"main.exp_name={tmp_path}", timeout=600)
    evaluations = json.loads((tmp_path / "result.json").read_text())["evaluations"]
    of_random = [evaluation["result"] for evaluation in evaluations if evaluation["opponent"] == "random"]
    assert of_random[-1]["wins"] / sum(of_random[-1].values()) >= 0.9
    assert any(evaluation["opponent"] != "random" for evaluation in evaluations)
