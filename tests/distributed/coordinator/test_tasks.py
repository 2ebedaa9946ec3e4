"""Assignment and loss of tasks, and the end of a run."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding import __version__
from lightning_ding.distributed.coordinator import endpoints
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.distributed.messages import fingerprint, schema, version
from lightning_ding.distributed.transport import LeaseLostError, Refusal
from tests.distributed.coordinator.coordinating import Run, Worker, both, config, transitions


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TASK_WAIT", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(config(tmp_path / "run"))


def evaluation(reward: float, train_iter: int = 5) -> dict[str, Any]:
    told = {"eval_flag": True, "collector_done": True, "train_iter": train_iter, "real_episode_count": 2}
    return told | {"reward_mean": reward, "reward_std": 0.0, "reward_raw": [reward, reward]}


def due_evaluation(tmp_path: Path, **commander: Any) -> Run:
    """Return a run whose next evaluation is due as soon as there are weights."""
    return Run(config(tmp_path / "run", commander={"eval_interval": 1e-9, **commander}))


def test_a_learner_comes_first_and_its_buffer_is_the_collectors(run: Run) -> None:
    learner, collector = both(run)
    assert learner.task["name"] == "learner_start_task"
    assert collector.task["name"] == "collector_start_task"
    assert collector.info()["buffer_id"] == learner.info()["buffer_id"]
    assert not learner.info()["resume"]


def test_there_are_no_more_tasks_than_the_task_space(run: Run) -> None:
    workers = [Worker(run, "collector") for _ in range(3)]
    assert [worker.take()["task"] is not None for worker in workers] == [True, True, False]


@pytest.mark.parametrize("theirs", [__version__, f"{__version__}+{fingerprint({**schema(), 'entries': 0})}"])
def test_a_worker_of_another_version_is_refused(run: Run, theirs: str) -> None:
    said = {"worker_id": "w", "role": "learner", "version": theirs, "resource": {}}
    with pytest.raises(Refusal) as caught:
        run.coordinator.handle("connect", said)
    assert caught.value.status == 426
    assert f"the version of this run is {version()}, got {theirs}: all machines need" in caught.value.reason


@pytest.mark.parametrize(
    ("name", "said", "status"),
    [
        ("conect", {}, 404),
        ("connect", {"worker_id": "w", "role": "chef", "version": version(), "resource": {}}, 400),
        ("heartbeat", {}, 400),
        ("heartbeat", {"worker_id": "nobody"}, 409),
        ("task", {"worker_id": 3}, 400),
        ("increase_collector", {"n": 0}, 400),
        ("increase_collector", {"n": 2**40}, 400),
        ("set_collectors", {}, 400),
        ("set_collectors", {"n": -1}, 400),
        ("set_collectors", {"n": 1001}, 400),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(run: Run, name: str, said: dict[str, Any], status: int) -> None:
    with pytest.raises(Refusal) as caught:
        run.coordinator.handle(name, said)
    assert caught.value.status == status


def test_an_unknown_task_and_a_stale_run_are_distinguished(run: Run) -> None:
    _, collector = both(run)
    with pytest.raises(Refusal, match="404"):
        collector.call("heartbeat", task_id="unknown")
    with pytest.raises(LeaseLostError):
        collector.call("heartbeat", run_id="stale")
    assert collector.call("heartbeat") == {"close": False}


def test_a_task_of_a_collector_takes_no_message_of_a_learner(run: Run) -> None:
    _, collector = both(run)
    with pytest.raises(Refusal, match="400"):
        collector.call("learner_get_data_task", batch_size=1, num_batches=1, cur_learner_iter=0, rank=0, options={})


def test_heartbeats_keep_a_lease(run: Run) -> None:
    learner, collector = both(run)
    for _ in range(3):
        run.clock.now += 10
        learner.call("heartbeat")
        collector.call("heartbeat")
        run.coordinator.sweep()
    assert collector.send(transitions())["accepted"]


def test_silent_learner_is_replaced_by_one_that_resumes(run: Run) -> None:
    learner, _ = both(run)
    run.elapse(16)
    other = Worker(run, "learner")
    other.take()
    assert other.task["task_id"] == learner.task["task_id"]
    assert other.task["run_id"] != learner.task["run_id"]
    assert other.info()["resume"]
    with pytest.raises(LeaseLostError):
        learner.publish(1)


def test_a_learner_that_leaves_early_lets_its_task_go_to_another(run: Run) -> None:
    learner, _ = both(run)
    learner.call("learner_close_task", info={"learner_step": 3, "learner_done": False})
    assert not run.coordinator.system_shutdown_flag
    other = Worker(run, "learner")
    other.take()
    assert (other.task["task_id"], other.info()["resume"]) == (learner.task["task_id"], True)


def test_who_did_not_hear_the_answer_gets_the_same_task_again(run: Run) -> None:
    collector = Worker(run, "collector")
    task = collector.take()["task"]
    assert collector.take()["task"] == task
    collector.send(transitions())
    other = collector.take()["task"]
    assert other["task_id"] != task["task_id"]
    assert len(run.coordinator.run.scheduler.book.running("collector")) == 1


def test_a_task_that_fails_is_followed_by_another(run: Run) -> None:
    _, collector = both(run)
    failed = collector.task["task_id"]
    assert collector.call("fail", error="division by zero") == {}
    assert collector.call("fail", error="division by zero") == {}  # the answer to the first may have been lost
    collector.take()
    assert collector.task["task_id"] != failed


def test_too_many_failures_in_a_row_end_the_run_with_the_last_error(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=2))
    _, collector = both(run)
    for _ in range(2):
        collector.call("fail", error="bad env")
        collector.take()
    collector.send(transitions())  # something was done
    for _ in range(2):
        collector.call("fail", error="bad env")
        collector.take()
    assert run.coordinator.failure is None
    collector.call("fail", error="OSError: the env is gone\n  File 'env.py', line 1, in step\n    ^^^^^^^^")
    assert run.coordinator.system_shutdown_flag
    reason = "3 collector tasks in a row failed (max_failures is 2), the last: OSError: the env is gone"
    assert run.coordinator.failure == reason
    run.coordinator.close()
    assert json.loads((tmp_path / "run/result.json").read_text())["error"] == reason
    run.restart()  # once the env is mended
    assert not run.coordinator.system_shutdown_flag
    assert run.counts.env_step == 4


def test_collectors_that_are_silent_all_at_once_do_not_end_the_run(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=1, commander={"collector_task_space": 5}))
    for _ in range(5):
        Worker(run, "collector").take()
    run.elapse(16)
    assert run.coordinator.failure is None
    assert run.coordinator.status()["collector_tasks"] == {"running": 0, "waiting": 5}


def test_collectors_that_die_again_and_again_without_any_data_end_the_run(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=2))
    for _ in range(4):  # these did something first
        collector = Worker(run, "collector")
        collector.take()
        collector.send(transitions(env_id=torch.zeros(4, dtype=torch.int64)))
        run.elapse(16)
    for _ in range(2):
        Worker(run, "collector").take()
        run.elapse(16)
    assert run.coordinator.failure is None
    Worker(run, "collector").take()
    run.elapse(16)
    assert "3 collector tasks in a row failed" in str(run.coordinator.failure)


def test_what_a_worker_said_while_the_coordinator_was_stopped_is_heard_before_its_lease_ends(run: Run) -> None:
    learner, collector = both(run)
    run.clock.now += 100  # in which nothing ran
    run.coordinator.sweep()
    run.elapse(14)
    assert collector.send(transitions())["accepted"]
    run.elapse(2)
    with pytest.raises(LeaseLostError):
        learner.call("heartbeat")


def test_collectors_that_fail_after_their_first_message_count_as_consecutive_failures(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=2))
    _, collector = both(run)
    for _ in range(3):
        assert run.coordinator.failure is None
        assert collector.send(None)["accepted"]  # an empty message, with which every task begins
        collector.call("fail", error="the first step raises")
        collector.take()
    assert "the first step raises" in str(run.coordinator.failure)


def test_a_run_that_was_given_up_for_its_learner_learns_again_when_it_is_resumed(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=1))
    learner, collector = both(run)
    collector.send(transitions())
    for _ in range(2):
        learner.call("fail", error="out of memory")
        learner.take()
    assert run.coordinator.failure is not None
    run.coordinator.close()
    run.restart()
    again = Worker(run, "learner")
    again.take()
    assert again.info()["resume"]
    assert not again.get()["stop"]
    assert again.call("heartbeat") == {"close": False}


def test_learner_lost_after_the_end_leaves_an_error_instead_of_an_empty_result(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", main={"max_env_step": 4}))
    learner, collector = both(run)
    collector.send(transitions())
    assert run.coordinator.system_shutdown_flag
    assert run.coordinator.failure is None
    learner.call("disconnect")
    assert "before it could report its results" in str(run.coordinator.failure)
    run.coordinator.close()
    run.restart()
    assert Worker(run, "learner").take()["task"] is not None  # and can be finished


def test_a_disconnected_worker_counts_as_no_failure(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", max_failures=1))
    for _ in range(3):
        collector = Worker(run, "collector")
        collector.take()
        collector.call("disconnect")
        run.coordinator.sweep()
    assert run.coordinator.failure is None
    assert run.coordinator.status()["collector_tasks"] == {"running": 0, "waiting": 2}


def test_task_spaces_grow_and_shrink_while_collectors_work(run: Run) -> None:
    collectors = [Worker(run, "collector") for _ in range(4)]
    for collector in collectors:
        collector.take()
    assert [bool(collector.task) for collector in collectors] == [True, True, False, False]
    assert run.coordinator.handle("increase_collector", {"n": 2}) == {"collector_task_space": 4}
    assert [collector.take()["task"] is not None for collector in collectors[2:]] == [True, True]
    assert run.coordinator.handle("decrease_collector", {"n": 3}) == {"collector_task_space": 1}
    told = [collector.call("heartbeat")["close"] for collector in collectors]
    assert told == [True, True, True, False]
    for collector in collectors[:3]:
        collector.call("collector_close_task", info={"eval_flag": False, "collector_done": True})
        assert collector.take()["task"] is None
    assert run.coordinator.status()["collector_tasks"] == {"running": 1, "waiting": 0}


def test_number_of_tasks_is_set_and_the_same_message_again_changes_nothing(run: Run) -> None:
    collectors = [Worker(run, "collector") for _ in range(3)]
    for _ in range(2):
        assert run.coordinator.handle("set_collectors", {"n": 3}) == {"collector_task_space": 3}
    assert [collector.take()["task"] is not None for collector in collectors] == [True, True, True]
    for _ in range(2):
        assert run.coordinator.handle("set_collectors", {"n": 1}) == {"collector_task_space": 1}
    assert [collector.call("heartbeat")["close"] for collector in collectors] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "said"),
    [("set_collectors", {"n": 3}), ("increase_collector", {}), ("decrease_collector", {}), ("shutdown", {})],
)
def test_a_message_that_waits_for_the_disk_does_not_stop_the_others(run: Run, name: str, said: dict[str, Any]) -> None:
    state = run.coordinator.run
    with state._writing:  # as another thread that writes the state, and then needs the lock
        thread = threading.Thread(target=run.coordinator.handle, args=(name, said))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert state.lock.acquire(timeout=5)
        state.lock.release()
    thread.join(5)
    assert not thread.is_alive()


def test_unassigned_tasks_are_removed_when_the_space_shrinks(run: Run) -> None:
    run.coordinator.handle("decrease_collector", {"n": 2})
    assert Worker(run, "collector").take()["task"] is None
    run.coordinator.handle("increase_collector", {})
    assert Worker(run, "collector").take()["task"] is not None


def test_a_collecting_task_is_closed_for_an_evaluation(tmp_path: Path) -> None:
    run = due_evaluation(tmp_path)
    learner, first = both(run)
    second = Worker(run, "collector")
    second.take()
    learner.publish(5)
    run.coordinator.sweep()
    assert [worker.send(transitions())["close"] for worker in (first, second)] == [False, True]
    second.call("collector_close_task", info={"eval_flag": False, "collector_done": True})
    second.take()
    assert second.info()["collector_cfg"]["eval_flag"]
    assert second.info()["collector_cfg"]["n_episode"] == 20


def test_idle_collector_evaluates_and_no_other_has_to_stop(tmp_path: Path) -> None:
    run = due_evaluation(tmp_path, collector_task_space=1)
    learner, first = both(run)
    idle = Worker(run, "collector")
    learner.publish(5)
    run.coordinator.sweep()
    assert not first.send(transitions())["close"]
    idle.take()
    assert idle.info()["collector_cfg"]["eval_flag"]


def test_an_evaluation_that_reaches_the_stop_value_ends_the_run_and_is_in_the_result(tmp_path: Path) -> None:
    main = {"env": {"stop_value": 10.0}, "keep_data": False}
    cfg = config(tmp_path / "run", main=main, commander={"eval_interval": 1e-9})
    run = Run(cfg)
    learner, collector = both(run)
    collector.send(transitions(), returns=[1.0], lengths=[4])
    learner.publish(5)
    evaluator = Worker(run, "collector")
    evaluator.take()
    evaluator.call("collector_close_task", info=evaluation(11.0))
    assert evaluator.call("collector_close_task", info=evaluation(11.0)) == {}  # the answer may have been lost
    assert run.coordinator.system_shutdown_flag
    assert collector.send(transitions(first=4))["close"]
    assert learner.get()["stop"]
    learner.call("learner_close_task", info={"learner_step": 6, "learner_done": True, "results": {"loss": 0.5}})
    assert not run.coordinator.wait(0.0)
    assert [worker.take()["shutdown"] for worker in (learner, collector, evaluator)] == [True, True, True]
    assert run.coordinator.wait(0.0)
    run.coordinator.close()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["env_step"], result["train_iter"], result["episodes"]) == (8, 6, 1)
    assert result["results"] == {"loss": 0.5}
    assert [one["reward_mean"] for one in result["evaluations"]] == [11.0]
    assert result["evaluations"][0]["env_step"] == 4
    assert not (tmp_path / "run/coordinator").exists()


def test_a_learner_that_is_done_ends_the_run(run: Run) -> None:
    learner, _ = both(run)
    learner.call("learner_close_task", info={"learner_step": 3, "learner_done": True, "results": {}})
    assert run.coordinator.system_shutdown_flag
    assert run.coordinator.failure is None


def test_the_run_ends_at_so_many_env_steps(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", main={"max_env_step": 8}))
    learner, collector = both(run)
    assert not collector.send(transitions())["close"]
    assert not learner.get()["stop"]
    assert collector.send(transitions())["close"]
    assert learner.get()["stop"]


def test_run_does_not_wait_for_a_worker_that_died_at_the_end(run: Run) -> None:
    both(run)
    run.coordinator.handle("shutdown", {})
    assert not run.coordinator.wait(0.0)
    run.elapse(16)
    assert run.coordinator.wait(0.0)


def test_unfinished_run_can_only_be_resumed(tmp_path: Path) -> None:
    cfg = config(tmp_path / "run")
    Run(cfg)
    with pytest.raises(ValueError, match="--resume"):
        Coordinator(cfg, MemoryStore())


def test_what_an_evaluation_did_is_not_learned_from(tmp_path: Path) -> None:
    run = due_evaluation(tmp_path)
    learner, _ = both(run)
    learner.publish(5)
    evaluator = Worker(run, "collector")
    evaluator.take()
    with pytest.raises(Refusal, match="400"):
        evaluator.send(transitions())
    assert run.counts.env_step == 0


def test_a_malformed_end_of_an_evaluation_is_refused_and_the_task_can_fail(tmp_path: Path) -> None:
    run = due_evaluation(tmp_path)
    learner, _ = both(run)
    learner.publish(5)
    evaluator = Worker(run, "collector")
    evaluator.take()
    with pytest.raises(Refusal, match="reward_mean"):
        evaluator.call("collector_close_task", info={"collector_done": True, "train_iter": 5})
    assert evaluator.call("fail", error="it was refused") == {}


def test_old_weights_go_and_a_serial_only_rises(run: Run) -> None:
    learner, collector = both(run)
    policy_id = learner.info()["policy_id"]
    assert collector.call("get_policy", policy_id=policy_id, serial=-1)["handle"] is None
    assert [learner.publish(number) for number in (10, 20, 30)] == [1, 2, 3]
    assert len(run.store) == 2
    told = collector.call("get_policy", policy_id=policy_id, serial=2)
    assert (told["serial"], told["policy_version"]) == (3, 30)
    assert run.store.get(told["handle"]).tensors["weight"].tolist() == [30]
    assert collector.call("get_policy", policy_id=policy_id, serial=3)["handle"] is None
    run.restart()
    assert learner.publish(25) == 4  # it continued from an older checkpoint
    assert collector.call("get_policy", policy_id=policy_id, serial=3)["policy_version"] == 25


@pytest.mark.parametrize("data_id", [None, {"kind": "policy", "name": "../../x"}, {"kind": "policy", "name": "0" * 32}])
def test_weights_that_no_collector_could_read_are_not_announced(tmp_path: Path, data_id: Any) -> None:
    run = Run(config(tmp_path / "run"), FileStore(tmp_path / "run/data"))
    learner, collector = both(run)
    learner.publish(1)
    policy_id = learner.info()["policy_id"]
    with pytest.raises(Refusal):
        learner.call("learner_send_policy", policy_id=policy_id, policy_version=2, data_id=data_id)
    assert collector.call("get_policy", policy_id=policy_id, serial=-1)["policy_version"] == 1
    assert learner.publish(3) == 2


@pytest.mark.parametrize("name", ["learner_learn_task", "learner_close_task"])
@pytest.mark.parametrize(
    "said",
    [{"learner_step": "abc"}, {"learner_step": None}, {"results": 5}, {"results": {"x": "y"}}, {"learner_done": 1}],
)
def test_a_malformed_info_of_a_learner_is_refused_and_the_task_continues(
    run: Run, name: str, said: dict[str, Any]
) -> None:
    learner, _ = both(run)
    with pytest.raises(Refusal, match="400"):
        learner.call(name, info={"learner_step": 3, "learner_done": True, "results": {}, **said})
    assert run.coordinator.run.results.train_iter == 0
    assert learner.call("heartbeat") == {"close": False}


def test_weights_that_are_announced_twice_are_one_publication(run: Run) -> None:
    learner, _ = both(run)
    handle = run.store.put("policy", {"weight": torch.zeros(1)})
    said = {"policy_id": learner.info()["policy_id"], "policy_version": 1, "data_id": handle}
    assert [learner.call("learner_send_policy", **said)["serial"] for _ in range(2)] == [1, 1]


def test_weights_of_a_former_self_are_kept_until_they_are_not_needed(run: Run) -> None:
    weights = run.coordinator.run.weights
    handles = [run.store.put("policy", {"weight": torch.full((1,), float(i))}) for i in range(4)]
    weights.publish("main", 0, handles[0], snapshot="old")
    for number in (1, 2, 3):
        weights.publish("main", number, handles[number])
    assert weights.newer("old", -1)["handle"] == handles[0]
    assert len(run.store) == 3
    weights.keep_only({"main"})
    assert weights.newer("old", -1)["handle"] is None
    assert len(run.store) == 2


def test_leaving_a_run_and_going_on_keeps_owners_and_spaces(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    run.coordinator.handle("increase_collector", {"n": 1})
    run.coordinator.close()
    run.restart()
    assert collector.send(transitions())["accepted"]
    assert learner.call("heartbeat") == {"close": False}
    assert run.coordinator.handle("increase_collector", {"n": 1}) == {"collector_task_space": 4}


def test_options_of_the_config_that_have_no_meaning_here_raise(tmp_path: Path) -> None:
    for other, match in [
        ({"replay_buffer": {"type": "sequence", "sequence_length": 2}}, "transitions"),
        ({"replay_buffer": {"type": "her"}}, "nstep must be 1 with other.replay_buffer.type 'her'"),
        ({"replay_buffer": {"enable_track_used_data": True}}, "enable_track_used_data"),
        ({"replay_buffer": {"replay_buffer_size": 3}}, "batch_size"),
        (
            {"replay_buffer": {"type": "advanced", "thruput_controller": {"sample_min_limit_ratio": 2.0}}},
            "samples_per_insert",
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            Coordinator(config(tmp_path / "run", {"other": other}), MemoryStore())
    with pytest.raises(ValueError, match="data set"):
        Coordinator({"main": {"exp_name": str(tmp_path / "run"), "policy": {"type": "bc"}}}, MemoryStore())
    with pytest.raises(ValueError, match="priority"):
        Coordinator(config(tmp_path / "run", {"priority": True}), MemoryStore())


def test_a_lease_is_as_long_as_the_config_says(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", lease=3.0))
    collector = Worker(run, "collector")
    assert collector.connect() == {"lease": 3.0}
    collector.take()
    run.elapse(3.5)
    with pytest.raises(LeaseLostError):
        collector.call("heartbeat")


def test_a_task_that_waits_long_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(config(tmp_path / "run", learner_task_timeout=5.0, collector_task_timeout=100.0))
    for _ in range(3):
        run.clock.now += 4
        run.coordinator.sweep()
    assert [record.message.count("for a learner") for record in caplog.records] == [1]


def test_the_state_goes_through_json(run: Run) -> None:
    learner, collector = both(run)
    collector.send(transitions())
    learner.publish(1)
    state = run.coordinator.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert dataclasses.asdict(run.counts)["next_seq"] == {collector.task["run_id"]: 1}


def test_collectors_without_a_task_are_named_once_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(config(tmp_path / "run", collector_task_timeout=10.0, lease=1000.0))
    collectors = [Worker(run, "collector") for _ in range(5)]
    for collector in collectors:
        collector.take()

    def lines() -> list[str]:
        return [record.message for record in caplog.records if "collectors are connected" in record.message]

    run.elapse(9)
    assert lines() == []
    run.elapse(20)
    (line,) = lines()
    assert line.startswith("5 collectors are connected, and there are collecting tasks for 2 of them: set system.")
    run.coordinator.handle("set_collectors", {"n": 5})
    run.elapse(20)
    assert len(lines()) == 1
    run.coordinator.handle("set_collectors", {"n": 4})
    run.elapse(20)
    assert len(lines()) == 2


def test_stop_value_of_another_monitor_is_not_compared_with_the_returns_of_collectors(tmp_path: Path) -> None:
    main = {"env": {"stop_value": 0.9}, "monitor": "eval/success_rate"}
    run = Run(config(tmp_path / "run", main=main, commander={"eval_interval": 1e-9}))
    learner, collector = both(run)
    collector.send(transitions(), returns=[1.0], lengths=[4])
    learner.publish(5)
    evaluator = Worker(run, "collector")
    evaluator.take()
    evaluator.call("collector_close_task", info=evaluation(11.0))
    assert not run.coordinator.system_shutdown_flag
