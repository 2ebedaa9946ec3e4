"""Whole episodes: how they come in, leave, and are cut into windows."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.worker import EpisodeReplayBuffer

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def buffer_of(size: int = 100, seed: int = 0, **config: Any) -> EpisodeReplayBuffer:
    return EpisodeReplayBuffer({"replay_buffer_size": size, **config}, seed=seed)


def episode(name: float, length: int, ending: str = "terminated") -> dict[str, Any]:
    """Return an episode whose rewards are 100 name + step, and whose observations are nested."""
    step, is_last = np.arange(length, dtype=np.float32), np.arange(length) == length - 1
    return {
        "obs": {"place": 100 * name + step, "speed": step},
        "next_obs": {"place": 100 * name + step + 1, "speed": step + 1},
        "reward": 100 * name + step,
        "terminated": is_last & (ending == "terminated"),
        "truncated": is_last & (ending == "truncated"),
    }


def transitions(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return columns as a list of dicts."""

    def at(column: Any, step: int) -> Any:
        return {key: at(below, step) for key, below in column.items()} if isinstance(column, dict) else column[step]

    return [at(columns, step) for step in range(len(columns["reward"]))]


# ------------------------------------------------------------------ pushing


def test_push_takes_a_list_of_columns() -> None:
    buffer = buffer_of()
    buffer.push([episode(1, 3), episode(2, 2, "truncated")])

    assert (buffer.count(), buffer.push_count, buffer.episode_len.tolist()) == (2, 5, [3, 2])


def test_push_takes_a_list_of_lists_of_transitions() -> None:
    by_columns, by_lists = buffer_of(), buffer_of()
    by_columns.push([episode(1, 3), episode(2, 2)])
    by_lists.push([transitions(episode(1, 3)), transitions(episode(2, 2))])

    first, second = by_columns.sample(2), by_lists.sample(2)
    assert first["obs"]["place"].equal(second["obs"]["place"])
    assert first["reward"].equal(second["reward"])


@pytest.mark.parametrize("as_tensors", [False, True])
def test_push_takes_transitions_of_interleaved_episodes(as_tensors: bool) -> None:
    parts = [episode(7, 3) | {"episode_id": np.full(3, 9)}, episode(8, 2) | {"episode_id": np.full(2, 4)}]
    order = [0, 3, 1, 4, 2]  # 7, 8, 7, 8, 7

    def interleaved(*columns: Any) -> Any:
        if isinstance(columns[0], dict):
            return {key: interleaved(*(column[key] for column in columns)) for key in columns[0]}
        joined = np.concatenate(columns)[order]
        return torch.from_numpy(joined) if as_tensors else joined

    buffer = buffer_of()
    buffer.push(interleaved(*parts))

    assert buffer.episode_len.tolist() == [3, 2]  # 7 began first
    got = buffer.sample(1, num_batches=20)
    columns = {tuple(column) for column in got["reward"][..., 0].tolist()}
    assert {tuple(dict.fromkeys(column)) for column in columns} == {(700, 701, 702), (800, 801)}


def test_push_of_several_times_adds() -> None:
    buffer = buffer_of()
    for name in range(4):
        buffer.push([episode(name, name + 1)])

    assert buffer.episode_len.tolist() == [1, 2, 3, 4]


def test_push_of_nothing_changes_nothing() -> None:
    buffer = buffer_of()
    buffer.push([])
    buffer.push({"episode_id": np.empty(0, int), "terminated": np.empty(0, bool), "truncated": np.empty(0, bool)})

    assert (buffer.count(), buffer.push_count) == (0, 0)


def test_push_takes_a_copy() -> None:
    buffer, data = buffer_of(), episode(1, 3)
    buffer.push([data])
    assert data.keys() == episode(1, 3).keys()
    data["reward"][:] = 0

    assert buffer.sample(1)["reward"].flatten().tolist() == [100, 101, 102]


UNFINISHED = episode(2, 3) | {"terminated": np.zeros(3, bool)}
ENDED_TWICE = episode(2, 3) | {"truncated": np.array([True, False, False])}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (UNFINISHED, r"an episode must be ended by its last step of 3 and no other, got \[\]"),
        (ENDED_TWICE, r"an episode must be ended by its last step of 3 and no other, got \[0, 2\]"),
        (episode(2, 11), r"an episode must be at most replay_buffer_size \(10\) long, got 11"),
        (episode(2, 0), r"an episode must be ended by its last step of 0"),
        ({"reward": np.zeros(2)}, r"data must be with terminated and truncated, or done, got \['reward'\]"),
        (transitions(episode(2, 1))[0], "an episode must be columns with a leading axis, or a list of transitions"),
        ({**episode(2, 2), "extra": np.zeros(2)}, "every item must have the keys"),
        ({**episode(2, 2), "reward": np.zeros((2, 1))}, "reward: cannot join shapes"),
        ({**episode(2, 2), "reward": np.zeros(3)}, "the same leading axis"),
    ],
)
def test_push_of_a_list_with_a_wrong_episode_stores_none_of_its_episodes(wrong: Any, message: str) -> None:
    buffer = buffer_of(10)
    buffer.push([episode(0, 4)])

    with pytest.raises(ValueError, match=message):
        buffer.push([episode(1, 2), wrong])

    assert (buffer.push_count, buffer.episode_len.tolist()) == (4, [4])
    assert buffer.sample(1)["reward"].flatten().tolist() == [0, 1, 2, 3]


def test_push_of_columns_of_another_form_is_refused() -> None:
    buffer = buffer_of(10)
    buffer.push([episode(0, 4)])

    with pytest.raises(ValueError, match="a transition must hold"):
        buffer.push([{**episode(1, 2), "extra": np.zeros(2)}])

    assert buffer.episode_len.tolist() == [4]


def test_push_of_a_flat_batch_needs_episode_ids() -> None:
    with pytest.raises(ValueError, match=r"data must be a list of episodes, or transitions with episode_id"):
        buffer_of().push(episode(1, 3))


# ------------------------------------------------------------------ leaving


@QUICK
@given(capacity=st.integers(5, 25), lengths=st.lists(st.lists(st.integers(1, 5), max_size=6), max_size=8))
def test_buffer_keeps_the_newest_episodes_that_fit_as_a_whole(capacity: int, lengths: list[list[int]]) -> None:
    buffer, kept, name = buffer_of(capacity), deque[tuple[int, int]](), 0
    for part in lengths:
        buffer.push([episode(name + i, length) for i, length in enumerate(part)])
        kept.extend((name + i, length) for i, length in enumerate(part))
        name += len(part)
        while sum(length for _, length in kept) > capacity:
            kept.popleft()

        assert buffer.count() == len(kept)
        assert buffer.episode_len.tolist() == [length for _, length in kept]
        if kept:
            got = buffer.sample(len(kept))
            whole = {(episode_name, step) for episode_name, length in kept for step in range(length)}
            rewards = got["reward"][got["mask"]].int().tolist()
            assert sorted((reward // 100, reward % 100) for reward in rewards) == sorted(whole)


def test_episode_len_of_a_partly_filled_buffer_counts_what_is_there() -> None:
    buffer = buffer_of(1000)

    assert buffer.episode_len.tolist() == []
    buffer.push([episode(1, 7)])
    assert buffer.episode_len.tolist() == [7]


def test_episode_len_cannot_be_changed_from_outside() -> None:
    buffer = buffer_of()
    buffer.push([episode(1, 3)])
    buffer.episode_len[:] = 99

    assert buffer.episode_len.tolist() == [3]


def test_clear_forgets_all_episodes() -> None:
    buffer = buffer_of(10)
    buffer.push([episode(1, 3), episode(2, 5)])
    buffer.clear()

    assert (buffer.count(), buffer.push_count, buffer.episode_len.tolist()) == (0, 0, [])
    buffer.push([episode(3, 4)])
    assert buffer.sample(1)["reward"].flatten().tolist() == [300, 301, 302, 303]


# ------------------------------------------------------------------ whole episodes


def test_sample_gives_whole_episodes_as_long_as_the_longest() -> None:
    buffer = buffer_of()
    buffer.push([episode(1, 2), episode(2, 4)])

    got = buffer.sample(2, discount_factor=0.9)

    order = [0, 1] if got["reward"][0, 0] == 100 else [1, 0]
    assert got["reward"][:, order].T.tolist() == [[100, 101, 101, 101], [200, 201, 202, 203]]
    assert got["mask"][:, order].T.tolist() == [[True, True, False, False], [True] * 4]
    assert got["learn_mask"].equal(got["mask"])
    assert got["obs"]["speed"][:, order].T.tolist() == [[0, 1, 1, 1], [0, 1, 2, 3]]
    assert got["next_obs"]["speed"][:, order].T.tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]
    assert got["terminated"][:, order].T.tolist() == [[False, True, True, True], [False, False, False, True]]
    assert got["discount"].unique().tolist() == pytest.approx([0.9])


def test_sample_draws_episodes_equally_often_whatever_their_length() -> None:
    buffer = buffer_of()
    buffer.push([episode(name, 1 + 9 * (name % 2)) for name in range(6)])

    first = buffer.sample(1, num_batches=3000)["reward"][:, 0]
    counts = Counter((first // 100).flatten().tolist())

    assert sum((counts[name] - 500) ** 2 / 500 for name in range(6)) < 20.5  # chi-square, 5 degrees, p = 0.001


def test_sample_holds_an_episode_once_in_a_minibatch_unless_it_may_be_replaced() -> None:
    buffer = buffer_of()
    buffer.push([episode(name, 2) for name in range(5)])

    assert all(len(set(row)) == 4 for row in buffer.sample(4, num_batches=50)["reward"][:, 0].tolist())
    assert buffer.sample(30, replace=True)["reward"].shape == (2, 30)
    with pytest.raises(ValueError, match="batch_size must be at most the 5 episodes kept, without replacement, got 6"):
        buffer.sample(6)


def test_sample_returns_minibatches_along_a_leading_axis() -> None:
    buffer = buffer_of(sequence_length=2)
    buffer.push([episode(name, 3) for name in range(5)])

    got = buffer.sample(4, num_batches=6)

    assert got["reward"].shape == got["mask"].shape == got["learn_mask"].shape == (6, 2, 4)
    assert (got["reward"][:, 1] - got["reward"][:, 0] == 1).all()


def test_sample_sums_the_rewards_of_several_steps_within_an_episode() -> None:
    buffer = buffer_of()
    buffer.push([episode(0, 3), episode(1, 3)])

    got = buffer.sample(2, n_step=2, discount_factor=0.5)

    rewards = sorted(got["reward"].T.tolist())
    assert rewards == [[0.5, 2, 2], [150.5, 152, 102]]  # 0 + 1/2, 1 + 2/2, 2; 100 + 101/2, 101 + 102/2, 102


# ------------------------------------------------------------------ windows


def test_windows_begin_equally_often_wherever_they_fit() -> None:
    buffer = buffer_of(14, sequence_length=3)
    buffer.push([episode(9, 8), episode(0, 6), episode(1, 4), episode(2, 2)])  # 9 left

    got = buffer.sample(3, num_batches=2000)

    columns = Counter(tuple(column) for column in got["reward"].transpose(1, 2).flatten(0, 1).tolist())
    expected = {(float(n), n + 1.0, n + 2.0): 500 for n in range(4)}
    expected |= {(100, 101, 102): 1000, (101, 102, 103): 1000, (200, 201, 201): 2000}
    assert set(columns) == set(expected)
    assert sum((columns[key] - number) ** 2 / number for key, number in expected.items()) < 22.5  # 6 degrees, p = 0.001
    short = got["reward"][:, 0] == 200
    assert got["mask"][:, 2].equal(~short)


def test_window_masks_its_burn_in() -> None:
    buffer = buffer_of(sequence_length=4, burn_in=2)
    buffer.push([episode(1, 3)])

    got = buffer.sample(1)

    assert got["mask"].flatten().tolist() == [True, True, True, False]
    assert got["learn_mask"].flatten().tolist() == [False, False, True, False]


def test_window_may_have_another_length_for_one_call() -> None:
    buffer = buffer_of(sequence_length=4, burn_in=2)
    buffer.push([episode(1, 9)])

    assert len(buffer.sample(1)["reward"]) == 4
    assert len(buffer.sample(1, sequence=3)["reward"]) == 3
    with pytest.raises(ValueError, match=r"sequence must be above burn_in \(2\), got 2"):
        buffer.sample(1, sequence=2)


# ------------------------------------------------------------------ state


@pytest.mark.parametrize("through_file", [False, True])
@pytest.mark.parametrize("amount", [3, 9], ids=["partly full", "wrapped"])
def test_saving_restores_episodes_and_draws(through_file: bool, amount: int, tmp_path: Path) -> None:
    original, restored = buffer_of(20, seed=1, sequence_length=3), buffer_of(20, seed=2, sequence_length=3)
    original.push([episode(name, 2 + name % 3) for name in range(amount)])
    restored.push([episode(50, 2)])

    if through_file:
        original.save_data(tmp_path / "episodes.safetensors")
        restored.load_data(tmp_path / "episodes.safetensors")
    else:
        torch.save(original.state_dict(), tmp_path / "episodes.pt")
        restored.load_state_dict(torch.load(tmp_path / "episodes.pt", weights_only=True))

    assert restored.episode_len.tolist() == original.episode_len.tolist()
    for _ in range(3):
        samples = [buffer.sample(2, num_batches=3, n_step=2, discount_factor=0.5) for buffer in (original, restored)]
        assert all(samples[0][key].equal(samples[1][key]) for key in ("reward", "discount", "mask"))
        for buffer in (original, restored):
            buffer.push([episode(20, 4)])


def test_used_data_of_an_episode_is_reported_when_its_transitions_are_overwritten() -> None:
    buffer = buffer_of(5, enable_track_used_data=True)
    buffer.push([episode(0, 3) | {"data_id": np.arange(3)}])
    buffer.push([episode(1, 4) | {"data_id": np.arange(3, 7)}])
    assert buffer.pop_used_data().tolist() == [0, 1]
    buffer.push([episode(2, 4) | {"data_id": np.arange(7, 11)}, episode(3, 4) | {"data_id": np.arange(11, 15)}])
    assert sorted(buffer.pop_used_data().tolist()) == [*range(2, 10)]


# ------------------------------------------------------------------ what is refused


def test_update_says_that_there_are_no_priorities() -> None:
    with pytest.raises(TypeError, match="stores no priorities"):
        buffer_of().update({"priority": [1.0]})


@pytest.mark.parametrize("replace", [False, True])
def test_sample_refuses_an_empty_buffer(replace: bool) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 episodes kept"):
        buffer_of().sample(1, replace=replace)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"burn_in": 2}, "burn_in must be 0 without sequence_length, got 2"),
        ({"beta": 0.5}, "config key 'beta' does nothing in EpisodeReplayBuffer"),
    ],
)
def test_episode_buffer_refuses_a_config_that_makes_no_sense(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        buffer_of(**config)
