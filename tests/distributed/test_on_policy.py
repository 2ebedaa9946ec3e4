"""On-policy algorithms in distributed runs: the weights of one process, learners that are stopped, and versions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.distributed import Coordinator
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.envs.vector import seed_envs
from lightning_ding.policy import create_policy
from tests.processes import wait_for

SEED, ENVS, ROLLOUTS = 3, 2, 4
SMALL = {"encoder_hidden_size_list": [8]}
POLICIES: dict[str, dict[str, Any]] = {
    "a2c": {"model": SMALL, "collect": {"n_sample": 32}},
    "ppo with a reward model": {
        "model": SMALL,
        "learn": {"epoch_per_collect": 2, "batch_size": 16},
        "collect": {"n_sample": 32},
        "reward_model": {"type": "rnd", "hidden_size_list": [8]},
    },
    "pg": {"model": SMALL, "collect": {"n_episode": 3}},
    "ppo": {"model": SMALL, "learn": {"epoch_per_collect": 2, "batch_size": 16}, "collect": {"n_sample": 32}},
    "ppo, n_sample is no multiple": {"model": SMALL, "learn": {"batch_size": 16}, "collect": {"n_sample": 31}},
    "trpo": {"model": SMALL, "learn": {"epoch_per_collect": 2, "batch_size": 16}, "collect": {"n_sample": 32}},
    "recurrent_ppo": {
        "learn_unroll_len": 8,
        "model": {"core": {"hidden_size": 4}, **SMALL},
        "learn": {"epoch_per_collect": 2, "batch_size": 16},
        "collect": {"n_sample": 32},
    },
}
TRAINER: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
FLAGS: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
Weights = dict[str, torch.Tensor]


def policy_of(name: str) -> dict[str, Any]:
    return {"type": name.replace(",", "").split()[0], **POLICIES[name]}


def config(folder: Path, policy: dict[str, Any], collectors: int = 1, **main: Any) -> dict[str, Any]:
    env = {"env_id": "CartPole-v1", "collector_env_num": ENVS}
    commander = {"eval_interval": None, "collector_task_space": collectors}
    return {
        "main": {"exp_name": str(folder), "policy": policy, "env": env, "seed": SEED, **main},
        "system": {"coordinator": {"commander": commander}, "learner": {"validate": False, "trainer": TRAINER}},
    }


class Learner(CommLearner):
    """A comm learner that keeps all published weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.published: list[Weights] = []

    def send_policy(self, state_dict: Any) -> None:
        parts = {f"{part}.{k}": x for part in ("model", "normaliser") for k, x in state_dict.get(part, {}).items()}
        self.published.append({name: tensor.clone() for name, tensor in parts.items()})
        super().send_policy(state_dict)


@contextmanager
def coordinating(cfg: dict[str, Any], resume: bool = False) -> Iterator[tuple[Coordinator, Any]]:
    """Run a coordinator; yields it and a function that starts a worker of a class in a thread."""
    store, threads = MemoryStore(), []
    coordinator = Coordinator(cfg, store, resume=resume)

    def start(kind: Any) -> Any:
        worker = kind(cfg, InProcessChannel(coordinator.handle, store))
        threads.append(threading.Thread(target=worker.start, daemon=True))
        threads[-1].start()
        worker.thread = threads[-1]
        return worker

    coordinator.start()
    try:
        yield coordinator, start
        assert coordinator.wait(60), coordinator.status()
        for thread in threads:
            thread.join(30)
        assert coordinator.failure is None
    finally:
        coordinator.close()


def learned_by_processes(cfg: dict[str, Any]) -> list[Weights]:
    """Return the weights that a learner with one collector publishes."""
    with coordinating(cfg) as (coordinator, start):
        learner = start(Learner)
        wait_for(lambda: bool(coordinator.run.weights.serials()))  # torch's generator, too, is in use only once
        start(CommCollector)
    return list(learner.published)


class OneProcess(RolloutDataModule):
    """Collects, on rank r, as the collector of task r, whose envs and noise have seeds of their own."""

    def _begin_episodes(self) -> None:
        number = 2 + self.trainer.global_rank  # type: ignore[union-attr]
        task: int = np.random.SeedSequence([SEED, number]).generate_state(1).tolist()[0]
        envs, noise, _ = np.random.SeedSequence(task).spawn(3)
        seed_envs(self._collector_env, envs)
        self.collector.reset_env()
        self.noise = np.random.default_rng(noise)
        self.published = [self._weights()]

    def _next_round(self) -> dict[str, Any]:
        if self._policy.progress.train_iter:
            self.published.append(self._weights())
        own, self._policy.rng = self._policy.rng, self.noise
        try:
            return super()._next_round()
        finally:
            self._policy.rng = own

    def _weights(self) -> Weights:
        state = self._policy.collect_mode.state_dict()
        parts = {f"{part}.{k}": x for part in ("model", "normaliser") for k, x in state.get(part, {}).items()}
        return {name: tensor.clone() for name, tensor in parts.items()}


def learned_by_one_process(cfg: dict[str, Any], **options: Any) -> list[Weights]:
    seed_everything(SEED, verbose=False)
    policy = create_policy(cfg["main"]["policy"])
    limit = cfg["main"]["max_train_iter"]
    data = OneProcess("CartPole-v1", num_envs=ENVS, seed=SEED, max_train_iter=limit, **options)
    Trainer(**TRAINER, **FLAGS, max_epochs=-1, limit_val_batches=0).fit(policy, data)
    return data.published


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_collector_and_one_process_learn_the_same_weights_to_the_last_bit(tmp_path: Path, name: str) -> None:
    updates = {"a2c": 1, "pg": 1, "ppo, n_sample is no multiple": 20, "trpo": 5}.get(name, 4)
    options = {"norm_obs": True, "norm_reward": True} if name in ("ppo", "a2c") else {}
    cfg = config(tmp_path / "run", policy_of(name), max_train_iter=ROLLOUTS * updates, **options)
    found, expected = learned_by_processes(cfg), learned_by_one_process(cfg, **options)
    assert len(found) > ROLLOUTS
    assert any("normaliser" in key for key in found[-1]) == bool(options)
    for mine, other in zip(found, expected, strict=False):
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            assert torch.equal(value, other[key]), key
    assert len(expected) >= ROLLOUTS
    changed = [key for key in found[0] if not torch.equal(found[0][key], found[-1][key])]
    assert changed


@pytest.mark.parametrize(
    ("name", "options"), [("ppo", {"norm_obs": True, "norm_reward": True}), ("ppo with a reward model", {})]
)
def test_a_learner_that_was_stopped_continues_to_the_last_bit(
    tmp_path: Path, name: str, options: dict[str, bool]
) -> None:
    policy = policy_of(name)
    whole = learned_by_one_process(config(tmp_path, policy, max_train_iter=24), **options)
    cfg = config(tmp_path / "run", policy, max_train_iter=24, **options)
    cfg["system"]["learner"]["trainer"] = {"accelerator": "cpu", "logger": False}
    with coordinating(cfg) as (coordinator, start):
        first = start(Learner)
        wait_for(lambda: bool(coordinator.run.weights.serials()))
        start(CommCollector)
        wait_for(lambda: len(first.published) == 3)
        first.close()
        first.thread.join(30)
        second = start(Learner)
    stopped = len(first.published) - 1  # its last weights are those from which the other one continues
    found = [*first.published[:stopped], *second.published]
    assert 2 <= stopped < 6
    assert len(found) == 7
    for mine, other in zip(found, whole, strict=False):
        assert all(torch.equal(value, other[name]) for name, value in mine.items())


def watching(rollouts: list[tuple[int, Any]]) -> type[Learner]:
    """Return a class of learners that append each rollout and the number of updates before it to ``rollouts``."""

    class Watcher(Learner):
        def _take(self, handle: Any) -> Any:
            found = super()._take(handle)
            rollouts.append((self.learner.train_iter, found))
            return found

    return Watcher


def test_rollouts_of_several_collectors_have_the_version_of_the_weights_that_learn_from_them(tmp_path: Path) -> None:
    cfg = config(tmp_path / "run", deep_merge(policy_of("ppo"), {"learn": {"epoch_per_collect": 1}}), 3)
    cfg["main"]["max_train_iter"] = 20
    rollouts: list[tuple[int, Any]] = []
    with coordinating(cfg) as (_, start):
        start(watching(rollouts))
        for _ in range(3):
            start(CommCollector)
    assert len(rollouts) >= 8
    for train_iter, rollout in rollouts:
        assert rollout["policy_version"].unique().tolist() == [train_iter]
        assert 32 <= len(rollout["reward"]) <= 2 * 32
        rows = torch.cat([rollout["obs"], rollout["episode_id"].double()[:, None]], 1)
        assert len(rows.unique(dim=0)) == len(rows)
    assert {len(rollout["env_id"].unique()) for _, rollout in rollouts} & {4, 6}


class Straggler(CommCollector):
    """A collector whose envs take ten times as long as those of the others."""

    def _create_collector(self, task_info: Any) -> Any:
        made = super()._create_collector(task_info)
        tick = made.tick

        def slowly() -> None:
            time.sleep(0.02)
            tick()

        made.tick = slowly
        return made


@pytest.mark.parametrize("late", ["drop", "use"])
def test_learning_goes_on_without_a_straggler(tmp_path: Path, late: str) -> None:
    cfg = config(tmp_path / "run", deep_merge(policy_of("ppo"), {"learn": {"epoch_per_collect": 1}}), 3)
    cfg["main"]["max_train_iter"] = 60
    cfg["system"]["coordinator"] |= {"rollout_share": 0.5, "late_transitions": late}
    rollouts: list[tuple[int, Any]] = []
    with coordinating(cfg) as (coordinator, start):
        start(watching(rollouts))
        for kind in (Straggler, CommCollector, CommCollector):
            start(kind)
        wait_for(lambda: len(rollouts) > 0)
    seen, before, late_rows = [], -1, 0
    for train_iter, rollout in rollouts:
        versions = rollout["policy_version"]
        assert set(versions.tolist()) <= {train_iter, *([before] if late == "use" else [])}
        assert (versions == train_iter).sum() >= 16
        late_rows += int((versions != train_iter).sum())
        before = train_iter
        rows = torch.cat([rollout["obs"], rollout["episode_id"].double()[:, None]], 1)
        seen.append(rows)
        for episode in rollout["episode_id"].unique():  # advantages need the steps of an episode without a gap
            steps = (rollout["episode_id"] == episode).nonzero()[:, 0]
            assert torch.equal(rollout["next_obs"][steps[:-1]], rollout["obs"][steps[1:]])
    assert len(torch.cat(seen).unique(dim=0)) == sum(map(len, seen))  # each transition is learned from once
    assert late_rows == 0 or late == "use"
    assert coordinator.run.env_step() == coordinator.status()["sample"]
    assert (coordinator.status()["too_old"] > 0) or late == "use"


def test_a_finished_run_continues_with_a_larger_limit(tmp_path: Path) -> None:
    cfg, versions = config(tmp_path / "run", policy_of("ppo"), max_train_iter=8), []
    cfg["system"]["learner"]["trainer"] = {"accelerator": "cpu", "logger": False}
    for limit in (8, 16):
        cfg["main"]["max_train_iter"] = limit
        with coordinating(cfg, resume=limit > 8) as (coordinator, start):
            start(Learner)
            start(CommCollector)
        versions.append(coordinator.run.results.train_iter)
        counts = coordinator.status()
    assert versions == [8, 16]
    assert counts["sample"] >= 4 * 32
