"""A finished run keeps what a start with larger limits continues from."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.config import deep_merge, resolve
from lightning_ding.distributed import ParallelConfig
from lightning_ding.distributed.coordinator import resume
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.database import Database
from lightning_ding.distributed.coordinator.publications import PublishedWeights
from lightning_ding.distributed.coordinator.resume import check_end, record_of_end
from lightning_ding.distributed.in_process import MemoryStore
from tests.distributed.coordinator.coordinating import POLICY, Run, Worker, both, config, transitions


@pytest.fixture(autouse=True)
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each learner a checkpoint, because the workers here are scripted."""
    monkeypatch.setattr(resume, "last_checkpoint", lambda folder: folder / "run.ckpt")


def finish(run: Run, learner: Worker, *collectors: Worker, train_iter: int = 6) -> None:
    """Let all workers end their tasks, and close the coordinator."""
    for collector in collectors:
        collector.call("collector_close_task", info={"collector_done": True})
    learner.call("learner_close_task", info={"learner_step": train_iter, "learner_done": True, "results": {}})
    run.coordinator.close()


def finished(folder: Path, main: Any = None, **coordinator: Any) -> Run:
    """Return a run of 8 env steps and 6 updates that has reached its limit."""
    run = Run(config(folder / "run", main={"max_env_step": 8, **(main or {})}, **coordinator))
    learner, collector = both(run)
    learner.publish(2)
    for first in (0, 4):
        collector.send(transitions(first=first), returns=[1.0], lengths=[4])
        learner.get()
    learner.publish(6)
    finish(run, learner, collector)
    return run


def again(run: Run, **main: Any) -> None:
    """Start the coordinator of a finished run with other limits and an empty store, as another process would."""
    run.cfg = deep_merge(run.cfg, {"main": main})
    run.store = MemoryStore()
    run.restart()


def files_of(run: Run) -> list[str]:
    """Return the files of the coordinator, without the random ids of buffers and attempts."""
    folder = Path(run.cfg["main"]["exp_name"], "coordinator")
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def test_buffer_counts_ratio_and_versions_continue_with_new_tasks_and_another_end(tmp_path: Path) -> None:
    run = finished(tmp_path)
    before = (vars(run.counts) | {"next_seq": {}}, run.rows(), run.replay.ratio.state_dict())
    assert json.loads((tmp_path / "run/result.json").read_text())["env_step"] == 8
    again(run, max_env_step=16)
    assert (vars(run.counts), run.rows(), run.replay.ratio.state_dict()) == before
    assert not (tmp_path / "run/result.json").exists()

    learner, collector = both(run)
    assert learner.info()["resume"] is True
    assert learner.info()["main"]["max_env_step"] == 16
    answer = collector.send(transitions(first=8), serials={learner.info()["policy_id"]: 1})
    assert (answer["close"], answer["policy"]) == (False, {learner.info()["policy_id"]: 2})
    (handle,) = answer["weights"].values()
    assert run.store.get(handle).tensors["weight"].tolist() == [6.0]
    assert learner.publish(8) == 3
    assert run.coordinator.status()["env_step"] == 12
    assert not run.coordinator.system_shutdown_flag
    collector.send(transitions(first=12))
    assert run.coordinator.system_shutdown_flag
    finish(run, learner, collector, train_iter=12)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["env_step"], result["train_iter"], result["episodes"]) == (16, 12, 2)
    assert run.rows()["reward"] == list(range(16))
    with pytest.raises(ValueError, match=r"of 16 env steps and 12 updates: raise main\.max_env_step, which is 16,"):
        again(run)


def test_finished_run_keeps_one_snapshot_and_the_newest_weights_and_no_block(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", main={"max_env_step": 12}))
    learner, collector = both(run)
    for number in (1, 2, 3):
        learner.publish(number)
        collector.send(transitions(first=4 * number))
        run.coordinator.save()  # the two newest of these snapshots are kept while the run is not finished
    collector.send(transitions(first=16))
    finish(run, learner, collector)
    snapshot = ["buffer.safetensors", "manifest.json", "state.json"]
    assert files_of(run) == sorted([*snapshot, "0.safetensors", "run.db"])


def test_finished_run_whose_coordinator_is_killed_before_its_first_answer_continues_again(tmp_path: Path) -> None:
    run = finished(tmp_path)
    state = tmp_path / "run/coordinator/run.db"
    kept = state.read_bytes()
    again(run, max_env_step=16)
    run.coordinator.run.database.close()
    state.write_bytes(kept)  # it was killed before it had written the state
    run.restart()
    run.restart()
    assert run.coordinator.status()["env_step"] == 8
    _, collector = both(run)
    collector.send(transitions(first=8))
    assert not run.coordinator.system_shutdown_flag


def test_coordinator_that_is_killed_while_its_run_ends_still_ends_it(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions())
    run.coordinator.handle("shutdown", {})
    run.restart()
    assert run.coordinator.system_shutdown_flag
    finish(run, learner, collector)
    again(run)  # no limit has ended it
    assert not run.coordinator.system_shutdown_flag
    assert run.counts.env_step == 4


def test_workers_that_were_lost_at_the_end_leave_no_task(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", main={"max_env_step": 4}))
    _, collector = both(run)
    collector.send(transitions())
    run.coordinator.close()  # before a worker has reported its end
    again(run, max_env_step=16)
    book = run.coordinator.run.scheduler.book
    assert not book.workers
    assert [task.info["resume"] for task in book.waiting("learner")] == [True]
    assert len(book.waiting("collector")) == 2
    assert not any(task.is_closing for task in book.tasks.values())


def test_finished_run_that_keeps_no_data_cannot_continue(tmp_path: Path) -> None:
    run = finished(tmp_path, {"keep_data": False})
    assert not (tmp_path / "run/coordinator").exists()
    before = (tmp_path / "run/result.json").read_text()
    with pytest.raises(ValueError, match=r"a finished run without its data, which main.keep_data=false deletes"):
        again(run, max_env_step=16)
    assert (tmp_path / "run/result.json").read_text() == before


def test_run_continues_with_the_same_policy_only(tmp_path: Path) -> None:
    run = finished(tmp_path)
    before = (tmp_path / "run/result.json").read_text()
    with pytest.raises(ValueError, match=r"main.policy.discount_factor must be 0.99"):
        again(run, max_env_step=16, policy=POLICY | {"discount_factor": 0.5})
    assert (tmp_path / "run/result.json").read_text() == before


def test_disk_that_is_full_at_the_end_loses_neither_result_nor_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(config(tmp_path / "run", main={"max_env_step": 8}))
    learner, collector = both(run)
    learner.publish(6)
    for first in (0, 4):
        collector.send(transitions(first=first))

    def full(file: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.replay.buffer, "save_data", full)
    with caplog.at_level(logging.ERROR):
        finish(run, learner, collector)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the run is finished, but its files take more space than --resume needs: [Errno 28] No space" in line
    assert json.loads((tmp_path / "run/result.json").read_text())["env_step"] == 8
    run.cfg["main"]["max_env_step"] = 16
    run.restart()
    assert run.rows()["reward"] == list(range(8))
    assert not run.coordinator.system_shutdown_flag


def test_packed_weights_that_are_truncated_are_published_again_by_the_learner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished(tmp_path)
    (tmp_path / "run/coordinator/policies/0.safetensors").write_bytes(b"half of it")
    again(run, max_env_step=16)
    assert "are lost: 0.safetensors is truncated" in caplog.text
    learner, _ = both(run)
    learner.publish(6)
    assert run.coordinator.run.weights.newest(learner.info()["policy_id"]).policy_version == 6


def test_weights_of_former_players_are_kept_and_can_be_removed_later(tmp_path: Path) -> None:
    store = MemoryStore()
    database = Database(tmp_path / "run.db")
    weights = PublishedWeights(database, tmp_path / "policies", store)
    for version, snapshot in ((1, None), (2, "main_at_2"), (3, None)):
        handle = store.put("policy", {"weight": torch.tensor([float(version)])}, {"about": f"version {version}"})
        weights.publish("main", version, handle, snapshot)
    weights.pack()
    store = MemoryStore()
    again = PublishedWeights(database, tmp_path / "policies", store)
    again.load(weights.least)
    found = {name: again.newer(name, -1) for name in again.serials()}
    assert {name: (one["serial"], one["policy_version"]) for name, one in found.items()} == {
        "main": (3, 3),
        "main_at_2": (1, 2),
    }
    blocks = {name: store.get(one["handle"]) for name, one in found.items()}
    assert {name: (one.tensors["weight"].item(), one.metadata["about"]) for name, one in blocks.items()} == {
        "main": (3.0, "version 3"),
        "main_at_2": (2.0, "version 2"),
    }
    assert not (tmp_path / "policies").exists()
    again.keep_only({"main"})
    assert (list(again.serials()), len(store)) == (["main"], 1)


@pytest.mark.parametrize("listens", [True, False])
def test_finished_run_without_a_larger_limit_names_it_and_changes_nothing(tmp_path: Path, listens: bool) -> None:
    run = finished(tmp_path)
    folder = tmp_path / "run"
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    reason = "contains a finished run of 8 env steps and 6 updates: raise main.max_env_step, which is 8, to continue it"
    with pytest.raises(ValueError, match=f"^main.exp_name='{folder}' {reason}, or choose another folder$"):
        Coordinator(run.cfg, None if listens else MemoryStore(), resume=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


LEAGUE = {"commander": {"type": "one_vs_one", "league": {"win_rate": 0.6}}}
LEAGUE_OF_08 = {"commander": {"type": "one_vs_one", "league": {"win_rate": 0.8}}}


@pytest.mark.parametrize(
    ("ended_by", "was", "now", "advice"),
    [
        ("max_env_step", {"max_env_step": 100}, {"max_env_step": 120}, "raise main.max_env_step, which is 120,"),
        ("max_env_step", {"max_env_step": 100}, {"max_env_step": 121}, ""),
        ("max_env_step", {"max_env_step": 100}, {}, ""),
        ("learner", {"max_train_iter": 30}, {"max_train_iter": 30}, "raise main.max_train_iter, which is 30,"),
        ("learner", {"max_train_iter": 30, "stop_value": 9.0}, {"max_train_iter": 31, "stop_value": 9.0}, ""),
        ("learner", {"max_train_iter": 30}, {"max_env_step": 100}, "raise main.max_env_step, which is 100,"),
        (
            "learner",
            {"max_train_iter": 30},
            {"max_train_iter": 30, "max_env_step": 120},
            "raise main.max_env_step, which is 120, or raise main.max_train_iter, which is 30,",
        ),
        ("learner", {"stop_value": 9.0}, {"stop_value": 9.0}, "raise main.env.stop_value, which is 9.0,"),
        ("evaluation", {"stop_value": 9.0}, {"stop_value": 8.0}, "raise main.env.stop_value, which is 8.0,"),
        ("evaluation", {"stop_value": 9.0, "max_env_step": 500}, {"stop_value": 9.5}, ""),
        ("evaluation", {"stop_value": 9.0}, {}, ""),
        (
            "learner",
            {"stop_value": 9.0, "monitor": {"eval/length_mean": "min"}},
            {"stop_value": 10.0, "monitor": {"eval/length_mean": "min"}},
            "lower main.env.stop_value, which is 10.0,",
        ),
        (
            "learner",
            {"stop_value": 9.0, "monitor": {"eval/length_mean": "min"}},
            {"stop_value": 8.0, "monitor": {"eval/length_mean": "min"}},
            "",
        ),
        ("learner", {"stop_value": 9.0}, {"stop_value": 9.0, "monitor": "eval/success_rate"}, ""),
        ("evaluation", {"stop_value": 9.0, **LEAGUE}, {"stop_value": 9.0, **LEAGUE_OF_08}, ""),
        (
            "evaluation",
            {"stop_value": 9.0, **LEAGUE},
            {"stop_value": 9.0, **LEAGUE},
            "raise main.env.stop_value, which is 9.0, "
            "or raise system.coordinator.commander.league.win_rate, which is 0.6,",
        ),
        (
            "learner",
            {"trainer": {"max_epochs": 3, "max_time": "00:01:00:00"}},
            {"trainer": {"max_epochs": 3, "max_time": "00:01:00:00"}},
            "raise system.learner.trainer.max_epochs, which is 3, "
            "or change system.learner.trainer.max_time, which is 00:01:00:00,",
        ),
        ("learner", {"trainer": {"max_epochs": 3}}, {"trainer": {"max_epochs": -1}}, ""),
        ("learner", {"trainer": {"max_time": "00:01:00:00"}}, {"trainer": {"max_time": "00:02:00:00"}}, ""),
        ("learner", {}, {}, ""),
        ("shutdown", {"max_env_step": 500, "stop_value": 9.0}, {"max_env_step": 500, "stop_value": 9.0}, ""),
    ],
)
def test_limit_that_would_end_a_run_of_120_env_steps_and_30_updates_again_is_named(
    ended_by: str, was: dict[str, Any], now: dict[str, Any], advice: str
) -> None:
    end = record_of_end(with_limits(**was), ended_by, env_step=120, train_iter=30)
    end = json.loads(json.dumps(end))
    if not advice:
        check_end(end, with_limits(**now))
        return
    with pytest.raises(ValueError, match="contains a finished run of 120 env steps and 30 updates: ") as raised:
        check_end(end, with_limits(**now))
    assert str(raised.value).partition("updates: ")[2] == f"{advice} to continue it, or choose another folder"


def with_limits(
    stop_value: float | None = None, trainer: Any = None, commander: Any = None, **main: Any
) -> ParallelConfig:
    section = {"exp_name": "x", "policy": POLICY, "env": {"stop_value": stop_value}, **main}
    system = {"learner": {"trainer": trainer or {}}, "coordinator": {"commander": commander or {}}}
    return resolve(ParallelConfig, {"main": section, "system": system})


def test_run_whose_learner_has_no_checkpoint_left_does_not_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    was, now = with_limits(max_env_step=8), with_limits(exp_name=str(tmp_path))
    end = record_of_end(was, "max_env_step", env_step=8, train_iter=6)
    with pytest.raises(ValueError, match=rf"without a whole checkpoint of its learner in {tmp_path}/learner, from"):
        check_end(end, now)
    check_end({**end, "train_iter": 0}, now)  # it has learned nothing
    own = replace(now, system=replace(now.system, comm_learner="keeps its checkpoints elsewhere"))
    check_end(end, own)
