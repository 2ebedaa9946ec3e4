"""The workers over HTTP take DI-engine's configs, and a whole run in its format works."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from easydict import EasyDict

import lightning_ding.worker
from lightning_ding.di_engine.parallel_config import compile_run, is_ding_run
from lightning_ding.distributed import Coordinator, create_parallel_commander, get_parallel_commander_cls
from lightning_ding.distributed.config import read_run, resolve_policy
from lightning_ding.entry import parallel, parallel_pipeline, roles
from lightning_ding.worker import (
    BaseCommCollector,
    FlaskFileSystemCollector,
    FlaskFileSystemLearner,
    create_comm_collector,
    create_comm_learner,
)

POLICY: dict[str, Any] = {
    "type": "dqn_command",
    "cuda": False,
    "random_collect_size": 0,
    "nstep": 1,
    "discount_factor": 0.97,
    "model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "dueling": False},
    "learn": {
        "batch_size": 8,
        "update_per_collect": 2,
        "learning_rate": 0.001,
        "learner": {"type": "base", "learner_num": 1, "send_policy_freq": 2, "log_policy": True},
    },
    "collect": {
        "n_sample": 8,
        "collector": {"type": "zergling", "collector_num": 1, "update_policy_second": 0, "compressor": "lz4"},
    },
    "eval": {"evaluator": {"eval_freq": 1000}},
    "other": {
        "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10000},
        "replay_buffer": {"type": "naive", "replay_buffer_size": 500},
        "commander": {"type": "solo", "collector_task_space": 1, "learner_task_space": 1, "eval_interval": 0.2},
    },
}


def compiled(folder: Path, host: str = "127.0.0.1", **main: Any) -> EasyDict:
    """Return what DI-engine's ``compile_config_parallel`` gives for a small run."""
    paths = {"path_data": f"{folder}/data_of_run", "path_policy": f"{folder}/policies"}
    worker = {"type": "flask_fs", "import_names": ["ding.worker"], "host": host, **paths}
    env: dict[str, Any] = {"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs.cartpole_env"]}
    env |= {"collector_env_num": 2, "collector_episode_num": 2, "evaluator_env_num": 2, "evaluator_episode_num": 1}
    env |= {"stop_value": 5, "manager": {"type": "base"}}
    return EasyDict(
        seed=3,
        main={"exp_name": str(folder), "env": env, "policy": POLICY, **main},
        system={
            "coordinator": {
                "host": host,
                "port": 0,
                "collector_task_timeout": 20,
                "learner_task_timeout": 300,
                "operator_server": {},
                "learner": {"learner0": ["learner0", host, 22271]},
                "collector": {"collector0": ["collector0", host, 22272]},
            },
            "learner0": {**worker, "port": 22271, "multi_gpu": False, "gpu_num": 1, "aggregator": False},
            "collector0": {**worker, "port": 22272},
        },
    )


def test_config_of_the_reference_becomes_one_of_this_project(tmp_path: Path) -> None:
    cfg = compiled(tmp_path)
    assert is_ding_run(cfg)
    found = read_run(cfg)
    assert (found.main.exp_name, found.main.seed, found.main.env.env_id) == (str(tmp_path), 3, "CartPole-v1")
    assert (found.main.env.n_evaluator_episode, found.main.env.stop_value) == (2, 5)
    assert found.main.policy["type"] == "dqn"
    assert found.system.learner.send_policy_freq == 2
    assert (found.system.learner.validate, found.system.learner.rounds_per_epoch) == (False, 5000)
    policy = resolve_policy(found.main.policy)
    assert (policy.learn.batch_size, policy.learn.update_per_collect, policy.discount_factor) == (8, 2, 0.97)
    assert list(policy.model.encoder_hidden_size_list) == [16]
    assert (found.system.collector.num, found.system.collector.type) == (1, "zergling")
    section = found.system.coordinator
    assert (section.collector_task_timeout, section.learner_task_timeout) == (20, 300)
    assert (section.commander.collector_task_space, section.commander.eval_interval) == (1, 0.2)
    assert found.system.path_data == f"{tmp_path}/data_of_run"
    assert found.system.path_policy == f"{tmp_path}/policies"


def test_config_of_this_project_is_not_taken_for_one_of_the_reference() -> None:
    cfg = {"main": {"env": {"env_id": "CartPole-v1"}}, "system": {"coordinator": {"commander": {"type": "solo"}}}}
    assert not is_ding_run(cfg)
    assert not is_ding_run(None)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("system.coordinator.operator_server", {"system_addr": "di-server:8080"}, "no Kubernetes operator"),
        ("system.learner_aggregator0", {}, "several learners are the ranks of one learner"),
        ("main.policy.learn.learner.learner_num", 2, "several learners are the ranks of one learner"),
        ("system.learner0.path_data", "/elsewhere/data", "the same for all workers"),
        ("main.env.manager.type", "ray", "manager.type"),
        ("main.policy.other.commander.eval_intervall", 5, "did you mean 'eval_interval'"),
    ],
)
def test_what_cannot_work_names_the_replacement(tmp_path: Path, path: str, value: Any, message: str) -> None:
    cfg = compiled(tmp_path)
    *sections, key = path.split(".")
    below: Any = cfg
    for section in sections:
        below = below[section]
    below[key] = value
    with pytest.raises(ValueError, match=message):
        read_run(cfg)


def test_folders_outside_of_the_run_are_refused_because_workers_look_for_the_address_there(tmp_path: Path) -> None:
    cfg = compiled(tmp_path, exp_name=str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"system.path_data must be a folder in main.exp_name .*coordinator's address"):
        read_run(cfg)


def test_a_run_with_the_configs_of_the_reference_ends_when_its_stop_value_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cfg = compiled(folder)
    coordinator = Coordinator(cfg)
    learner, collector = create_comm_learner(cfg.system.learner0), create_comm_collector(cfg.system.collector0)
    assert type(learner) is FlaskFileSystemLearner
    assert type(collector) is FlaskFileSystemCollector
    learner.start()
    collector.start()
    coordinator.start()
    deadline = time.monotonic() + 120
    while not coordinator.system_shutdown_flag:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    coordinator.close()
    learner.close()
    collector.close()
    assert coordinator.failure is None
    assert (folder / "result.json").exists()
    assert (folder / "policies").is_dir()
    assert (folder / "data_of_run").is_dir()
    assert not (folder / "data").exists()


@pytest.mark.parametrize("kind", [FlaskFileSystemLearner, FlaskFileSystemCollector])
def test_worker_takes_host_port_and_folders_and_says_that_nothing_listens(
    tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cfg = {"host": "0.0.0.0", "port": 22271, "path_data": f"{tmp_path}/data", "path_policy": f"{tmp_path}/policy"}
    worker = kind(EasyDict(cfg, multi_gpu=False))
    assert worker.config.main.exp_name == str(tmp_path)
    assert worker.starts_in_background
    assert [record for record in caplog.messages if "nothing listens at 0.0.0.0:22271" in record]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"prot": 1}, ValueError, "unknown config key 'prot' of a worker; did you mean 'port'"),
        ({"port": -1}, ValueError, "port must be in"),
        ({"host": 5}, TypeError, "host must be a str"),
        ({"aggregator": True}, ValueError, "several learners are the ranks of one learner"),
        ({"path_policy": "/elsewhere/policy"}, ValueError, "two folders in the folder of the run"),
        ({"path_data": None, "path_policy": None}, ValueError, "path_data must be a folder in the folder of the run"),
    ],
)
def test_wrong_config_of_a_worker_raises_an_error_that_names_the_key(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    cfg = {"path_data": f"{tmp_path}/data", "path_policy": f"{tmp_path}/policy", **changed}
    with pytest.raises(error, match=message):
        FlaskFileSystemLearner(cfg)


def test_config_of_a_users_class_may_have_its_own_keys() -> None:
    class Own(BaseCommCollector):  # type: ignore[misc] # found when it is used
        pass

    worker = Own(EasyDict(broker="tcp://somewhere", multi_gpu=False), channel=object())
    assert worker._cfg.broker == "tcp://somewhere"


def test_multi_gpu_of_a_workers_config_reaches_the_trainer(tmp_path: Path) -> None:
    worker = FlaskFileSystemLearner({"path_data": f"{tmp_path}/data", "multi_gpu": True, "gpu_num": 2})
    learner = worker.config.system.learner
    assert learner.multi_gpu
    assert learner.trainer == {"accelerator": "gpu", "devices": 2}


def test_commander_is_created_from_the_main_config_of_the_reference(tmp_path: Path) -> None:
    main = compiled(tmp_path).main
    commander = create_parallel_commander(main)
    assert type(commander).__name__ == "SoloParallelCommander"
    assert get_parallel_commander_cls(main.policy.other.commander) is type(commander)
    assert commander.get_collector_task() is None  # there is no learner yet
    task = commander.get_learner_task()
    assert task is not None
    assert {"task_id", "policy_id", "buffer_id", "learner_cfg", "replay_buffer_cfg", "policy"} <= task.keys()
    collecting = commander.get_collector_task()
    assert collecting is not None
    assert collecting["buffer_id"] == task["buffer_id"]
    assert collecting["collector_cfg"]["collect_setting"]["eps"] == pytest.approx(0.95)


def test_names_of_distributed_workers_are_importable_from_the_package_of_workers() -> None:
    from lightning_ding import distributed

    for name in lightning_ding.worker._DISTRIBUTED:
        assert getattr(lightning_ding.worker, name) is getattr(distributed, name)
        assert name in dir(lightning_ding.worker)
    with pytest.raises(AttributeError, match="has no attribute 'FlaskFileSystemColector'"):
        _ = lightning_ding.worker.FlaskFileSystemColector


def three_configs(folder: Path) -> tuple[EasyDict, EasyDict, EasyDict]:
    """Return the configs of a distributed run as a user of DI-engine writes them."""
    env = {"collector_env_num": 2, "evaluator_env_num": 2, "evaluator_episode_num": 1, "stop_value": 5}
    policy = {key: value for key, value in POLICY.items() if key != "type"}
    main = EasyDict(exp_name=str(folder), env=env, policy=policy)
    create = EasyDict(
        env={"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs.cartpole_env"]},
        env_manager={"type": "base"},
        policy={"type": "dqn_command"},
        learner={"type": "base", "import_names": ["ding.worker.learner.base_learner"]},
        collector={"type": "zergling", "import_names": ["ding.worker.collector.zergling_parallel_collector"]},
        commander={"type": "solo", "import_names": ["ding.worker.coordinator.solo_parallel_commander"]},
        comm_learner={"type": "flask_fs", "import_names": ["ding.worker.learner.comm.flask_fs_learner"]},
        comm_collector={"type": "own_collector", "import_names": ["tests.distributed.comm_worker.own_workers"]},
    )
    system = EasyDict(
        coordinator={},
        path_data=f"{folder}/data",
        path_policy=f"{folder}/policy",
        communication_mode="auto",
        learner_gpu_num=1,
    )
    return main, create, system


def test_three_configs_of_the_reference_are_compiled(tmp_path: Path) -> None:
    found = read_run(compile_run(*three_configs(tmp_path), seed=4))
    assert (found.main.seed, found.main.env.env_id, found.main.policy["type"]) == (4, "CartPole-v1", "dqn")
    assert (found.system.comm_learner, found.system.comm_collector) == (None, "own_collector")
    assert found.system.import_names == ("tests.distributed.comm_worker.own_workers",)
    assert found.system.coordinator.commander.eval_interval == 0.2
    assert found.system.path_policy == f"{tmp_path}/policy"


def test_pipeline_takes_three_configs_and_the_seed_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def supervisor(*arguments: Any) -> Supervisor:
        seen.append(arguments)
        return Supervisor()

    monkeypatch.setattr(parallel, "RunSupervisor", supervisor)
    parallel_pipeline(three_configs(tmp_path), 7)
    ((cfg, resume),) = seen
    assert (cfg.main.seed, resume) == (7, False)
    with pytest.raises(ValueError, match="cfg must be three configs"):
        parallel_pipeline(three_configs(tmp_path)[:2], 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be None with one config"):
        parallel_pipeline({}, seed=7)
    with pytest.raises(ValueError, match="resume must be a bool"):
        parallel_pipeline({}, 7)


class Supervisor:
    """Runs nothing."""

    def run(self) -> dict[str, Any]:
        return {}


def test_pipeline_takes_the_path_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def supervisor(cfg: Any, resume: bool) -> Supervisor:
        seen.append(cfg)
        return Supervisor()

    monkeypatch.setattr(parallel, "RunSupervisor", supervisor)
    names = ("main_config", "create_config", "system_config")
    file = tmp_path / "parallel_config.py"
    text = [f"{name} = {one!r}" for name, one in zip(names, three_configs(tmp_path), strict=True)]
    file.write_text("\n".join(text))
    for path in (file, str(file)):
        parallel_pipeline(path, 7)
    parallel_pipeline(three_configs(tmp_path), 7)
    assert seen[0] == seen[1] == seen[2]
    file.write_text(text[0])
    with pytest.raises(ValueError, match="must define main_config and create_config and system_config, but has no cr"):
        parallel_pipeline(file)
    with pytest.raises(ValueError, match="must be a Python file with main_config and create_config and system_config"):
        parallel_pipeline("missing.py")
    yaml_file = tmp_path / "run.yaml"
    yaml_file.write_text(f"main: {{seed: 4, exp_name: {tmp_path}}}")
    parallel_pipeline(yaml_file)
    assert seen[3].main.seed == 4


def test_process_of_a_worker_has_the_class_that_the_config_names(tmp_path: Path) -> None:
    cfg = read_run(compile_run(*three_configs(tmp_path), seed=4))
    worker = roles._make_worker("collector", cfg, {})
    assert type(worker).__name__ == "RegisteredCollector"
    assert type(roles._make_worker("learner", cfg, {})).__name__ == "CommLearner"
    wrong = dataclasses.replace(cfg, system=dataclasses.replace(cfg.system, comm_learner="own_leaner"))
    with pytest.raises(KeyError, match="no comm learner is registered as 'own_leaner'"):
        roles._make_worker("learner", wrong, {})
