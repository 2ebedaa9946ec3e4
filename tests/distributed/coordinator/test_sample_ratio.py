"""The limit on samples per insert, for the learner and the collectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.coordinator.sample_ratio import SampleRatio
from lightning_ding.distributed.transport import Refusal
from tests.distributed.coordinator.coordinating import Run, both, config, transitions


def test_collecting_waits_when_learning_is_more_than_the_tolerance_behind() -> None:
    ratio = SampleRatio(samples_per_insert=2.0, warm_up=10, tolerance=3.0, round_size=8)
    ratio.insert(10 + 12)  # 12 * 2 = 24 = three rounds
    assert ratio.may_insert(learner_waits=False)
    ratio.insert(1)
    assert not ratio.may_insert(learner_waits=False)
    assert ratio.may_insert(learner_waits=True)
    ratio.sample(8)
    assert ratio.may_insert(learner_waits=False)


def test_learning_waits_for_the_warm_up_and_when_it_is_the_tolerance_ahead() -> None:
    ratio = SampleRatio(samples_per_insert=2.0, warm_up=10, tolerance=2.0, round_size=8)
    ratio.insert(9)
    assert not ratio.may_sample()
    ratio.insert(1)
    rounds = 0
    while ratio.may_sample():
        ratio.sample(8)
        rounds += 1
    assert rounds == 2
    ratio.insert(4)  # one round more
    assert ratio.may_sample()


@given(
    samples_per_insert=st.floats(0.1, 64),
    tolerance=st.floats(0.01, 8),
    warm_up=st.integers(0, 50),
    block=st.integers(1, 40),
    round_size=st.integers(1, 300),
    turns=st.lists(st.booleans(), max_size=200),
)
def test_never_do_both_sides_wait_and_the_ratio_is_kept(
    samples_per_insert: float, tolerance: float, warm_up: int, block: int, round_size: int, turns: list[bool]
) -> None:
    ratio = SampleRatio(samples_per_insert, warm_up, tolerance, round_size)
    room = tolerance * round_size
    for collects in turns:
        may_insert, may_sample = ratio.may_insert(learner_waits=False), ratio.may_sample()
        assert may_insert or may_sample
        if collects and may_insert:
            ratio.insert(block)
        elif not collects and may_sample:
            ratio.sample(round_size)
        assert ratio.balance >= -room - 1e-6
        assert ratio.balance <= max(room, round_size) + samples_per_insert * block + 1e-6


def test_the_ratio_is_kept_over_a_run_whichever_side_is_slow(tmp_path: Path) -> None:
    for number, (sends, gets) in enumerate([(1, 5), (5, 1)]):
        run = Run(config(tmp_path / str(number), samples_per_insert=4.0, tolerance=2.0))
        learner, collector = both(run)
        for _ in range(60):
            for _ in range(sends):
                collector.send(transitions())
            for _ in range(gets):
                learner.get()
        ratio = run.replay.ratio
        assert ratio.sampled > 100
        assert abs(ratio.sampled - 4 * (ratio.inserted - 4)) <= 2 * 8 + 4 * 4
        assert run.coordinator.status()["samples_per_insert"] == pytest.approx(4.0, rel=0.15)


def test_the_policy_says_the_ratio_if_the_config_does_not(tmp_path: Path) -> None:
    policy = {"learn": {"batch_size": 32, "update_per_collect": 3}, "collect": {"n_sample": 6}}
    run = Run(config(tmp_path / "run", policy))
    assert run.replay.ratio.samples_per_insert == 16.0
    assert run.replay.ratio.warm_up == 32


def test_learner_and_collectors_wait_and_then_continue(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", {"random_collect_size": 8}, samples_per_insert=2.0, tolerance=1.0))
    learner, collector = both(run)
    collector.send(transitions())
    answer = learner.get()
    assert answer["data"] is None
    assert answer["wait"] > 0
    for first in (4, 8, 12):
        assert collector.send(transitions(first=first))["accepted"]
    answer = collector.send(transitions(first=16))
    assert not answer["accepted"]
    assert answer["wait"] > 0
    assert run.counts.env_step == 16
    assert learner.get()["data"] is not None
    assert collector.send(transitions(first=16))["accepted"]
    assert run.replay.stats()["learner_wait"] > 0


def test_waiting_for_newer_data_lets_collectors_in_whatever_the_ratio_says(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", tolerance=1.0, max_policy_lag=10, on_policy_lag="wait"))
    learner, collector = both(run)
    for first in range(0, 16, 4):
        collector.send(transitions(first=first))
    assert not collector.send(transitions(first=16))["accepted"]
    learner.publish(10)
    assert learner.get()["data"] is not None
    learner.publish(11)
    assert learner.get()["data"] is None
    for first in range(16, 40, 4):
        assert collector.send(transitions(first=first))["accepted"]
    assert learner.get()["data"] is None
    assert collector.send(transitions(first=40, version=1))["accepted"]
    assert learner.get()["data"] is not None
    assert run.counts.too_old == 0


@pytest.mark.parametrize("late", [False, True])
def test_data_from_after_the_checkpoint_of_a_learner_do_not_count_as_new_permanently(
    tmp_path: Path, late: bool
) -> None:
    run = Run(config(tmp_path / "run", max_policy_lag=10, on_policy_lag="wait"))
    learner, collector = both(run)
    learner.publish(50)
    for first in range(0, 16, 4):
        collector.send(transitions(first=first, version=50))
    learner.publish(20)  # resumed from its last checkpoint
    assert learner.get()["data"] is not None
    if late:
        collector.send(transitions(first=16, version=50))
    learner.publish(30)
    assert learner.get()["data"] is not None
    learner.publish(31)
    assert learner.get()["data"] is None
    collector.send(transitions(first=20, version=21))
    assert learner.get()["data"] is not None


def test_a_buffer_that_old_data_never_fill_does_not_stop_collectors(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", tolerance=1.0, max_policy_lag=5))
    learner, collector = both(run)
    learner.publish(100)
    for first in range(0, 40, 4):
        assert collector.send(transitions(first=first))["accepted"]
    assert learner.get()["data"] is None
    assert run.counts.too_old == 40


def test_transitions_that_are_used_up_do_not_stop_both_sides(tmp_path: Path) -> None:
    other = {"replay_buffer": {"type": "advanced", "max_use": 1}}
    run = Run(config(tmp_path / "run", {"other": other}, samples_per_insert=50.0, tolerance=1.0))
    learner, collector = both(run)
    done = 0
    for first in range(0, 400, 4):
        collector.send(transitions(first=first))
        done += learner.get(num_batches=1)["data"] is not None
    assert run.counts.env_step == 400
    assert done > 50


def test_a_round_holds_what_was_asked_for(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    env_id = torch.zeros(8, dtype=torch.int64)
    collector.send(transitions(8, env_id=env_id), returns=[3.0], lengths=[8], env_step=8)
    answer = learner.get(4, 3, n_step=2, discount_factor=0.5)
    batch = run.store.get(answer["data"]).tensors
    assert batch["obs"].shape == (3, 4, 2)
    first, reward = batch["obs"][..., 0], batch["reward"]
    whole = first < 7  # the last one has no follower
    assert torch.equal(reward[whole], (first + 0.5 * (first + 1))[whole])
    assert answer["progress"] == {"env_step": 8, "episode": 1, "sample": 8}
    assert answer["episodes"] == {"returns": [3.0], "lengths": [8], "dropped": 0}
    assert learner.get()["episodes"]["returns"] == []
    assert answer["stats"]["buffer_count"] == 8


def test_infos_of_episodes_reach_the_learner(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions(8), returns=[3.0, 4.0], lengths=[4, 4], infos=[{"laps": 2.0}, {}], env_step=8)
    found = learner.get(4, 3)["episodes"]
    assert found == {"returns": [3.0, 4.0], "lengths": [4, 4], "infos": [{"laps": 2.0}, {}], "dropped": 0}


@pytest.mark.parametrize("options", [{"replace": True}, {"n_step": 0}, {"discount_factor": "1"}])
def test_other_options_of_a_round_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    learner, _ = both(Run(config(tmp_path / "run")))
    with pytest.raises(Refusal, match="400"):
        learner.get(**options)


def test_priorities_reach_the_buffer(tmp_path: Path) -> None:
    other = {"replay_buffer": {"type": "advanced", "alpha": 1.0}}
    run = Run(config(tmp_path / "run", {"priority": True, "other": other}))
    learner, collector = both(run)
    collector.send(transitions())
    batch = run.store.get(learner.get(4, 1)["data"]).tensors
    priority = (batch["reward"] == 3.0).float() * 1000
    said = {"priority": priority, **{name: batch[name] for name in ("replay_unique_id", "replay_buffer_idx")}}
    handle = run.store.put("priority", said)
    learner.call("learner_learn_task", info={"learner_step": 1, "learner_done": False, "priority_info": handle})
    again = run.store.get(learner.get(4, 1)["data"]).tensors
    assert again["reward"].unique().tolist() == [3.0]
    bad = run.store.put("priority", said | {"priority": -priority})
    with pytest.raises(Refusal, match="422"):
        learner.call("learner_learn_task", info={"learner_step": 2, "learner_done": False, "priority_info": bad})


def test_priorities_whose_answer_was_lost_may_come_again(tmp_path: Path) -> None:
    other = {"replay_buffer": {"type": "advanced"}}
    run = Run(config(tmp_path / "run", {"priority": True, "other": other}))
    learner, collector = both(run)
    collector.send(transitions())
    batch = run.store.get(learner.get(4, 1)["data"]).tensors
    said = {"priority": batch["reward"] + 1}
    said |= {name: batch[name] for name in ("replay_unique_id", "replay_buffer_idx")}
    info = {"learner_step": 1, "learner_done": False, "priority_info": run.store.put("priority", said)}
    answers = [learner.call("learner_learn_task", info=info) for _ in range(2)]
    assert answers == [{"progress": {"env_step": 4, "episode": 0, "sample": 4}}] * 2


def test_a_question_for_a_round_whose_answer_was_lost_gets_the_same_again(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions(), returns=[3.0], lengths=[4])
    said = {"batch_size": 4, "num_batches": 1, "cur_learner_iter": 0, "rank": 0}
    first = learner.call("learner_get_data_task", **said, number=0)
    assert first["episodes"]["returns"] == [3.0]
    assert learner.call("learner_get_data_task", **said, number=0) == first
    assert run.replay.ratio.sampled == 4
    second = learner.call("learner_get_data_task", **said, number=1)
    assert second["data"] != first["data"]
    assert second["episodes"]["returns"] == []
    other = learner.call("learner_get_data_task", **{**said, "rank": 1}, number=0)
    assert other["data"] not in (first["data"], second["data"])
    for number in range(2, 200):
        learner.call("learner_get_data_task", **said, number=number)
    assert len(run.coordinator._answers) == 64


@pytest.mark.parametrize("amount", [(4, 129), (513, 1), (2**40, 2**40)])
def test_a_round_that_is_far_too_large_is_refused_and_changes_nothing(tmp_path: Path, amount: tuple[int, int]) -> None:
    run = Run(config(tmp_path / "run", samples_per_insert=2.0, tolerance=1.0))
    learner, collector = both(run)
    for first in range(0, 12, 4):
        assert collector.send(transitions(first=first))["accepted"]
    with pytest.raises(Refusal, match="422: a round must have at most 512 transitions"):
        learner.get(*amount)
    assert not collector.send(transitions(first=12))["accepted"]  # it would be with a larger round
    assert learner.get(4, 2)["data"] is not None


def test_unread_rounds_do_not_accumulate(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    collector.send(transitions())
    for _ in range(100):
        assert learner.get()["data"] is not None
    assert len(run.store) == 64


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_nothing_stands_still_in_whatever_order_both_sides_call(data: Any, tmp_path_factory: Any) -> None:
    lag = data.draw(st.sampled_from([{}, {"max_policy_lag": 3, "on_policy_lag": "wait"}, {"max_policy_lag": 3}]))
    tolerance = data.draw(st.sampled_from([0.1, 1.0, 4.0]))
    run = Run(config(tmp_path_factory.mktemp("run"), tolerance=tolerance, **lag))
    learner, collector = both(run)
    known, step = 0, 0
    for _ in range(60):
        if data.draw(st.booleans()):
            known = known if data.draw(st.booleans()) else step  # it may be slow in looking for new weights
            collector.send(transitions(version=known))
        elif learner.get(train_iter=step)["data"] is not None:
            step += 2
            learner.publish(step)
    before = run.counts.env_step, step
    for _ in range(12):  # from now on both do what they can
        collector.send(transitions(version=step))
        if learner.get(train_iter=step)["data"] is not None:
            step += 2
            learner.publish(step)
    assert run.counts.env_step > before[0]
    assert step > before[1]
