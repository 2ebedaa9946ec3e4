from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.distributed.published_weights import PolicyWeights
from lightning_ding.distributed.transport import Refusal
from lightning_ding.policy import create_policy
from tests.datamodules.remote_source import minibatches
from tests.distributed.comm_worker.learning_coordinator import SMALL, Learner, LearningCoordinator
from tests.processes import run, start

SCRIPT = ("-m", "tests.distributed.comm_worker.learner_script")
LEARNER = {"validate": False, "rounds_per_epoch": 2, "prefetch": 0}


def steps_of(coordinator: LearningCoordinator) -> list[int]:
    return [message["info"]["learner_step"] for message in coordinator.said("learner_learn_task")]


def test_a_task_is_learned_published_reported_evaluated_and_closed(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=4)
    assert Learner(channel=coordinator.channel).start() == 0
    versions = [message["policy_version"] for message in coordinator.said("learner_send_policy")]
    assert versions == [0, 2, 4, 6, 8]
    assert steps_of(coordinator) == [2, 4, 6, 8]
    (closed,) = coordinator.said("learner_close_task")
    assert closed["info"]["learner_done"] is True
    assert closed["info"]["learner_step"] == 8
    assert 8 <= closed["info"]["results"]["test/return_mean"] <= 500
    assert {"worker_id", "task_id", "run_id"} <= closed.keys()
    asked = coordinator.said("learner_get_data_task")[0]
    assert (asked["batch_size"], asked["num_batches"]) == (8, 2)
    assert asked["options"] == {"n_step": 3, "discount_factor": 0.99}
    assert coordinator.messages[-1][0] == "disconnect"


def test_learner_of_one_rank_is_not_taken_for_the_tasks_of_a_job_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"SLURM_JOB_NAME": "dqn", "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "4"}
    for name, value in {**job, "SLURM_LOCALID": "0", "SLURM_PROCID": "2", "SLURM_NODEID": "2"}.items():
        monkeypatch.setenv(name, value)
    coordinator = LearningCoordinator(tmp_path, rounds=1, learner=LEARNER)
    assert Learner(channel=coordinator.channel).start() == 0
    assert steps_of(coordinator) == [2]


def test_rounds_are_deleted_from_the_store_when_they_are_read(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=4, learner={"validate": False})
    Learner(channel=coordinator.channel).start()
    assert len(coordinator.store) == len(coordinator.said("learner_send_policy"))  # type: ignore[arg-type]


def test_statistics_of_observations_are_published_with_the_weights_and_collectors_take_them(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=4, learner={"validate": False})
    coordinator.task_info["main"]["norm_obs"] = True
    Learner(channel=coordinator.channel).start()
    published = coordinator.published
    learned_from = torch.cat([minibatches(number)["obs"].flatten(0, 1) for number in range(4)]).double()
    torch.testing.assert_close(published["normaliser"]["obs.mean"], learned_from.mean(0), rtol=1e-9, atol=1e-12)
    collecting = create_policy({**SMALL, "model": {**SMALL["model"], "obs_shape": 4, "action_shape": 2}})
    newest = {**published, "iter": 8, "serial": 1}
    assert PolicyWeights("main", lambda path, serial: newest, collecting.collect_mode).update()
    (file,) = (tmp_path / "learner" / "checkpoints").glob("last-*/run.ckpt")
    learner = type(collecting).load_from_checkpoint(file, weights_only=True)
    raw = torch.randn(16, 4)
    assert torch.equal(collecting.normaliser.normalise_obs(raw), learner.normaliser.normalise_obs(raw))
    assert torch.equal(collecting.eval_mode.forward(raw)["action"], learner.eval_mode.forward(raw)["action"])


def test_published_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=4, learner={"validate": False})
    Learner(channel=coordinator.channel).start()
    (file,) = (tmp_path / "learner" / "checkpoints").glob("last-*/run.ckpt")
    saved = torch.load(file, weights_only=True)["state_dict"]
    for name, tensor in coordinator.published.items():
        assert torch.equal(tensor, saved[f"model.{name}"]), name


@pytest.mark.parametrize(
    ("learner", "versions", "evaluations"),
    [
        ({"send_policy_freq": 3, "validate": False}, [0, 6, 8], 0),
        ({"rounds_per_epoch": 2}, [0, 2, 4, 6, 8], 1),
        ({"eval_every": 20, "checkpoint_every": 10}, [0, 2, 4, 6, 8], 1),
    ],
)
def test_options_of_the_learner_do_what_they_say(
    tmp_path: Path, learner: dict[str, Any], versions: list[int], evaluations: int
) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=4, learner=learner)
    Learner(channel=coordinator.channel).start()
    assert [message["policy_version"] for message in coordinator.said("learner_send_policy")] == versions
    (closed,) = coordinator.said("learner_close_task")
    assert bool(closed["info"]["results"]) == bool(evaluations)


def test_priorities_reach_the_coordinator_as_a_block(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(
        tmp_path, rounds=2, policy={**SMALL, "priority": True}, learner={"validate": False}
    )
    coordinator.prioritised = True
    Learner(channel=coordinator.channel).start()
    for message in coordinator.said("learner_learn_task"):
        block = coordinator.store.get(message["info"]["priority_info"]).tensors
        assert block["replay_buffer_idx"].tolist() == list(range(16))
        assert block["replay_unique_id"].tolist() == list(range(100, 116))
        assert (block["priority"] > 0).all()


def test_a_round_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=3, learner={"validate": False, "prefetch": 0})
    get, gone = coordinator.store.get, []

    def lose_the_second(handle: Any) -> Any:
        if handle["kind"] == "batch":
            gone.append(handle)
            if len(gone) == 2:
                raise Refusal(404, "there is no such block")
        return get(handle)

    coordinator.store.get = lose_the_second  # type: ignore[method-assign]
    Learner(channel=coordinator.channel).start()
    assert steps_of(coordinator) == [2, 4]


def test_a_lost_lease_drops_the_task_and_the_next_one_resumes_from_the_checkpoint(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=6, learner=LEARNER, tasks=2)

    def lose_the_lease(name: str, message: dict[str, Any]) -> None:
        is_fifth = name == "learner_learn_task" and len(coordinator.said(name)) == 5
        if is_fifth and message["run_id"] == "r1":
            coordinator.asked = 0
            raise Refusal(409, "the lease is over")

    coordinator.before = lose_the_lease
    assert Learner(channel=coordinator.channel).start() == 0
    assert not coordinator.said("fail")
    assert len(coordinator.said("connect")) == 2
    assert steps_of(coordinator) == [2, 4, 6, 8, 10, *range(10, 22, 2)]  # the checkpoint was at 8
    (closed,) = coordinator.said("learner_close_task")
    assert closed["run_id"] == "r2"
    assert closed["info"]["learner_step"] == 20


def test_errors_are_reported_and_the_next_task_is_asked_for(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=2, policy={"type": "bc"})
    assert Learner(channel=coordinator.channel).start() == 0
    (failed,) = coordinator.said("fail")
    assert "main.policy must be one of a2c, acer, " in failed["error"]
    assert "got 'bc'" in failed["error"]
    assert not coordinator.said("learner_close_task")


def test_checkpoints_of_another_run_are_refused_without_resume(tmp_path: Path) -> None:
    for rounds in (2, 3):
        coordinator = LearningCoordinator(tmp_path, rounds=rounds, learner={"validate": False})
        Learner(channel=coordinator.channel).start()
    (failed,) = coordinator.said("fail")
    assert "main.exp_name must be a new folder" in failed["error"]
    coordinator = LearningCoordinator(tmp_path, rounds=3, learner={"validate": False})
    coordinator.task_info["resume"] = True
    Learner(channel=coordinator.channel).start()
    assert steps_of(coordinator) == [6, 8, 10]


def test_several_devices_need_multi_gpu(tmp_path: Path) -> None:
    trainer = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "logger": False}
    coordinator = LearningCoordinator(tmp_path, rounds=2, learner={"trainer": trainer})
    Learner(channel=coordinator.channel).start()
    assert "learner.multi_gpu must be true for several devices" in coordinator.said("fail")[0]["error"]


def test_a_signal_lets_the_task_go_with_a_checkpoint(tmp_path: Path) -> None:
    process = start([*SCRIPT, "signal", tmp_path], start_new_session=True)
    try:
        output, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "closed False" in output, output
    assert list((tmp_path / "learner" / "checkpoints").glob("last-*/run.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")])
def test_two_ranks_learn_from_separate_rounds_and_stop_together(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run(*launcher, *SCRIPT, "ranks", tmp_path, timeout=200)
    one, other = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    assert one["train_iter"] == other["train_iter"] == 12
    assert one["env_step"] == other["env_step"] > 0
    assert one["first_obs"] != other["first_obs"]
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name
