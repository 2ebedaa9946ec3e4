"""A finished run of a real learner and a real collector continues with a larger limit."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from tests.distributed.comm_worker.learning_coordinator import SMALL, TRAINER, Learner
from tests.distributed.test_collectors_and_coordinator import Collector, rows_of

POLICY = {
    **SMALL,
    "random_collect_size": 16,
    "collect": {"n_sample": 8},
    "learn": {**SMALL["learn"], "lr_scheduler": {"type": "linear", "unit": "env_step", "decay": 1000}},
    "eval": {"evaluator": {"eval_freq": 8, "n_episode": 2}},
}


class Publishing(Learner):
    """A learner that keeps the first weights that it publishes."""

    first: dict[str, Any] | None = None

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        if self.first is None:
            self.first = copy.deepcopy(dict(state_dict))
        super().send_policy(state_dict)


class Finished(NamedTuple):
    """What a run has left."""

    result: dict[str, Any]
    checkpoint: dict[str, Any]
    rows: dict[str, torch.Tensor]
    first_weights: Any


def run(folder: Path, resume: bool = False, **main: Any) -> Finished:
    """Run a coordinator, a learner and a collector in this process."""
    env = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2}
    section = {"exp_name": str(folder), "policy": POLICY, "env": env, "norm_obs": True, **main}
    system = {"learner": {"trainer": TRAINER}, "coordinator": {"commander": {"eval_interval": None}}}
    store = MemoryStore()
    coordinator = Coordinator({"main": section, "system": {**system, "collector": {"num": 1}}}, store, resume)
    coordinator.start()
    collector = Collector(None, InProcessChannel(coordinator.handle, store))
    thread = threading.Thread(target=collector.start)
    thread.start()
    learner = Publishing(channel=InProcessChannel(coordinator.handle, store))
    assert learner.start() == 0
    thread.join(timeout=60)
    assert coordinator.wait(60)
    coordinator.close()
    result = json.loads((folder / "result.json").read_text())
    file = last_checkpoint(folder / "learner")
    assert file is not None
    return Finished(result, torch.load(file, weights_only=True), rows_of(coordinator), learner.first)


def test_weights_optimizer_normaliser_schedule_counters_versions_and_buffer_continue(tmp_path: Path) -> None:
    first = run(tmp_path, max_env_step=64)
    second = run(tmp_path, resume=True, max_env_step=128)

    updates, more_updates = (one.result["train_iter"] for one in (first, second))
    assert first.result["env_step"] == first.checkpoint["progress"]["env_step"] == 64
    assert 0 < updates < more_updates
    assert second.result["env_step"] == second.checkpoint["progress"]["env_step"] == 128
    assert second.result["seconds"] > first.result["seconds"]

    assert second.first_weights["iter"] == updates
    for name, tensor in second.first_weights["model"].items():
        assert torch.equal(tensor, first.checkpoint["state_dict"][f"model.{name}"]), name
    assert second.first_weights["normaliser"]["obs.count"] == 8 * updates  # the size of a minibatch
    assert second.checkpoint["state_dict"]["normaliser.obs.count"] == 8 * more_updates

    (optimizer,) = second.checkpoint["optimizer_states"]
    assert {int(state["step"]) for state in optimizer["state"].values()} == {more_updates}
    (before,) = first.checkpoint["optimizer_states"]
    rates = [one["param_groups"][0]["lr"] for one in (before, optimizer)]
    start, middle, end = (5e-4 * (1 - env_step / 1000) for env_step in (0, 64, 128))
    assert end <= rates[1] <= middle <= rates[0] < start

    assert len(second.rows["reward"]) == 128
    for name, column in first.rows.items():
        assert torch.equal(second.rows[name][:64], column), name
    assert second.rows["policy_version"][64:].min() >= first.rows["policy_version"].max()
    assert second.rows["policy_version"].max() > updates
    assert not set(second.rows["episode_id"][64:].tolist()) & set(first.rows["episode_id"].tolist())
