"""Every buffer distinguishes a single transition from several ones in `push`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import AdvancedReplayBuffer, EpisodeReplayBuffer, NaiveReplayBuffer, SequenceReplayBuffer

KINDS = [NaiveReplayBuffer, AdvancedReplayBuffer, SequenceReplayBuffer]
FORMS = ["one", "list", "columns", "list_of_columns"]
SIZE = 3  # size of an observation, and of batches of the same length


def buffer_of(kind: Any) -> Any:
    return kind({"sequence_length": 2} if kind is SequenceReplayBuffer else None, seed=0)


def transition(step: int) -> dict[str, Any]:
    obs = {"left": np.full(SIZE, step, np.float32), "right": torch.full((SIZE,), float(step))}
    after = {"left": np.full(SIZE, step + 1, np.float32), "right": torch.full((SIZE,), step + 1.0)}
    ends = {"terminated": False, "truncated": np.False_}
    return {"obs": obs, "next_obs": after, "action": np.full(SIZE, step), "reward": float(step), **ends, "env_id": 0}


def columns(*steps: int) -> dict[str, Any]:
    every = [transition(step) for step in steps]

    def stacked(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {name: stacked([value[name] for value in values]) for name in values[0]}
        return np.stack([np.asarray(value) for value in values])

    return {name: stacked([one[name] for one in every]) for name in every[0]}


def push(buffer: Any, form: str, start: int) -> None:
    """Push three transitions in a form."""
    steps = range(start, start + SIZE)
    if form == "one":
        for step in steps:
            buffer.push(transition(step))
    elif form == "list":
        buffer.push([transition(step) for step in steps])
    elif form == "columns":
        buffer.push(columns(*steps))
    else:
        buffer.push([columns(*steps[:2]), columns(*steps[2:])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("then", FORMS)
def test_one_and_many_transitions_are_stored_alike_in_any_order(kind: Any, first: str, then: str) -> None:
    buffer, expected = buffer_of(kind), buffer_of(kind)
    expected.push(columns(*range(2 * SIZE)))

    push(buffer, first, 0)
    push(buffer, then, SIZE)

    assert buffer.count() == 2 * SIZE
    ours, theirs = buffer.sample(2, n_step=2), expected.sample(2, n_step=2)
    assert torch.equal(ours["reward"], theirs["reward"])
    assert torch.equal(ours["action"], theirs["action"])
    for part in ("left", "right"):
        assert torch.equal(ours["next_obs"][part], theirs["next_obs"][part])


@pytest.mark.parametrize("kind", KINDS)
def test_a_transition_whose_entries_have_one_length_is_one_once_the_buffer_knows_the_form(kind: Any) -> None:
    buffer = buffer_of(kind)
    alike = {"obs": np.arange(3.0), "next_obs": np.arange(3.0), "mark": np.arange(3)}

    buffer.push([alike, alike])
    buffer.push(alike)
    buffer.push({name: value[None] for name, value in alike.items()})

    assert buffer.count() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_may_be_one_transition_or_several_is_refused_before_the_first_push(kind: Any) -> None:
    buffer = buffer_of(kind)

    with pytest.raises(ValueError, match="push a list with a dict for each transition"):
        buffer.push({"obs": np.arange(3.0), "next_obs": np.arange(3.0), "mark": np.arange(3)})

    assert buffer.count() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_entries_of_one_length_are_unclear_where_only_a_reward_of_that_length_could_decide(kind: Any) -> None:
    data = {name: np.ones(3) for name in ("obs", "next_obs", "action", "reward")}

    with pytest.raises(ValueError, match="data must show whether it is one transition or several"):
        buffer_of(kind).push(data)  # three transitions, or one with the rewards of three steps

    buffer = buffer_of(kind)
    buffer.push([data])
    assert buffer.count() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_counters_that_are_no_integers_are_named(kind: Any) -> None:
    buffer = buffer_of(kind)
    with pytest.raises(TypeError, match="cur_collector_envstep must be an int, got 'text'"):
        buffer.push(columns(0, 1, 2), "text")
    buffer.push(columns(0, 1, 2))
    with pytest.raises(TypeError, match="cur_learner_iter must be an int, got 'a'"):
        buffer.sample(1, cur_learner_iter="a")


def test_one_transition_brings_its_own_priority() -> None:
    buffer = AdvancedReplayBuffer({"alpha": 1.0}, seed=0)

    buffer.push({"reward": 1.0, "priority": 5.0})
    buffer.push({"reward": 2.0, "priority": 0.0})

    assert buffer.sample(2)["reward"].tolist() == [1.0, 1.0]


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got 'x'"):
        AdvancedReplayBuffer(seed=0).beta = "x"  # type: ignore[assignment]
    buffer = NaiveReplayBuffer(seed=0)
    buffer.push([{"mark": np.arange(3)}])
    buffer.clear()
    with pytest.raises(ValueError, match="push a list"):
        buffer.push({"mark": np.arange(3)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [[1, 2], [[{"reward": 1.0}]]])
def test_what_is_no_transition_is_refused(kind: Any, data: Any) -> None:
    with pytest.raises(TypeError, match="data must be a mapping or a list of mappings"):
        buffer_of(kind).push(data)


@pytest.mark.parametrize("form", ["mapping", "list"])
def test_an_episode_buffer_refuses_a_transition_for_an_episode(form: str) -> None:
    step = {**transition(0), "terminated": True, "episode_id": 0}
    buffer = EpisodeReplayBuffer(seed=0)

    with pytest.raises(ValueError, match="must be"):
        buffer.push(step if form == "mapping" else [step])

    assert buffer.count() == 0


def test_an_episode_of_one_transition_is_a_list_of_one_in_a_list() -> None:
    buffer = EpisodeReplayBuffer(seed=0)

    buffer.push([[{**transition(0), "terminated": True}]])

    assert buffer.episode_len.tolist() == [1]
