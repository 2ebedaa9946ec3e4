"""What code written for DI-engine's parallel collectors relies on."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from easydict import EasyDict

from lightning_ding.di_engine.collector_forms import takes
from lightning_ding.di_engine.parallel_config import task_of
from lightning_ding.distributed import (
    BaseCommCollector,
    BaseParallelCollector,
    NaiveCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
)
from lightning_ding.policy import create_policy
from tests.distributed.weight_policy import ENV, POLICY

DQN: dict[str, Any] = {
    "type": "dqn_command",
    "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "dueling": False},
    "collect": {"n_sample": 6, "collector": {"collector_num": 1}},
    "other": {"replay_buffer": {"replay_buffer_size": 100}, "commander": {"type": "solo"}},
}


def collector_cfg(**changes: Any) -> EasyDict:
    """Return a ``collector_cfg`` as DI-engine's commander makes it."""
    env = {"type": "cartpole", "collector_env_num": 2, "evaluator_env_num": 2, "manager": {"type": "base"}}
    cfg = {"type": "zergling", "print_freq": 5, "compressor": "lz4", "update_policy_second": 0, "exp_name": "run"}
    cfg |= {"env": env, "policy": DQN, "collect_setting": {"eps": 0.5}, "eval_flag": False}
    return EasyDict({**cfg, "policy_update_path": "policy_1", **changes})


class Broker:
    """Functions in DI-engine's form, which close the collector after a number of transitions."""

    def __init__(self, stop_at: int = 20) -> None:
        self.stop_at = stop_at
        self.data: dict[str, Any] = {}
        self.metadata: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.collector: Any = None
        policy = create_policy(task_of(collector_cfg(), has_own_keys=False)["policy"])
        self.weights = policy.collect_mode.state_dict()["model"]

    def get_policy_update_info(self, path: str) -> dict[str, Any] | None:
        self.paths.append(path)
        if len(self.paths) == 1:
            raise FileNotFoundError(path)  # the learner has not written it yet
        return {"model": self.weights, "iter": len(self.paths)}

    def send_stepdata(self, path: str, stepdata: Any) -> str:
        self.data[path] = stepdata
        return f"reference of {path}"

    def send_metadata(self, metadata: dict[str, Any]) -> None:
        self.metadata.append(metadata)
        if len(self.data) >= self.stop_at:
            self.collector.close()

    def attach(self, collector: Any) -> Any:
        self.collector = collector
        for name in ("get_policy_update_info", "send_stepdata", "send_metadata"):
            setattr(collector, name, getattr(self, name))
        return collector


def test_collector_is_created_from_the_config_alone_and_gets_its_functions_as_attributes() -> None:
    broker = Broker()
    collector = broker.attach(create_parallel_collector(collector_cfg()))
    assert type(collector) is ZerglingParallelCollector is get_parallel_collector_cls(collector_cfg())
    collector.start()
    assert len(broker.data) >= 20
    about = [one for one in broker.metadata if "data_id" in one]
    assert [one["data_id"] for one in about] == list(broker.data)
    assert all(one["object_ref"] == f"reference of {one['data_id']}" for one in about)
    assert about[0]["policy_iter"] == 3  # after the first message, which has no data
    assert about[-1]["policy_iter"] > 3  # newer weights were fetched during the task
    assert set(broker.paths) == {"policy_1"}
    assert {one["env_id"] for one in about} == {0, 1}
    finished = collector.get_finish_info()
    assert finished["sample_count"] == len(broker.data)
    assert {"real_episode_count", "step_count", "reward_mean", "reward_raw", "train_iter"} <= finished.keys()


def test_policy_and_env_manager_are_attributes_after_the_start() -> None:
    broker = Broker()
    collector = broker.attach(create_parallel_collector(collector_cfg()))
    assert collector.policy is collector.env_manager is None
    collector.start()
    assert callable(getattr(collector.policy, "forward", None))
    assert getattr(collector.env_manager, "num_envs", None) == 2


def test_evaluating_task_of_the_reference_runs_its_episodes() -> None:
    broker = Broker()
    cfg = collector_cfg(eval_flag=True)
    cfg.env.manager.episode_num = 2
    collector = broker.attach(create_parallel_collector(cfg))
    collector.start()
    finished = collector.get_finish_info()
    assert (finished["eval_flag"], finished["real_episode_count"]) == (True, 4)
    assert broker.data == {}


def test_start_without_the_functions_names_them() -> None:
    with pytest.raises(RuntimeError, match="needs get_policy_update_info, send_stepdata and send_metadata"):
        create_parallel_collector(collector_cfg()).start()


def test_functions_that_return_an_answer_keep_working() -> None:
    sent: list[Any] = []
    cfg = {"policy": POLICY, "env": {"env_id": ENV}, "n_sample": 4}

    def send_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
        sent.append(metadata["data_id"])
        setting = {"close": len(sent) > 2, "policy": {}, "collect_setting": {}, "random": False}
        return {"accepted": True, "wait": 0.0, **setting}

    def get_policy_update_info(path: str, serial: int) -> Any:
        model = {"first": torch.ones(1), "second": torch.ones(1)}
        return {"model": model, "iter": 1, "serial": 1}

    ZerglingParallelCollector(cfg, get_policy_update_info, lambda data: len(data["action"]), send_metadata).start()
    assert sent == [None, 4, 4]


@pytest.mark.parametrize(
    ("function", "count", "expected"),
    [(lambda a: a, 1, True), (lambda a: a, 2, False), (lambda *a: a, 2, True), (lambda a, b=1: a, 1, True)],
)
def test_forms_of_functions_are_told_apart_by_their_arguments(function: Any, count: int, expected: bool) -> None:
    assert takes(function, count) is expected


class Counting(BaseParallelCollector):
    """A collector as DI-engine's documentation describes its base class."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.steps: list[Any] = []
        self.policy = lambda obs: {key: value + 1 for key, value in obs.items()}
        self.env_manager = SimpleNamespace(ready_obs={0: 1, 1: 2}, done=False)

    def get_finish_info(self) -> dict[str, Any]:
        return {"step_count": len(self.steps)}

    def __repr__(self) -> str:
        return "Counting"

    def _policy_inference(self, obs: Any) -> Any:
        return self.policy(obs)

    def _env_step(self, action: Any) -> Any:
        return action

    def _process_timestep(self, timestep: Any) -> None:
        self.steps.append(timestep)
        self.env_manager.done = len(self.steps) == self._cfg.limit

    def _update_policy(self) -> None:
        self.steps.append("updated")


def test_subclass_with_the_methods_of_the_reference_steps_until_its_envs_are_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    collector = Counting(EasyDict(eval_flag=False, exp_name="run", print_freq=5, limit=4))
    collector.start()
    assert collector.steps == ["updated", *[{0: 2, 1: 3}] * 3]
    collector.info("one")
    collector.debug("two")
    collector.error("three")
    assert [record.levelname for record in caplog.records if "COLLECTOR(Counting)" in record.message] == [
        *("INFO", "DEBUG", "ERROR")
    ]
    collector.close()


def test_subclass_that_misses_a_method_names_it() -> None:
    class Empty(BaseParallelCollector):
        pass

    collector = Empty({}, *[lambda *_: None] * 3)
    with pytest.raises(NotImplementedError, match="Empty must implement _setup"):
        collector.start()


def test_comm_collector_creates_the_collector_of_a_task_with_its_three_functions() -> None:
    comm = BaseCommCollector(None, channel=object())
    collector = comm._create_collector({"collector_cfg": collector_cfg()})
    assert isinstance(collector, ZerglingParallelCollector)
    assert collector.send_metadata == comm.send_metadata
    assert collector.send_stepdata == comm.send_stepdata
    assert collector.get_policy_update_info == comm.get_policy_update_info


def test_naive_collector_takes_host_port_and_prefix() -> None:
    collector = NaiveCollector("127.0.0.1", 22271, prefix="run")
    assert collector.config.main.exp_name == "run"
    assert collector._address == ("127.0.0.1", 22271)


def test_default_config_of_a_collector_is_an_easydict() -> None:
    assert ZerglingParallelCollector.default_config().cfg_type == "ZerglingParallelCollectorDict"
