"""Dropped episodes are removed from every buffer; compared with a list of all pushed transitions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.worker import IBuffer, NaiveReplayBuffer, create_buffer

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
NUM_ENVS = 3
EVENTS = st.tuples(st.integers(0, NUM_ENVS - 1), st.booleans())  # an env steps; whether its episode ends
OPERATIONS = st.lists(
    st.one_of(
        st.lists(EVENTS, min_size=1, max_size=7),
        st.lists(st.integers(0, 9), min_size=1, max_size=3).map(lambda episodes: ("drop", episodes)),
        st.just(("reload", [])),
    ),
    min_size=2,
    max_size=12,
)


class PushedList:
    """Everything that was pushed, the newest last; a transition's number is its place."""

    def __init__(self) -> None:
        self.env: list[int] = []
        self.episode: list[int] = []
        self.is_dropped: list[bool] = []
        self._episodes = NUM_ENVS
        self._of_env = list(range(NUM_ENVS))

    def play(self, events: list[tuple[int, bool]]) -> dict[str, Any]:
        first, ends = len(self.env), [end for _, end in events]
        for env_id, end in events:
            self.env.append(env_id)
            self.episode.append(self._of_env[env_id])
            self.is_dropped.append(False)
            if end:
                self._of_env[env_id] = self._episodes
                self._episodes += 1
        return transitions(first, self.env[first:], self.episode[first:], ends)

    def kept(self, capacity: int) -> list[int]:
        newest = range(max(0, len(self.env) - capacity), len(self.env))
        return [number for number in newest if not self.is_dropped[number]]

    def drop(self, episodes: list[int], capacity: int) -> int:
        gone = [number for number in self.kept(capacity) if self.episode[number] in episodes]
        for number in gone:
            self.is_dropped[number] = True
        return len(gone)

    def chain(self, first: int, length: int) -> list[int]:
        """Return the transitions of an episode from one of them on."""
        of_episode = [number for number in range(first, len(self.env)) if self.episode[number] == self.episode[first]]
        return of_episode[:length]


def transitions(first: int, env_id: list[int], episode: list[int], ends: list[bool]) -> dict[str, Any]:
    """Return transitions that are known by their reward; observations say the number of the step in its episode."""
    number = np.arange(first, first + len(env_id))
    obs = np.array(episode, dtype=np.float32)  # within an episode what follows is equal to what was announced
    return {
        "obs": obs,
        "next_obs": obs,
        "reward": number.astype(np.float32),
        "terminated": np.array(ends),
        "truncated": np.zeros(len(ends), dtype=bool),
        "env_id": np.array(env_id),
        "episode_id": np.array(episode),
    }


def make(kind: str, capacity: int, **config: Any) -> IBuffer:
    own: dict[str, Any] = {"advanced": {"alpha": 0.0}, "sequence": {"sequence_length": 3, "burn_in": 1}}
    return create_buffer({"type": kind, "replay_buffer_size": capacity, **own.get(kind, {}), **config}, seed=0)


def numbers(column: torch.Tensor) -> list[int]:
    return [int(number) for number in column.flatten().tolist()]


# ------------------------------------------------------------------ against the list


@QUICK
@given(st.sampled_from(["naive", "advanced"]), st.integers(3, 12), OPERATIONS)
def test_transitions_of_dropped_episodes_are_never_drawn_and_all_others_are(
    kind: str, capacity: int, operations: list[Any]
) -> None:
    buffer, model = make(kind, capacity), PushedList()
    for operation in operations:
        buffer = play(operation, buffer, model, lambda: make(kind, capacity), capacity)
        kept = model.kept(capacity)
        assert buffer.count() == len(kept)
        if not kept:
            with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions"):
                buffer.sample(1)
            continue
        assert sorted(numbers(buffer.sample(len(kept))["reward"])) == kept  # each of them once
        assert set(numbers(buffer.sample(1, num_batches=30)["reward"])) <= set(kept)
        batch = buffer.sample(1, num_batches=10, n_step=3, discount_factor=0.5)
        for first, total in zip(numbers(batch["number"]), batch["reward"].flatten().tolist(), strict=True):
            assert total == sum(0.5**i * number for i, number in enumerate(model.chain(first, 3)))


@QUICK
@given(st.integers(3, 12), OPERATIONS)
def test_sequences_of_dropped_episodes_are_never_drawn(capacity: int, operations: list[Any]) -> None:
    buffer, model = make("sequence", capacity), PushedList()
    for operation in operations:
        buffer = play(operation, buffer, model, lambda: make("sequence", capacity), capacity)
        kept = model.kept(capacity)
        begins = [number for number in kept if len(model.chain(number, 2)) == 2]
        assert buffer.count() == len(kept)
        if not begins:
            with pytest.raises(ValueError, match=r"burn_in must be below|batch_size must be at most the 0"):
                buffer.sample(1)
            continue
        batch = buffer.sample(60)
        firsts = numbers(batch["reward"][0])
        assert set(firsts) <= set(begins)
        assert len(set(firsts)) > len(begins) / 3
        for first, steps, mask in zip(firsts, batch["reward"].T, batch["mask"].T, strict=True):
            assert numbers(steps[mask]) == model.chain(first, 3)


@QUICK
@given(st.integers(6, 14), st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1), st.data())
def test_dropped_episodes_leave_a_buffer_of_whole_episodes(
    capacity: int, pushes: list[list[int]], data: st.DataObject
) -> None:
    buffer, lengths, dropped = make("episode", capacity), [], set()  # type: tuple[Any, list[int], set[int]]
    for push in pushes:
        ids = range(len(lengths), len(lengths) + len(push))
        flat = [episode for episode, length in zip(ids, push, strict=True) for _ in range(length)]
        ends = [step == length - 1 for length in push for step in range(length)]
        lengths += push
        buffer.push(transitions(sum(lengths) - len(flat), [0] * len(flat), flat, ends))
        gone = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=2, unique=True))
        rows_here = [e for e, length in enumerate(lengths) for _ in range(length)][-capacity:]
        assert buffer.drop_episodes(gone) == sum(e in gone and e not in dropped for e in rows_here)
        dropped |= set(gone)
        kept = [e for e in range(len(lengths)) if sum(lengths[e:]) <= capacity and e not in dropped]
        assert (buffer.count(), buffer.episode_len.tolist()) == (len(kept), [lengths[e] for e in kept])
        if kept:
            buffer, saved = make("episode", capacity), buffer.state_dict()
            buffer.load_state_dict(saved)
            assert sorted(numbers(buffer.sample(len(kept))["episode_id"][0])) == kept


def play(operation: Any, buffer: Any, model: PushedList, make_again: Any, capacity: int) -> Any:
    """Do the same to a buffer and to the list; return the buffer, another one if it was to be loaded again."""
    if isinstance(operation, list):
        pushed = model.play(operation)
        buffer.push({**pushed, "number": pushed["reward"]})
        return buffer
    what, episodes = operation
    if what == "drop":
        before = buffer.sample(1, num_batches=5) if buffer.is_prioritised and buffer.count() else {}
        assert buffer.drop_episodes(episodes) == model.drop(episodes, capacity)
        if before:  # late priorities bring nothing back
            buffer.update({**before, "priority": torch.full((5, 1), 3.0)})
        return buffer
    again = make_again()
    again.load_state_dict(buffer.state_dict())
    return again


# ------------------------------------------------------------------ chance


@pytest.mark.parametrize(
    ("size", "batch_size", "replace"),
    [(100, 4, False), (100, 4, True), (100, 60, False), (12, 2, False), (12, 2, True)],
)
def test_what_is_left_is_drawn_equally_often_and_once_in_a_minibatch(size: int, batch_size: int, replace: bool) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": size}, seed=0)
    episode = [number % 10 for number in range(size)]
    buffer.push(transitions(0, [0] * size, episode, [True] * size))
    buffer.drop_episodes([1, 5, 8])

    got = buffer.sample(batch_size, num_batches=2400 // batch_size * 5, replace=replace)["reward"]

    kept = [number for number in range(size) if episode[number] not in (1, 5, 8)]
    counts, expected = Counter(numbers(got)), got.numel() / len(kept)
    assert set(counts) == set(kept)
    assert sum((counts[number] - expected) ** 2 / expected for number in kept) < len(kept) + 5 * len(kept) ** 0.5
    assert replace or all(len(set(batch)) == batch_size for batch in got.tolist())


def test_range_of_ages_counts_what_is_left() -> None:
    for kind in ("naive", "advanced"):
        buffer: Any = make(kind, 6)
        buffer.push(transitions(0, [0] * 8, [0, 0, 1, 1, 2, 2, 3, 3], [False, True] * 4))  # 2 to 7 are kept
        buffer.drop_episodes([2])

        for ages, expected in ((slice(-3, None), {3, 6, 7}), (slice(0, 2), {2, 3})):
            got = buffer.sample(1, num_batches=60, sample_range=ages)
            assert set(numbers(got["reward"])) == expected
        with pytest.raises(ValueError, match="batch_size must be at most the 3 transitions"):
            buffer.sample(4, sample_range=slice(-3, None))


# ------------------------------------------------------------------ the rest


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
def test_dropping_works_through_a_file_and_ends_when_rows_are_overwritten(kind: str, tmp_path: Path) -> None:
    buffer, fresh = make(kind, 4), make(kind, 4)
    old, new = (
        transitions(0, [0] * 4, [0, 0, 1, 1], [False, True] * 2),
        transitions(4, [0] * 4, [2, 2, 3, 3], [False, True] * 2),
    )
    buffer.push(old)
    assert buffer.drop_episodes([1]) == 2
    assert buffer.drop_episodes([1, 7]) == 0
    buffer.save_data(tmp_path / "buffer")
    loaded = make(kind, 4)
    loaded.load_data(tmp_path / "buffer")
    fresh.push(old)
    for one in (buffer, loaded):
        assert one.count() == (1 if kind == "episode" else 2)
        assert set(numbers(one.sample(1, num_batches=40)["episode_id"])) == {0}
    for one in (loaded, fresh):
        one.push(new)
    assert loaded.count() == fresh.count()
    assert not [name for name in loaded.state_dict()["tensors"] if name.startswith("dropped")]
    assert set(numbers(loaded.sample(1, num_batches=40)["episode_id"])) == {2, 3}


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_what_was_dropped_does_not_come_back_in_a_buffer_that_takes_over_others(kind: str, tmp_path: Path) -> None:
    for name, dropped in (("one", 0), ("other", 1)):
        buffer = make(kind, 4)
        buffer.push(transitions(0, [0] * 4, [0, 0, 1, 1], [False, True] * 2))
        buffer.drop_episodes([dropped])
        buffer.save_data(tmp_path / name)

    merged = make(kind, 4)
    merged.load_files([tmp_path / "one", tmp_path / "other"], np.random.SeedSequence(0))

    assert merged.count() == 4
    assert sorted(numbers(merged.sample(4)["reward"])) == [0, 1, 2, 3]  # two of either


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence"])
def test_dropped_transitions_are_reported_once_as_removed_and_as_used(kind: str) -> None:
    buffer: Any = make(kind, 4, enable_track_used_data=True)
    pushed = transitions(0, [0] * 4, [0, 0, 1, 1], [False, True] * 2)
    buffer.push({**pushed, "data_id": np.arange(4)})
    buffer.pop_metrics()

    buffer.drop_episodes([0])

    metrics = buffer.pop_metrics()
    assert metrics["count"] == 2
    assert metrics["removed_per_second"] > 0
    assert buffer.pop_used_data().tolist() == [0, 1]
    buffer.push({**pushed, "data_id": np.arange(4, 8)})
    assert buffer.pop_used_data().tolist() == [2, 3]
    buffer.drop_episodes([1])
    assert buffer.pop_used_data().tolist() == [6, 7]
    buffer.clear()
    assert buffer.pop_used_data().tolist() == [4, 5]
    assert (buffer.count(), buffer.drop_episodes([0])) == (0, 0)


def test_priority_of_what_was_dropped_does_not_come_back() -> None:
    buffer: Any = make("advanced", 4, alpha=1.0)
    buffer.push(transitions(0, [0] * 4, [0, 0, 1, 1], [False, True] * 2))
    batch = buffer.sample(4)

    buffer.drop_episodes([1])
    buffer.update({**batch, "priority": torch.full((4,), 9.0)})

    weights = buffer.state_dict()["tensors"]["own/weight"].tolist()
    assert weights == pytest.approx([9, 9, 0, 0], rel=1e-4)
    assert set(buffer.sample(2, num_batches=30)["IS"].flatten().tolist()) == {1.0}


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
def test_dropping_needs_to_know_the_episode_of_a_transition(kind: str) -> None:
    buffer: Any = make(kind, 4)
    assert buffer.drop_episodes([3]) == 0  # nothing is here
    pushed = transitions(0, [0, 0], [0, 0], [False, True])
    del pushed["episode_id"]
    buffer.push([pushed] if kind == "episode" else pushed)

    assert buffer.drop_episodes([]) == 0
    with pytest.raises(ValueError, match="drop_episodes must be for transitions with an episode_id, got"):
        buffer.drop_episodes([3])
