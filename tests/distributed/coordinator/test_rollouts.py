"""Rollouts of on-policy algorithms in the coordinator: versions, parts, stragglers, and what is left after failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.config import resolve
from lightning_ding.distributed.config import CoordinatorConfig, ParallelConfig
from lightning_ding.distributed.coordinator import publications
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.rollouts import Rollout, RolloutSettings
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.distributed.transport import Refusal
from tests.distributed.coordinator.coordinating import Run, Worker, both, transitions

SIZE = 8
PPO = {"type": "ppo", "learn": {"batch_size": 4}, "collect": {"n_sample": SIZE}}


def config(folder: Path, main: Any = None, collectors: int = 2, **coordinator: Any) -> dict[str, Any]:
    commander = {"eval_interval": None, "collector_task_space": collectors}
    return {
        "main": {"exp_name": str(folder), "policy": PPO, **(main or {})},
        "system": {"coordinator": {**coordinator, "commander": commander}},
    }


def rows(first: int, version: int = 0, size: int = 4, **changed: Any) -> dict[str, Any]:
    return transitions(size, first, version, **changed)


def team(run: Run, collectors: int = 2) -> tuple[Worker, list[Worker]]:
    learner, first = both(run)
    others = [Worker(run, "collector") for _ in range(collectors - 1)]
    for other in others:
        other.take()
    return learner, [first, *others]


def drawn(run: Run, learner: Worker) -> list[float] | None:
    """Return the rewards of the rollout that the learner gets; None if it has to wait."""
    answer = learner.get(1, 1)
    return None if answer["data"] is None else run.store.get(answer["data"]).tensors["reward"].tolist()


def asks(collector: Worker) -> bool:
    return bool(collector.call("collector_settings", serials={})["hold"])


# ---------------------------------------------------------------------- a rollout alone


def test_a_rollout_counts_transitions_of_its_version_only() -> None:
    rollout = Rollout(RolloutSettings(size=6))
    rollout.begin(1, 3)
    assert rollout.push(rows(0, version=3), "a", 0, 1) == 4
    assert rollout.push(rows(4, version=2), "b", 1, 2) == 0
    assert (rollout.count(), rollout.is_complete) == (4, False)
    assert rollout.push(rows(8, version=3), "b", 1, 3) == 4
    assert rollout.is_complete


def test_the_order_of_a_rollout_does_not_depend_on_who_was_first() -> None:
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        rollout, messages = Rollout(RolloutSettings(size=12)), [("a", 0, 2), ("b", 1, 1), ("a", 0, 3)]
        rollout.begin(1, 0)
        for index in order:
            rollout.push(rows(4 * index), *messages[index])
        assert rollout.rows()["reward"].tolist() == [*range(4), *range(8, 12), *range(4, 8)]


def test_whole_episodes_are_counted_by_their_ends() -> None:
    ends = torch.tensor([False, True, False, True])
    rollout = Rollout(RolloutSettings(size=3, in_episodes=True))
    rollout.begin(1, 0)
    rollout.push(rows(0, terminated=ends), "a", 0, 1)
    assert not rollout.is_complete
    rollout.push(rows(4, truncated=ends), "a", 0, 2)
    assert rollout.is_complete


def test_a_dropped_episode_has_to_be_collected_again() -> None:
    rollout = Rollout(RolloutSettings(size=8))
    rollout.begin(1, 0)
    rollout.push(rows(0, episode=1), "a", 0, 1)
    rollout.push(rows(4, episode=2), "b", 1, 2)
    assert rollout.is_complete
    assert rollout.holds("a", 2)
    rollout.drop_episodes([1])
    assert rollout.rows()["reward"].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert (rollout.holds("a", 2), rollout.holds("b", 2)) == (False, True)


def test_only_newer_publications_begin_a_rollout_and_the_same_version_keeps_it() -> None:
    rollout = Rollout(RolloutSettings(size=4))
    rollout.begin(2, 10)
    rollout.push(rows(0, version=10), "a", 0, 1)
    rollout.begin(1, 5)  # a message that was judged before the last publication
    rollout.begin(3, 10)  # a learner that continues from a checkpoint of this version
    assert rollout.is_complete
    rollout.begin(4, 5)  # one that continues from an older checkpoint
    assert (rollout.count(), rollout.policy_version) == (0, 5)


@pytest.mark.parametrize(("uses_late", "kept"), [(False, 0), (True, 4)])
def test_transitions_of_the_version_before_are_used_if_asked(uses_late: bool, kept: int) -> None:
    rollout = Rollout(RolloutSettings(size=8, share=0.5, uses_late=uses_late))
    for serial, version in enumerate((0, 10, 20)):
        rollout.begin(serial, version)
    assert rollout.push(rows(0, version=10), "a", 0, 1) == kept
    assert rollout.push(rows(4, version=0), "a", 0, 2) == 0  # two versions late
    assert not rollout.holds("a", 2)  # what came late is not its part of this rollout
    rollout.begin(4, 15)  # an older checkpoint: nothing of its future is used
    assert rollout.push(rows(0, version=20), "a", 0, 3) == 0


def test_a_saved_rollout_is_the_same(tmp_path: Path) -> None:
    for filled in (False, True):
        rollout = Rollout(RolloutSettings(size=8))
        rollout.begin(1, 0)
        rollout.begin(2, 3)
        if filled:
            rollout.push(rows(0, version=3), "a", 0, 1)
            rollout.push(rows(4, version=3), "b", 1, 2)
        rollout.save_data(tmp_path / "rollout.safetensors")
        again = Rollout(RolloutSettings(size=8))
        again.load_data(tmp_path / "rollout.safetensors")
        assert vars(again).keys() == vars(rollout).keys()
        assert (again.is_complete, again.count(), again.policy_version) == (filled, 8 * filled, 3)
        again.begin(2, 10)
        assert again.policy_version == 3
        if filled:
            assert again.rows()["reward"].tolist() == rollout.rows()["reward"].tolist()
            assert again.holds("a", 2)


# ---------------------------------------------------------------------- with a coordinator


def test_a_learner_gets_the_whole_rollout_of_its_newest_weights_and_the_same_one_again(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    assert first.send(rows(0))["hold"]
    assert drawn(run, learner) is None
    assert not asks(second)
    second.send(rows(4))
    assert asks(second)
    assert asks(first)
    assert drawn(run, learner) == drawn(run, learner) == [*range(8)]
    learner.publish(10)
    assert not asks(first)
    assert drawn(run, learner) is None
    assert run.coordinator.status()["sample"] == 8


def test_a_repeated_message_counts_once_in_a_rollout(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    assert first.send(rows(0), seq=0)["duplicate"]
    assert drawn(run, learner) is None
    second.send(rows(4))
    assert drawn(run, learner) == [*range(8)]
    with pytest.raises(Refusal, match="400: seq must be 1"):
        first.send(rows(8), seq=2)


def test_transitions_of_another_version_are_counted_and_not_learned_from(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    second.send(rows(4))
    learner.publish(10)
    assert not first.send(rows(8, version=0))["hold"]
    status = run.coordinator.status()
    assert (status["sample"], status["too_old"], status["env_step"]) == (12, 4, 12)
    first.send(rows(12, version=10))
    second.send(rows(16, version=10))
    assert drawn(run, learner) == [*range(12, 20)]


def test_the_others_take_over_the_part_of_a_collector_that_is_lost(tmp_path: Path) -> None:
    run = Run(config(tmp_path, lease=10.0))
    learner, (first, second) = team(run)
    learner.publish(0)
    assert first.send(rows(0))["hold"]
    for _ in range(3):  # the second one is killed
        run.elapse(4.0)
        first.call("heartbeat")
        learner.call("heartbeat")
    assert second.name not in run.coordinator.scheduler.book.workers
    assert not asks(first)
    first.send(rows(4))
    assert drawn(run, learner) == [*range(8)]


def test_what_a_lost_collector_had_delivered_is_in_the_rollout(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    first.call("disconnect")
    replacement = Worker(run, "collector")
    replacement.take()
    assert not replacement.send(None)["hold"]
    second.send(rows(4))
    assert replacement.call("collector_settings", serials={})["hold"]
    assert drawn(run, learner) == [*range(8)]


@pytest.mark.parametrize("late", ["drop", "use"])
def test_learning_does_not_wait_for_stragglers_with_a_smaller_share(tmp_path: Path, late: str) -> None:
    run = Run(config(tmp_path, rollout_share=0.5, late_transitions=late))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    assert drawn(run, learner) == [*range(4)]
    learner.publish(10)
    second.send(rows(4))  # collected with version 0
    assert run.counts.too_old == (4 if late == "drop" else 0)
    assert drawn(run, learner) is None  # of version 10 there is nothing yet
    first.send(rows(8, version=10))
    assert drawn(run, learner) == ([*range(8, 12)] if late == "drop" else [*range(8, 12), *range(4, 8)])


def test_a_rollout_is_bounded_whatever_collectors_send(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, _) = team(run)
    learner.publish(0)
    accepted = [first.send(rows(4 * number))["accepted"] for number in range(6)]
    assert accepted == [True] * 4 + [False] * 2  # twice the size of a rollout
    learner.publish(10)
    assert first.send(rows(20))["accepted"]


def test_the_last_rollout_within_the_limit_of_env_steps_is_learned_from(tmp_path: Path) -> None:
    run = Run(config(tmp_path, main={"max_env_step": 16}))
    learner, (first, second) = team(run)
    for version in (0, 10):
        learner.publish(version)
        first.send(rows(0, version))
        second.send(rows(4, version))
        answer = learner.get(1, 1)
        assert (answer["data"] is not None, answer["stop"]) == (True, False)
    learner.publish(20)
    assert learner.get(1, 1)["stop"]


def test_an_evaluation_has_no_part_of_a_rollout(tmp_path: Path) -> None:
    cfg = config(tmp_path, collectors=1)
    cfg["system"]["coordinator"]["commander"]["eval_interval"] = 1e-9
    run = Run(cfg)
    learner, _ = both(run)
    learner.publish(10)
    learner.call("learner_learn_task", info={"learner_step": 10, "learner_done": False, "priority_info": None})
    evaluator = Worker(run, "collector")
    evaluator.take()
    assert evaluator.info()["collector_cfg"]["eval_flag"]
    with pytest.raises(Refusal, match=r"400: .* is an evaluation"):
        asks(evaluator)


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_restarted_coordinator_has_the_same_rollout(tmp_path: Path, with_snapshot: bool) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    for serial, version in enumerate((0, 10)):
        learner.publish(version)
        first.send(rows(0, version))
        if serial == 0:
            second.send(rows(4, version))
    if with_snapshot:
        run.coordinator.save()
    run.restart()
    assert (run.counts.sample, run.replay.buffer.count()) == (12, 4)
    assert first.send(rows(0, version=10), seq=1)["duplicate"]
    assert drawn(run, learner) is None
    assert (asks(first), asks(second)) == (True, False)
    second.send(rows(4, version=10))
    assert drawn(run, learner) == [*range(8)]


def test_a_restarted_coordinator_drops_what_was_late_before_it_died(tmp_path: Path) -> None:
    run = Run(config(tmp_path, rollout_share=0.5, late_transitions="use"))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    learner.publish(10)
    second.send(rows(4))
    learner.publish(5)  # another learner, which continues from an older checkpoint
    first.send(rows(8, version=10))
    first.send(rows(12, version=5))
    before = (drawn(run, learner), run.counts.too_old)
    run.restart()
    assert before == ([*range(12, 16)], 4)
    assert (drawn(run, learner), run.counts.too_old) == before


def test_a_learner_that_continues_from_the_same_version_learns_from_the_same_rollout(tmp_path: Path) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    second.send(rows(4))
    before = drawn(run, learner)
    learner.call("disconnect")
    other = Worker(run, "learner")
    other.take()
    other.publish(0)
    assert drawn(run, other) == before == [*range(8)]


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_serials_grow_after_a_power_failure_that_has_lost_publications(
    tmp_path: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the machine was restarted, the database may be without the newest publications, which are not synced."""
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    serials, records = [], []
    for version in (0, 10, 20, 30):
        serials.append(learner.publish(version))
        first.send(rows(0, version))
        second.send(rows(4, version))
        records.append(dict(run.coordinator.run.database.read("policy")))
    monkeypatch.setattr(publications, "_boot", lambda: "another start of the machine")
    run.coordinator.run.database.write({("policy", name): one for name, one in records[3 - lost].items()})
    for _ in range(2):
        run.restart()  # the second time without a restart of the machine
        for version in (10, 20):  # the learner continues from an older checkpoint
            serials.append(learner.publish(version))
            assert serials[-1] > serials[-2]  # otherwise a collector would not take them for newer ones
            assert drawn(run, learner) is None
            first.send(rows(8, version))
            second.send(rows(12, version))
            assert drawn(run, learner) == [*range(8, 16)]


def test_a_collector_that_had_fetched_a_lost_publication_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(config(tmp_path))
    learner, (first, second) = team(run)
    learner.publish(0)
    first.send(rows(0))
    second.send(rows(4))
    known = dict(run.coordinator.run.database.read("policy"))
    fetched = learner.publish(10)  # nothing collected with it was accepted yet
    run.coordinator.run.database.write({("policy", name): one for name, one in known.items()})
    monkeypatch.setattr(publications, "_boot", lambda: "another start of the machine")
    run.restart()
    run.restart()
    assert learner.publish(0) > fetched


def test_first_publication_of_a_lost_database_is_skipped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(config(tmp_path))
    learner, _ = team(run)
    fetched = learner.publish(0)
    run.coordinator.run.database.write(dict.fromkeys(("policy", name) for name in [learner.info()["policy_id"]]))
    monkeypatch.setattr(publications, "_boot", lambda: "another start of the machine")
    run.restart()
    assert learner.publish(0) > fetched


@pytest.mark.parametrize("restarts", ["none", "journal", "snapshot"])
def test_transitions_of_the_same_version_before_a_learner_went_back_are_dropped(tmp_path: Path, restarts: str) -> None:
    run = Run(config(tmp_path, rollout_share=0.5))
    learner, (first, second) = team(run)
    path = learner.info()["policy_id"]
    serials = {version: learner.publish(version) for version in (0, 10)}
    for version in (0, 10):  # the learner continues from an older checkpoint, and learns something else
        new = learner.publish(version)
        if version == 10:
            second.send(rows(4, version=10), serials={path: serials[10]})  # collected with the weights before
        if restarts == "snapshot":
            run.coordinator.save()
        if restarts != "none":
            run.restart()
        assert drawn(run, learner) is None
        first.send(rows(8, version=version), serials={path: new})
        assert drawn(run, learner) == [*range(8, 12)]
    assert run.counts.too_old == 4


def test_late_transitions_are_fewer_than_two_rollouts() -> None:
    rollout = Rollout(RolloutSettings(size=8, share=0.5, uses_late=True))
    rollout.begin(1, 10)
    rollout.begin(2, 20)
    kept = [rollout.push(rows(4 * number, version=10), "a", 0, number) for number in range(4)]
    assert kept == [4, 4, 0, 0]
    assert rollout.push(rows(16, version=20), "a", 0, 5) == 4
    assert rollout.is_complete


# ---------------------------------------------------------------------- settings


def refused(**changed: Any) -> str:
    cfg: dict[str, Any] = {"main": {"policy": PPO, **changed.pop("main", {})}, "system": changed}
    with pytest.raises(ValueError, match="must be") as caught:
        Coordinator(cfg, MemoryStore())
    return str(caught.value)


def test_settings_without_effect_for_rollouts_are_refused(tmp_path: Path) -> None:
    exp_name = {"main": {"exp_name": str(tmp_path)}}
    for name, value in {"samples_per_insert": 2.0, "tolerance": 3.0, "max_policy_lag": 3}.items():
        found = refused(coordinator={name: value}, **exp_name)
        assert found.startswith(f"system.coordinator.{name} must be")
        assert "'ppo', which learns from rollouts of its newest weights" in found
    assert "send_policy_freq must be 1" in refused(learner={"send_policy_freq": 2}, **exp_name)
    assert "prefetch must be 0, or left out" in refused(learner={"prefetch": 2}, **exp_name)
    assert "update_policy_second must be 0" in refused(collector={"update_policy_second": 1.0}, **exp_name)
    of_replay = {"main": {"exp_name": str(tmp_path), "policy": {"type": "dqn"}}}
    assert "rollout_share must be 1.0 with 'dqn'" in refused(coordinator={"rollout_share": 0.5}, **of_replay)


def test_a_rollout_is_for_all_ranks_whose_number_the_config_says(tmp_path: Path) -> None:
    exp_name, two = {"main": {"exp_name": str(tmp_path)}}, {"multi_gpu": True, "trainer": {"devices": 2}}
    assert "trainer.devices must be set with multi_gpu with 'ppo'" in refused(learner={"multi_gpu": True}, **exp_name)
    automatic = {"multi_gpu": True, "trainer": {"devices": "auto"}}
    assert "trainer.devices must be an integer >= 1 with multi_gpu" in refused(learner=automatic, **exp_name)
    found = refused(learner=two, coordinator={"rollout_share": 0.05}, **exp_name)
    assert "rollout_share must be so large that 2 ranks can share 1 transitions, got 0.05" in found
    made = config(tmp_path)
    made["system"]["learner"] = two
    run = Run(made)
    learner, (first, second) = team(run)
    assert run.coordinator.run.settings.rollout == RolloutSettings(2 * SIZE)
    assert first.info()["collector_cfg"]["n_sample"] == SIZE
    learner.publish(0)
    assert first.send(rows(0, size=SIZE))["hold"]
    assert drawn(run, learner) is None
    second.send(rows(SIZE, size=SIZE))
    assert len(drawn(run, learner) or []) == 2 * SIZE


def test_share_and_late_transitions_are_checked() -> None:
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match=r"coordinator.rollout_share must be in \(0, 1\]"):
            CoordinatorConfig(rollout_share=share)
    with pytest.raises(ValueError, match=r'coordinator\.late_transitions must be "drop" with rollout_share 1'):
        CoordinatorConfig(late_transitions="use")


@pytest.mark.parametrize(("collectors", "asked", "part"), [(1, None, 8), (3, None, 3), (2, 2, 2)])
def test_the_part_of_a_collector_is_its_share_of_the_rollout(
    tmp_path: Path, collectors: int, asked: int | None, part: int
) -> None:
    cfg = resolve(ParallelConfig, config(tmp_path, collectors=collectors) | {})
    assert cfg.main.policy == PPO
    made = config(tmp_path, collectors=collectors)
    made["system"]["collector"] = {"n_sample": asked}
    _, collector = both(Run(made))
    assert collector.info()["collector_cfg"]["n_sample"] == part
