from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import namespace_of
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.ray.worker_set import why_ended
from lightning_ding.distributed.ray.workers import WorkerActor
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY


def tiny(folder: Path, **system: Any) -> dict[str, Any]:
    """Return the config of a run that ends within seconds."""
    policy = {
        "type": "dqn",
        "random_collect_size": 16,
        "model": {"encoder_hidden_size_list": [16], "dueling": False},
        "learn": {"update_per_collect": 2, "batch_size": 8},
        "collect": {"n_sample": 16},
        "eval": {"evaluator": {"n_episode": 2, "eval_freq": 20}},
        "other": {"replay_buffer": {"replay_buffer_size": 500}},
    }
    env = {"env_id": "CartPole-v1", "collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2}
    main = {"exp_name": str(folder), "policy": policy, "env": env, "max_train_iter": 40}
    coordinator = {"lease": 5.0, "commander": {"collector_task_space": 1, "eval_interval": None}}
    return {
        "main": main,
        "system": {"transport": "ray", "coordinator": coordinator, "collector": {"num": 1}, **system},
    }


def test_import_works_without_ray_and_its_users_name_the_extra() -> None:
    code = """
import sys
sys.modules["ray"] = None
import lightning_ding.distributed
from lightning_ding.distributed.ray.channel import RayChannel
from lightning_ding.distributed.ray.pipeline import run_on_ray
from lightning_ding.distributed.ray.store import RayStore
for call in (run_on_ray, RayStore):
    try:
        call()
    except ImportError as error:
        assert str(error) == 'the transport "ray" needs Ray: pip install lightning_ding[ray]', error
    else:
        raise AssertionError(call)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_workers_are_registered_by_the_name_of_the_transport() -> None:
    assert COMM_LEARNER_REGISTRY.get("ray").__name__ == "RayLearner"
    assert COMM_COLLECTOR_REGISTRY.get("ray").__name__ == "RayCollector"


def test_runs_of_two_folders_have_two_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert namespace_of("a") == namespace_of(str(tmp_path / "a"))
    assert namespace_of("a") != namespace_of("b")


def test_folder_that_does_not_take_the_run_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_text("{}")

    with pytest.raises(ValueError, match="contains a finished run: choose another folder"):
        run_on_ray(tiny(tmp_path / "old"))
    with pytest.raises(ValueError, match="contains no run to resume"):
        run_on_ray(tiny(tmp_path / "new"), resume=True)

    assert [file.relative_to(tmp_path) for file in tmp_path.rglob("*")] == [Path("old"), Path("old/result.json")]


def test_worker_that_cannot_be_made_says_why_and_is_not_started_again(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise ValueError("system.learner.trainer is wrong")

    monkeypatch.setattr("lightning_ding.distributed.comm_worker.learner.CommLearner", refuse)
    answer = WorkerActor(resolve(ParallelConfig, tiny(tmp_path)), "learner").run()

    with pytest.raises(ValueError, match=r"^system\.learner\.trainer is wrong$"):
        why_ended(ray.put(answer))


@pytest.mark.slow
def test_mistake_that_the_coordinator_finds_in_the_config_comes_out_as_it_is(ray: Any, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    config["main"]["policy"] = {"type": "bc"}

    with pytest.raises(ValueError, match=r"^main\.policy must be one of a2c, .* got 'bc'$"):
        run_on_ray(config)


@pytest.mark.slow
def test_run_for_which_there_is_no_gpu_ends_and_says_so(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"Ray has not started learner 0 in \d+ s, .* 1 GPU \(0 of 0 free\)$"):
        run_on_ray(tiny(tmp_path, learner={"trainer": {"accelerator": "gpu"}}, reconnect_timeout=40.0))


@pytest.mark.slow
def test_run_on_ray_ends_with_a_result_and_leaves_no_actor(ray: Any, tmp_path: Path) -> None:
    result = run_on_ray(tiny(tmp_path))

    assert result["train_iter"] >= 40
    assert result["env_step"] >= 16
    assert json.loads((tmp_path / "result.json").read_text()) == result
    assert json.loads((tmp_path / "config.json").read_text())["main"]["max_train_iter"] == 40
    assert list(tmp_path.glob("data/*/*")) == []
    for name in ("coordinator", "learner 0", "collector 1"):
        with pytest.raises(ValueError, match=name):
            ray.get_actor(name, namespace_of(str(tmp_path)))
    assert ray.is_initialized()  # it was so before
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"contains a (finished run of|run: --resume continues it)"):
            run_on_ray(tiny(tmp_path), resume)
    assert json.loads((tmp_path / "result.json").read_text()) == result
    more = tiny(tmp_path)
    more["main"]["max_train_iter"] = 60
    continued = run_on_ray(more, resume=True)
    assert continued["train_iter"] >= 60
    assert continued["env_step"] > result["env_step"]


@pytest.mark.slow
def test_run_that_cannot_work_ends_with_the_reason(ray: Any, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    config["main"]["env"]["env_id"] = "NoSuchEnv-v0"
    config["system"]["coordinator"]["max_failures"] = 2

    with pytest.raises(RuntimeError, match=r"(?s)the run was given up: .*NoSuchEnv"):
        run_on_ray(resolve(ParallelConfig, config))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_continues_when_each_of_its_actors_is_killed(ray: Any, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    config["main"]["max_train_iter"] = None
    namespace = namespace_of(str(tmp_path))
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_on_ray, config)
        channel = RayChannel(namespace, reconnect_timeout=120.0)
        for name in ("collector 1", "coordinator", "learner 0"):
            before = _status_when(channel, lambda status: status["train_iter"] > 0 and status["sample"] > 0)
            ray.kill(ray.get_actor(name, namespace), no_restart=False)
            after = _status_when(channel, partial(_has_moved_on, before))
            assert after["sample"] >= before["sample"]  # nothing that was acknowledged is lost
        channel.call("shutdown")
        result = running.result(timeout=120.0)

    assert result["error"] is None
    assert result["env_step"] >= after["env_step"]


def _has_moved_on(before: dict[str, Any], status: dict[str, Any]) -> bool:
    return bool(status["sample"] > before["sample"] + 32 and status["train_iter"] > before["train_iter"] + 4)


def _status_when(channel: RayChannel, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 180.0
    while time.monotonic() < deadline:
        status = channel.call("status")
        if is_so(status):
            return status
        time.sleep(0.2)
    raise AssertionError(f"three minutes have brought the run only to {status}")
