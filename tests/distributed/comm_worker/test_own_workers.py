"""Subclasses of the comm workers that have exactly DI-engine's methods work with the coordinator."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from easydict import EasyDict

from lightning_ding.di_engine.comm_learner import BaseCommLearner
from lightning_ding.di_engine.comm_workers import BaseCommCollector
from lightning_ding.di_engine.parallel_forms import BatchSource
from lightning_ding.distributed import Coordinator
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.worker import BaseLearner, LearnerHook
from tests.distributed.comm_worker.own_workers import Exchange, HookedLearner, OwnCollector, OwnLearner

POLICY: dict[str, Any] = {
    "type": "dqn",
    "random_collect_size": 8,
    "nstep": 1,
    "model": {"encoder_hidden_size_list": [16], "dueling": False},
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 1000}},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}


def config(folder: Path, **main: Any) -> dict[str, Any]:
    env = {"env_id": "CartPole-v1", "collector_env_num": 2, "evaluator_env_num": 1, "n_evaluator_episode": 2}
    learner = {"validate": False, "trainer": {"accelerator": "cpu", "logger": False}}
    coordinator = {"commander": {"eval_interval": None, "collector_task_space": 1}}
    return {
        "main": {"exp_name": str(folder), "policy": POLICY, "env": env, **main},
        "system": {"coordinator": coordinator, "learner": learner},
    }


class System:
    """A coordinator, and workers of given classes in threads of this process."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        store = MemoryStore()
        self.coordinator = Coordinator(cfg, store)
        self.channel = InProcessChannel(self.coordinator.handle, store)

    def run(self, learner: Any, collector: Any) -> None:
        """Start both as DI-engine does, wait until the run is over, and close everything."""
        self.coordinator.start()
        began = time.monotonic()
        learner.start()
        collector.start()
        assert time.monotonic() - began < 5  # both return at once
        assert self.coordinator.wait(90)
        learner.close()
        collector.close()
        self.coordinator.close()

    @property
    def status(self) -> dict[str, Any]:
        return self.coordinator.status()


def own(kind: Any, exchange: Exchange) -> Any:
    return type(kind.__name__, (kind,), {"exchange": exchange, "__module__": __name__})


@pytest.mark.parametrize("learner_class", [OwnLearner, HookedLearner])
def test_workers_with_exactly_the_methods_of_the_reference_learn_until_the_run_is_over(
    tmp_path: Path, learner_class: Any
) -> None:
    exchange, system = Exchange(), System(config(tmp_path, max_train_iter=20))
    collector = own(OwnCollector, exchange)(EasyDict(broker="tcp://somewhere"), system.channel)
    learner = own(learner_class, exchange)(EasyDict(multi_gpu=False), system.channel)
    system.run(learner, collector)
    assert system.coordinator.failure is None
    assert exchange.life[:2] == ["learner started", "collector started"]
    assert {"learner closed", "collector closed"} <= set(exchange.life)
    assert collector.uid_at_first == collector.collector_uid
    assert system.status["train_iter"] == 20
    assert system.status["env_step"] >= 8
    (path,) = set(exchange.asked)
    assert exchange.policies[path]["iter"] == 20


def test_metadata_and_infos_have_the_entries_of_the_reference(tmp_path: Path) -> None:
    exchange, system = Exchange(), System(config(tmp_path, max_train_iter=20))
    cfg = EasyDict(multi_gpu=False)
    system.run(own(OwnLearner, exchange)(cfg, system.channel), own(OwnCollector, exchange)(cfg, system.channel))
    names = {"eval_flag", "data_id", "env_id", "policy_iter", "unroll_len", "compressor", "get_data_time", "priority"}
    names |= {"cur_episode", "cur_sample", "cur_step"}
    assert all(names == set(one) for one in exchange.metadata)
    assert len({one["data_id"] for one in exchange.metadata}) == len(exchange.metadata)
    sample = exchange.data[exchange.metadata[0]["data_id"]]
    assert {"obs", "action", "reward", "next_obs", "done"} <= sample.keys()
    assert sample["obs"].shape == (4,)
    assert {"collector_done", "cur_episode", "cur_sample", "cur_step"} <= exchange.records[0].keys()
    steps = [info["learner_step"] for info in exchange.infos]
    assert steps[-1] == 20
    assert steps == sorted(steps)
    assert [info["learner_done"] for info in exchange.infos] == [False] * (len(steps) - 1) + [True]
    assert all(info["priority_info"] == {} for info in exchange.infos)


def test_random_collecting_ends_although_the_coordinator_does_not_get_the_transitions(tmp_path: Path) -> None:
    exchange, system = Exchange(), System(config(tmp_path, max_train_iter=20))
    cfg = EasyDict(multi_gpu=False)
    system.run(own(OwnLearner, exchange)(cfg, system.channel), own(OwnCollector, exchange)(cfg, system.channel))
    (replay,) = system.coordinator.run.replays.values()
    assert replay.counts.sample == len(exchange.data) >= 8
    assert replay.buffer.count() == 0


class ForwardingCollector(BaseCommCollector):
    """Passes everything on to the base class, and returns nothing, as the annotations of the reference say."""

    calls: list[str]

    def get_policy_update_info(self, path: str) -> Any:  # type: ignore[override]
        self.calls.append("weights")
        return super().get_policy_update_info(path)

    def send_metadata(self, metadata: Any) -> None:  # type: ignore[override]
        self.calls.append("metadata")
        super().send_metadata(metadata)

    def send_stepdata(self, path: Any, stepdata: Any) -> None:  # type: ignore[override]
        self.calls.append("stepdata")
        super().send_stepdata(path, stepdata)


class ForwardingLearner(BaseCommLearner):
    calls: list[str]
    sizes: list[Any]

    def get_data(self, batch_size: int) -> list[Any]:
        self.calls.append("data")
        batch = super().get_data(batch_size)
        self.sizes.append((type(batch), len(batch), batch_size))
        return batch

    def send_policy(self, state_dict: Any) -> None:
        self.calls.append("policy")
        super().send_policy(state_dict)

    def send_learn_info(self, learn_info: Any) -> None:
        self.calls.append("info")
        super().send_learn_info(learn_info)


@pytest.mark.parametrize("priority", [False, True])
def test_methods_that_call_those_of_the_base_class_use_the_coordinators_buffer(tmp_path: Path, priority: bool) -> None:
    cfg = config(tmp_path, max_train_iter=20)
    buffer = {"type": "advanced" if priority else "naive", "replay_buffer_size": 500}
    cfg["main"]["policy"] = {**POLICY, "priority": priority, "nstep": 3, "other": {"replay_buffer": buffer}}
    system = System(cfg)
    collector: Any = type("C", (ForwardingCollector,), {"calls": [], "__module__": __name__})(None, system.channel)
    learner: Any = type("L", (ForwardingLearner,), {"calls": [], "sizes": [], "__module__": __name__})
    learner = learner(None, system.channel)
    system.coordinator.start()
    threads = [threading.Thread(target=one.start, daemon=True) for one in (learner, collector)]
    for thread in threads:
        thread.start()
    assert system.coordinator.wait(90)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert set(collector.calls) == {"weights", "metadata", "stepdata"}
    assert set(learner.calls) == {"data", "policy", "info"}
    assert set(learner.sizes) <= {(list, 8, 8), (list, 0, 8)}
    (replay,) = system.coordinator.run.replays.values()
    assert replay.buffer.count() > 0
    assert replay.counts.sample == replay.buffer.count()
    if priority:
        assert len(set(replay.buffer.state_dict()["tensors"]["own/priority"].flatten().tolist())) > 1
    system.coordinator.close()


class Noting(LearnerHook):
    seen: list[Any] = []  # noqa: RUF012

    def __call__(self, engine: Any) -> None:
        self.seen.append((type(engine).__mro__, engine.train_iter, engine.get_data is not None))


def test_created_learner_is_a_base_learner_with_the_three_methods(tmp_path: Path) -> None:
    system = System(config(tmp_path))
    comm = BaseCommLearner(config(tmp_path), system.channel)
    task = system.coordinator.scheduler.commander.get_learner_task()
    assert task is not None
    learner = comm._create_learner(task)
    assert isinstance(learner, BaseLearner)
    assert learner.get_data == comm.get_data
    assert learner.send_policy == comm.send_policy  # type: ignore[attr-defined]
    assert learner.send_learn_info == comm.send_learn_info  # type: ignore[attr-defined]
    assert learner.learn_info == {"learner_step": 0, "priority_info": {}, "learner_done": False}
    hook = Noting("noting", 50, position="after_iter")
    learner.register_hook(hook)
    assert learner.hooks["after_iter"] == [hook]


def sample(number: int) -> dict[str, Any]:
    obs = torch.full((4,), float(number))
    return {"obs": obs, "next_obs": obs + 1, "action": torch.tensor(0), "reward": torch.tensor([1.0]), "done": False}


class ListLearner(BaseCommLearner):
    """Gives batches from memory."""

    def get_data(self, batch_size: int) -> list[Any]:
        return [sample(number) for number in range(batch_size)]

    def send_policy(self, state_dict: Any) -> None:
        self.sent = [*getattr(self, "sent", []), state_dict["iter"]]

    def send_learn_info(self, learn_info: Any) -> None:
        self.infos = [*getattr(self, "infos", []), (learn_info["learner_step"], learn_info["learner_done"])]


def test_created_learner_of_a_task_in_the_form_of_the_reference_trains_on_get_data(tmp_path: Path) -> None:
    comm = ListLearner(EasyDict(multi_gpu=False), channel=object())  # type: ignore[arg-type]
    model = {"obs_shape": 4, "action_shape": 2, **POLICY["model"]}
    learner_cfg = {"type": "base", "train_iterations": 5, "exp_name": str(tmp_path), "hook": {"log_show_after_iter": 2}}
    learner = comm._create_learner({"learner_cfg": EasyDict(learner_cfg), "policy": {**POLICY, "model": model}})
    assert type(learner) is BaseLearner
    for hook in comm._plain_hooks():
        learner.register_hook(hook)
    learner.start(accelerator="cpu")
    assert learner.train_iter == 5
    assert comm.sent == [0, 1, 2, 3, 4, 5]
    assert comm.infos == [*((step, False) for step in range(1, 6)), (5, True)]
    assert (tmp_path / "ckpt" / "iteration_5.pth.tar").exists()


def test_batch_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    class Short(ListLearner):
        def get_data(self, batch_size: int) -> list[Any]:
            return super().get_data(batch_size - 1)

    cfg = config(tmp_path)
    cfg["system"]["coordinator"]["max_failures"] = 1
    system = System(cfg)
    system.coordinator.start()
    comm = Short(None, system.channel)
    worker = threading.Thread(target=comm.start, daemon=True)
    worker.start()
    worker.join(60)
    assert "get_data must return 8 transitions, got 7" in str(system.coordinator.failure)
    system.coordinator.close()


class NStepLearner(ListLearner):
    """Gives transitions with the rewards of three steps, as DI-engine's collectors do."""

    def get_data(self, batch_size: int) -> list[Any]:
        rewards = {"reward": torch.tensor([1.0, 1.0, 0.0]), "value_gamma": torch.tensor(0.5)}
        return [{**one, **rewards} for one in super().get_data(batch_size)]


def test_own_data_need_returns_of_the_policys_steps(tmp_path: Path) -> None:
    model = {"obs_shape": 4, "action_shape": 2, **POLICY["model"]}
    task = {
        "learner_cfg": {"type": "base", "train_iterations": 2, "exp_name": str(tmp_path)},
        "policy": {**POLICY, "nstep": 3, "model": model},
    }
    learner = NStepLearner(EasyDict(multi_gpu=False), channel=object())._create_learner(task)  # type: ignore[arg-type]
    learner.start(accelerator="cpu")
    assert learner.train_iter == 2
    learner = ListLearner(EasyDict(multi_gpu=False), channel=object())._create_learner(task)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be returns of nstep = 3 steps: .*; or set nstep to 1, got 'rewards of"):
        learner.start(accelerator="cpu")


def test_own_data_of_one_step_end_a_run_with_returns_of_several() -> None:
    steps = {"n_step": 3, "discount_factor": 0.5}
    single = BatchSource(lambda size: [sample(number) for number in range(size)])
    with pytest.raises(ValueError, match="returns of nstep = 3 steps"):
        single.get_data(4, 1, 0, steps, 0)
    assert single.get_data(4, 1, 0, {**steps, "n_step": 1}, 0).data is not None
    rewards = {"reward": torch.tensor([1.0, 1.0, 1.0])}
    data = BatchSource(lambda size: [{**sample(0), **rewards}] * size).get_data(4, 1, 0, steps, 0).data
    assert data is not None
    assert data["reward"][0].tolist() == [1.75] * 4
    assert data["discount"][0].tolist() == [0.125] * 4


def test_data_outside_of_a_task_are_refused() -> None:
    with pytest.raises(RuntimeError, match="has no task"):
        BaseCommLearner(None, channel=object()).get_data(4)  # type: ignore[arg-type]


def test_collector_uid_exists_from_construction_and_is_the_id_of_the_worker() -> None:
    one, other = (BaseCommCollector(None, channel=object()) for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(one.collector_uid, str)
    assert one.collector_uid != other.collector_uid
