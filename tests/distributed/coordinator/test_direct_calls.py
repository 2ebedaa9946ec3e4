"""The coordinator's methods with the arguments that they have in DI-engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.di_engine.parallel_commanders import BUFFER_ID
from lightning_ding.distributed import Coordinator
from tests.distributed.coordinator.coordinating import Run, Worker, config


def transition(number: int, **changed: Any) -> dict[str, Any]:
    obs = torch.tensor([float(number), -float(number)])
    made = {"obs": obs, "next_obs": obs + 1, "action": torch.tensor([0]), "reward": torch.tensor([float(number)])}
    return {**made, "action": torch.tensor(0), "done": False, **changed}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run whose collector and learner have their tasks."""
    return Run(config(tmp_path, commander={"type": "naive"}))


def workers(run: Run) -> tuple[Worker, Worker]:
    learner, collector = Worker(run, "learner"), Worker(run, "collector")
    learner.take()
    collector.take()
    return learner, collector


def test_data_are_sent_and_sampled_as_lists_of_transitions(run: Run) -> None:
    learner, collector = workers(run)
    coordinator, task_id = run.coordinator, collector.task["task_id"]
    for number in range(3):
        coordinator.deal_with_collector_send_data(task_id, BUFFER_ID, f"data{number}", transition(number))
    coordinator.deal_with_collector_send_data(task_id, BUFFER_ID, "more", [transition(3), transition(4, done=True)])
    assert run.rows()["reward"] == [0, 1, 2, 3, 4]
    assert run.rows()["terminated"] == [False] * 4 + [True]
    assert run.rows()["episode_id"][3] == run.rows()["episode_id"][4] != run.rows()["episode_id"][2]
    assert coordinator.status()["env_step"] == 5
    batch = coordinator.deal_with_learner_get_data(learner.task["task_id"], BUFFER_ID, 4, 0)
    assert isinstance(batch, list)
    assert len(batch) == 4
    assert {"obs", "action", "reward", "next_obs", "terminated", "discount"} <= batch[0].keys()
    assert {float(one["reward"]) for one in batch} <= {0, 1, 2, 3, 4}


def test_data_sent_by_a_call_survive_a_restart(run: Run) -> None:
    _, collector = workers(run)
    run.coordinator.deal_with_collector_send_data(collector.task["task_id"], BUFFER_ID, "one", transition(7))
    run.restart()
    assert run.rows()["reward"] == [7]


def test_data_of_an_unknown_task_or_buffer_are_dropped_with_an_error(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    _, collector = workers(run)
    run.coordinator.deal_with_collector_send_data("nobody", BUFFER_ID, "one", transition(1))
    run.coordinator.deal_with_collector_send_data(collector.task["task_id"], "nothing", "two", transition(1))
    assert run.replay.buffer.count() == 0
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "there is no collecting task 'nobody'" in errors[0]
    assert "there is no buffer 'nothing'" in errors[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"data_id": "file.pth", "policy_iter": 3}, "stores transitions, not the names of files"),
        (transition(1, reward=torch.ones(3)), "returns of n steps are computed when sampling"),
    ],
)
def test_data_that_are_no_transitions_are_refused_with_the_reason(run: Run, data: Any, message: str) -> None:
    _, collector = workers(run)
    with pytest.raises(ValueError, match=message):
        run.coordinator.deal_with_collector_send_data(collector.task["task_id"], BUFFER_ID, "one", data)


def test_too_few_data_and_an_unknown_buffer_give_none_and_an_unknown_task_raises(run: Run) -> None:
    learner, _ = workers(run)
    task_id = learner.task["task_id"]
    assert run.coordinator.deal_with_learner_get_data(task_id, BUFFER_ID, 4, 0) is None
    assert run.coordinator.deal_with_learner_get_data(task_id, "nothing", 4, 0) is None
    calls: list[Callable[[], Any]] = [
        lambda: run.coordinator.deal_with_learner_get_data("nobody", BUFFER_ID, 4, 0),
        lambda: run.coordinator.deal_with_learner_send_info("nobody", BUFFER_ID, {"learner_step": 1}),
        lambda: run.coordinator.deal_with_learner_judge_finish("nobody", {}),
        lambda: run.coordinator.deal_with_learner_finish_task("nobody", {}),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="there is no learning task 'nobody'"):
            call()


def test_info_sets_priorities_and_the_progress(tmp_path: Path) -> None:
    policy = {"priority": True, "other": {"replay_buffer": {"type": "advanced", "replay_buffer_size": 100}}}
    run = Run(config(tmp_path, policy, commander={"type": "naive"}))
    learner, collector = workers(run)
    data = [transition(number) for number in range(6)]
    run.coordinator.deal_with_collector_send_data(collector.task["task_id"], BUFFER_ID, "data", data)
    batch = run.coordinator.deal_with_learner_get_data(learner.task["task_id"], BUFFER_ID, 4, 0)
    assert batch is not None
    ids = {name: [int(one[name]) for one in batch] for name in ("replay_unique_id", "replay_buffer_idx")}
    info = {"learner_step": 5, "priority_info": {"priority": [9.0, 8.0, 7.0, 6.0], **ids}, "learner_done": False}
    run.coordinator.deal_with_learner_send_info(learner.task["task_id"], BUFFER_ID, info)
    assert run.coordinator.status()["train_iter"] == 5
    kept = run.replay.buffer.state_dict()["tensors"]["own/priority"].flatten().tolist()
    assert {round(one, 3) for one in kept} >= {9.0, 8.0, 7.0, 6.0}
    run.coordinator.deal_with_learner_send_info(learner.task["task_id"], BUFFER_ID, {**info, "priority_info": {}})


def test_finished_tasks_make_room_for_the_next(run: Run) -> None:
    learner, collector = workers(run)
    coordinator, task_id = run.coordinator, collector.task["task_id"]
    assert not coordinator.deal_with_collector_judge_finish(task_id, {"collector_done": False})
    assert coordinator.deal_with_collector_judge_finish(task_id, {"collector_done": True})
    assert not coordinator.deal_with_collector_judge_finish("nobody", {"collector_done": True})
    coordinator.deal_with_collector_finish_task(task_id, {"collector_done": True})
    assert task_id not in coordinator.scheduler.book.tasks
    assert not coordinator.system_shutdown_flag
    task_id = learner.task["task_id"]
    assert coordinator.deal_with_learner_judge_finish(task_id, {"learner_done": True})
    coordinator.deal_with_learner_finish_task(task_id, {"learner_done": True, "learner_step": 9})
    assert coordinator.system_shutdown_flag
    assert coordinator.status()["train_iter"] == 9


def test_the_number_of_collecting_tasks_follows_the_calls(run: Run) -> None:
    spaces = run.coordinator.scheduler.spaces
    before = spaces["collector"]
    run.coordinator.deal_with_increase_collector()
    assert spaces["collector"] == before + 1
    run.coordinator.deal_with_decrease_collector()
    run.coordinator.deal_with_decrease_collector()
    assert spaces["collector"] == before - 1


def test_info_and_error_write_to_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.coordinator.info("all is well")
    run.coordinator.error("all is lost")
    found = {record.levelname: record.message for record in caplog.records if "all is" in record.message}
    assert found["INFO"].endswith("all is well")
    assert found["ERROR"].endswith("all is lost")


def test_default_config_has_the_keys_of_the_reference() -> None:
    defaults = Coordinator.default_config()
    assert (defaults.collector_task_timeout, defaults.learner_task_timeout) == (30, 600)
    assert defaults.cfg_type == "CoordinatorDict"
