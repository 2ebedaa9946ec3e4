"""Buffers used as DI-engine's documentation describes: lists of dicts in and out, its arguments in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from easydict import EasyDict

from lightning_ding.worker import (
    AdvancedReplayBuffer,
    EpisodeReplayBuffer,
    NaiveReplayBuffer,
    SequenceReplayBuffer,
    create_buffer,
)

KINDS = [NaiveReplayBuffer, AdvancedReplayBuffer]


def transition(step: int, done: bool = False, **more: Any) -> dict[str, Any]:
    """Return a transition as a collector of DI-engine returns it."""
    obs, after = torch.full((4,), float(step)), torch.full((4,), step + 1.0)
    own = {"obs": obs, "next_obs": after, "action": torch.tensor([step % 3]), "reward": torch.tensor([float(step)])}
    return {**own, "done": done, "collect_iter": step, **more}


def filled(kind: Any, amount: int = 8, **cfg: Any) -> Any:
    buffer = kind(cfg, seed=0)
    buffer.push([transition(step) for step in range(amount)], 0)
    return buffer


# ------------------------------------------------------------------ lists


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_transitions_are_those_that_were_pushed(kind: Any) -> None:
    buffer = kind(seed=0)
    for step in range(4):
        buffer.push(transition(step), step)
    buffer.push([transition(step) for step in range(4, 8)], 8)

    sampled = buffer.sample(5, 0, as_list=True)

    assert len(sampled) == 5
    for one in sampled:
        pushed = transition(one["collect_iter"])
        assert (type(one["collect_iter"]), one["done"]) == (int, False)
        for name in ("obs", "next_obs", "action", "reward"):
            assert one[name].dtype == pushed[name].dtype
            assert torch.equal(one[name], pushed[name])
    if kind is NaiveReplayBuffer:
        assert sampled[0].keys() == transition(0).keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_batches", [None, 3])
def test_a_list_holds_what_the_columns_hold(kind: Any, num_batches: int | None) -> None:
    columns = filled(kind).sample(4, num_batches=num_batches)
    listed = filled(kind).sample(4, num_batches=num_batches, as_list=True)

    lists = [listed] if num_batches is None else listed
    assert [len(one) for one in lists] == [4] * (num_batches or 1)
    iterations = torch.tensor([[one["collect_iter"] for one in each] for each in lists])
    assert iterations.flatten().tolist() == columns["collect_iter"].flatten().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_nested_observations_stay_nested(kind: Any) -> None:
    buffer = kind(seed=0)
    obs = {"image": np.zeros((2, 2), np.uint8), "speed": 3.0}
    buffer.push({"obs": obs, "next_obs": obs, "reward": 1.0, "done": True})

    (one,) = buffer.sample(1, as_list=True)

    assert one["obs"]["image"].shape == (2, 2)
    assert one["next_obs"]["speed"] == 3.0


def test_discount_is_in_a_list_if_returns_span_several_steps() -> None:
    buffer = NaiveReplayBuffer(seed=0)
    buffer.push([transition(step, done=step == 2, env_id=0) for step in range(3)])

    listed = buffer.sample(3, n_step=2, discount_factor=0.5, as_list=True)

    found = {one["collect_iter"]: (float(one["reward"]), one["discount"], one["done"]) for one in listed}
    assert found == {0: (0 + 0.5 * 1, 0.25, False), 1: (1 + 0.5 * 2, 0.25, True), 2: (2, 0.5, True)}


def test_sequences_are_lists_of_steps_with_masks() -> None:
    buffer = SequenceReplayBuffer({"burn_in": 1, "sequence_length": 2}, seed=0)
    buffer.push([transition(step, done=step == 5, env_id=0) for step in range(6)])

    sampled = buffer.sample(16, 3, 0, as_list=True)

    assert [len(steps) for steps in sampled] == [3] * 16
    for steps in sampled:
        first = steps[0]["collect_iter"]
        assert [one["collect_iter"] for one in steps] == [min(first + place, 5) for place in range(3)]
        assert [one["mask"] for one in steps] == [first + place <= 5 for place in range(3)]
        assert [one["learn_mask"] for one in steps] == [place > 0 and first + place <= 5 for place in range(3)]


def test_episodes_are_lists_of_their_steps() -> None:
    buffer = EpisodeReplayBuffer(seed=0)
    buffer.push([[transition(0), transition(1), transition(2, done=True)], [transition(7, done=True)]])

    episodes = sorted(buffer.sample(2, 0, as_list=True), key=len)

    assert [[one["collect_iter"] for one in episode] for episode in episodes] == [[7], [0, 1, 2]]
    assert episodes[0][0].keys() == transition(0).keys() | {"env_id"}
    (pair,) = buffer.sample(1, 0, num_batches=1, sequence=2, as_list=True)
    assert len(pair[0]) == 2
    assert {"mask", "learn_mask"} <= pair[0][0].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_transitions_can_be_pushed_again(kind: Any) -> None:
    buffer = filled(kind)
    buffer.push(buffer.sample(4, 0, as_list=True), 1)
    assert buffer.count() == 12


# ------------------------------------------------------------------ one or many, before the first push


@pytest.mark.parametrize(
    ("data", "count", "shape"),
    [
        ({"obs": np.zeros(4), "action": np.zeros(2), "reward": np.zeros(1)}, 1, (4,)),
        ({"obs": np.zeros(1), "action": np.zeros(1), "reward": np.zeros(1), "done": False}, 1, (1,)),
        ({"obs": np.zeros(3), "action": 1}, 1, (3,)),
        ({"obs": np.zeros((3, 2)), "reward": np.zeros(3), "done": False}, 1, (3, 2)),  # a reward for each of 3 agents
        ({"obs": np.zeros((3, 2)), "action": np.zeros(3), "reward": np.zeros(3)}, 3, (2,)),
        ({"obs": np.zeros((3, 2)), "done": np.zeros(3, bool)}, 3, (2,)),
        ({"obs": np.zeros((1, 2)), "reward": np.zeros(1), "done": np.zeros(1, bool)}, 1, (2,)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_are_one_number_show_whether_data_are_one_transition(
    kind: Any, data: dict[str, Any], count: int, shape: tuple[int, ...]
) -> None:
    buffer = kind(seed=0)
    buffer.push(data, 0)
    assert buffer.count() == count
    assert buffer.sample(1)["obs"].shape == (1, *shape)


@pytest.mark.parametrize(
    "data",
    [
        {"obs": np.zeros(1), "action": np.zeros(1), "reward": np.zeros(1)},
        {"obs": np.zeros(3), "action": np.zeros(3)},
        {"obs": np.zeros((3, 2)), "done": np.zeros(3), "collect_iter": 1},
    ],
)
def test_data_that_do_not_show_it_are_refused(data: dict[str, Any]) -> None:
    buffer = NaiveReplayBuffer()
    with pytest.raises(ValueError, match=r"must show whether it is one transition or several|same leading axis"):
        buffer.push(data, 0)
    assert buffer.count() == 0


def test_an_entry_that_holds_no_numbers_is_named() -> None:
    with pytest.raises(TypeError, match="prev_state: data must be numbers, got an array of objects: None"):
        NaiveReplayBuffer().push([transition(0, prev_state=None)])
    with pytest.raises(ValueError, match="prev_state must be numbers, got 'object'"):
        NaiveReplayBuffer().push(transition(0, prev_state=None))


def test_priority_none_is_the_priority_of_new_transitions() -> None:
    buffer = AdvancedReplayBuffer({"alpha": 1.0}, seed=0)
    buffer.push([transition(0, priority=None), transition(1, priority=None)], 0)
    buffer.push(transition(2, priority=None), 0)
    buffer.push(transition(3, priority=3.0), 0)
    sampled = buffer.sample(4, 0, as_list=True, num_batches=16)
    found = {one["collect_iter"]: one["priority"] for each in sampled for one in each}
    assert found == {0: 1.0, 1: 1.0, 2: 1.0, 3: pytest.approx(3.00001)}


# ------------------------------------------------------------------ ids and priorities


def test_ids_are_strings_with_the_name_of_the_buffer() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 8}, instance_name="agent_buffer", seed=0)
    buffer.push([transition(step) for step in range(8)], 0)

    sampled = buffer.sample(8, 0, as_list=True)

    assert {one["replay_unique_id"]: one["replay_buffer_idx"] for one in sampled}
    for one in sampled:
        assert one["replay_unique_id"] == f"agent_buffer_{one['collect_iter']}"
        assert (one["replay_buffer_idx"], type(one["IS"])) == (one["collect_iter"], float)


def test_update_takes_lists_of_string_ids_and_skips_what_has_left() -> None:
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 4, "alpha": 1.0}, instance_name="agent", seed=0)
    buffer.push([transition(step) for step in range(4)], 0)
    names = {"replay_unique_id": ["agent_0", "agent_1", "expert_2"], "replay_buffer_idx": [0, 1, 2]}
    buffer.push(transition(4), 1)  # overwrites the first

    buffer.update({**names, "priority": [7.0, 5.0, 9.0]})

    batch = buffer.sample(4, 0, num_batches=16)
    found = dict(zip(batch["collect_iter"].flatten().tolist(), batch["priority"].flatten().tolist(), strict=True))
    assert found == {1: pytest.approx(5.00001), 2: 1.0, 3: 1.0, 4: 1.0}


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, SequenceReplayBuffer, EpisodeReplayBuffer, AdvancedReplayBuffer])
def test_update_without_priorities_does_nothing(kind: Any) -> None:
    kind().update({})


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize("kind", KINDS)
def test_positional_arguments_are_size_iteration_and_range(kind: Any) -> None:
    sampled = filled(kind).sample(2, 0, slice(-2, None))
    assert set(sampled["collect_iter"].tolist()) == {6, 7}
    assert kind().sample.__wrapped__ is not None
    assert filled(kind).sample(size=3, cur_learner_iter=0)["collect_iter"].shape == (3,)
    with pytest.raises(TypeError, match=r"sample\(\) got batch_size twice, also as size"):
        filled(kind).sample(3, batch_size=3, size=3)


def test_the_fourth_argument_of_a_naive_buffer_allows_repetitions() -> None:
    assert len(filled(NaiveReplayBuffer).sample(20, 0, slice(-2, None), True)["collect_iter"]) == 20
    with pytest.raises(ValueError, match="batch_size must be at most the 2 transitions"):
        filled(NaiveReplayBuffer).sample(20, 0, slice(-2, None), False)


def test_positional_arguments_of_an_episode_buffer_are_size_iteration_range_and_repetition() -> None:
    buffer = EpisodeReplayBuffer(seed=0)
    buffer.push([[transition(number, done=True)] for number in range(9)])
    assert set(buffer.sample(40, 0, slice(-4, None, 2), True)["collect_iter"].flatten().tolist()) == {5, 7}
    with pytest.raises(ValueError, match="batch_size must be at most the 2 episodes"):
        buffer.sample(3, 0, slice(-2, None))


def sequences() -> SequenceReplayBuffer:
    buffer = SequenceReplayBuffer(seed=0)
    buffer.push([transition(step, done=step == 9, env_id=0) for step in range(10)])
    return buffer


def test_positional_arguments_of_a_sequence_buffer_are_batch_sequence_and_iteration() -> None:
    assert sequences().sample(5, 3, 1000)["collect_iter"].shape == (3, 5)
    named: Any = sequences()
    assert named.sample(batch=5, sequence=3, cur_learner_iter=1000)["collect_iter"].shape == (3, 5)


def test_a_second_argument_that_could_be_an_iteration_or_a_length_is_refused() -> None:
    with pytest.raises(TypeError, match="pass all three, or name the second one, which is 1000"):
        sequences().sample(5, 1000)
    assert sequences().sample(5, 3, cur_learner_iter=1)["collect_iter"].shape == (3, 5)


def test_mistakes_are_named() -> None:
    buffer = NaiveReplayBuffer()
    buffer.push([{**transition(0, env_id=0), "reward": torch.zeros(2)}])
    with pytest.raises(ValueError, match=r"n_step must be 1 .* without reward \(one number for each transition\)"):
        buffer.sample(1, n_step=2)
    with pytest.raises(ValueError, match="replay_unique_id must hold ids that sample returned, got 'first'"):
        filled(AdvancedReplayBuffer).update(
            {"replay_unique_id": ["first"], "replay_buffer_idx": [0], "priority": [1.0]}
        )
    with pytest.raises(ValueError, match=r"sequence must be given to sample\(\), or sequence_length in the buffer's"):
        sequences().sample(5)


def test_sequences_begin_in_a_range_of_ages_and_at_different_steps() -> None:
    begins = sequences().sample(3, 2, 0, slice(2, 5), False)["collect_iter"][0]
    assert sorted(begins.tolist()) == [2, 3, 4]
    assert set(sequences().sample(30, 2, 0, slice(2, 5))["collect_iter"][0].tolist()) == {2, 3, 4}
    with pytest.raises(ValueError, match="at most the 3 transitions that can begin a sequence kept"):
        sequences().sample(4, 2, 0, slice(2, 5), False)


def test_a_buffer_is_made_with_positional_arguments() -> None:
    buffer: Any = create_buffer(EasyDict(type="advanced", replay_buffer_size=4), None, "run", "agent")
    buffer.push(transition(0), 0)
    assert buffer.sample(1, as_list=True)[0]["replay_unique_id"] == "agent_0"


# ------------------------------------------------------------------ limits and beta


def test_infinity_means_no_limit() -> None:
    inf = float("inf")
    cfg: dict[str, Any] = {
        "max_use": inf,
        "max_staleness": inf,
        "thruput_controller": {"push_sample_rate_limit": {"max": inf}},
    }
    buffer = filled(AdvancedReplayBuffer, **cfg)
    assert (buffer.config.max_use, buffer.config.max_staleness) == (None, None)
    assert not buffer.config.thruput_controller.is_active
    for train_iter in range(50):
        buffer.sample(8, train_iter)
    assert buffer.count() == 8


@pytest.mark.parametrize("value", [0, 1.5, -float("inf")])
def test_a_limit_is_a_whole_number(value: float) -> None:
    with pytest.raises(ValueError, match="max_use must be an int >= 1 or None, got"):
        AdvancedReplayBuffer({"max_use": value})


def test_collect_iter_is_the_age_of_a_transition() -> None:
    buffer = filled(AdvancedReplayBuffer, max_staleness=3)
    assert sorted(buffer.sample(2, 8)["collect_iter"].tolist()) == [6, 7]  # 5 is three updates old
    assert buffer.pop_metrics()["staleness_mean"] == 1.5


def test_beta_continues_from_a_value_that_is_set() -> None:
    buffer = filled(AdvancedReplayBuffer, beta=0.4, anneal_step=60)  # 0.01 for each update
    buffer.sample(1, 10)
    assert buffer.beta == pytest.approx(0.5)

    buffer.beta = 0.2

    assert buffer.beta == 0.2
    buffer.sample(1, 30)
    assert buffer.beta == pytest.approx(0.4)
    other = AdvancedReplayBuffer(buffer.config)
    other.load_state_dict(buffer.state_dict())
    assert other.beta == buffer.beta
    buffer.sample(1, 1000)
    assert buffer.beta == 1.0


@pytest.mark.parametrize(("unit", "steps", "budget"), [("env_step", 100, None), ("budget", 0.5, 200)])
def test_beta_that_is_set_grows_with_env_steps(unit: str, steps: float, budget: int | None) -> None:
    buffer = AdvancedReplayBuffer({"beta": 0.5, "anneal_step": steps, "anneal_unit": unit})
    buffer.budget = budget
    buffer.push(transition(0), 40)
    buffer.beta = 0.1
    buffer.push(transition(1), 80)
    assert buffer.beta == pytest.approx(0.1 + 0.5 * 40 / 100)


def test_beta_without_annealing_stays_as_it_is_set() -> None:
    buffer = filled(AdvancedReplayBuffer, anneal_step=0)
    buffer.beta = 0.9
    buffer.sample(1, 1000)
    assert buffer.beta == 0.9


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_beta_is_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got"):
        AdvancedReplayBuffer().beta = value


# ------------------------------------------------------------------ files and states


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_data_alone_is_pushed(kind: Any) -> None:
    buffer = filled(kind, 2)
    buffer.load_state_dict({"data": [transition(5), None, transition(6)]}, deepcopy=True)
    assert sorted(buffer.sample(4, as_list=True), key=lambda one: one["collect_iter"])[-1]["collect_iter"] == 6
    assert buffer.count() == 4
    with pytest.raises(ValueError, match="deepcopy must be True, because a buffer always copies, got False"):
        buffer.load_state_dict({"data": []}, deepcopy=False)


def test_a_buffer_writes_into_a_folder_that_it_makes(tmp_path: Path) -> None:
    file = str(tmp_path / "run" / "buffer" / "data.hkl")
    filled(NaiveReplayBuffer).save_data(file_name=file)
    buffer: Any = NaiveReplayBuffer()
    buffer.load_data(file_name=file)
    assert buffer.count() == 8
