"""Sequences against a list of everything that was pushed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.worker import SequenceReplayBuffer

QUICK = settings(max_examples=80, deadline=None, derandomize=True)
Event = tuple[int, str]  # env, and what happens there

NUM_ENVS = 3
EVENTS = st.tuples(st.integers(0, NUM_ENVS - 1), st.sampled_from(["go", "go", "go", "terminate", "truncate", "gap"]))
PUSHES = st.lists(st.lists(EVENTS, max_size=14), min_size=1, max_size=6)


def buffer_of(size: int, sequence_length: int = 3, burn_in: int = 0, seed: int = 0) -> SequenceReplayBuffer:
    config = {"replay_buffer_size": size, "sequence_length": sequence_length, "burn_in": burn_in}
    return SequenceReplayBuffer(config, seed=seed)


def episode(*rewards: float, ending: str = "terminated", env_id: int = 0) -> dict[str, Any]:
    """Return an episode whose observations are its rewards; what follows the last one is -1."""
    is_last = np.arange(len(rewards)) == len(rewards) - 1
    return {
        "obs": np.array(rewards, dtype=float),
        "next_obs": np.array([*rewards[1:], -1.0]),
        "reward": np.array(rewards, dtype=float),
        "terminated": is_last & (ending == "terminated"),
        "truncated": is_last & (ending == "truncated"),
        "env_id": np.full(len(rewards), env_id),
    }


class PushedList:
    """Everything that was pushed, and for each transition the index of the one that follows it, if it was pushed.

    A reward is a transition's number; a "gap" is a step that is not pushed.
    """

    def __init__(self) -> None:
        self.follower: list[int | None] = []
        self._newest: dict[int, int] = {}  # the transition of each env that waits for its follower
        self._clock = 0.0
        self._obs = [float(-env_id - 1) for env_id in range(NUM_ENVS)]

    def play(self, events: list[Event]) -> dict[str, Any]:
        rows = [row for env_id, what in events if (row := self._happen(env_id, what)) is not None]
        names = {"obs": float, "next_obs": float, "reward": float, "terminated": bool, "truncated": bool, "env_id": int}
        return {name: np.array([row[name] for row in rows], dtype=kind) for name, kind in names.items()}

    def _happen(self, env_id: int, what: str) -> dict[str, Any] | None:
        self._clock += 1
        obs, next_obs = self._obs[env_id], self._clock
        ends = what in ("terminate", "truncate")
        self._obs[env_id] = next_obs + 0.5 if ends else next_obs
        if what == "gap":
            self._newest.pop(env_id, None)
            return None
        number = len(self.follower)
        self.follower.append(None)
        if env_id in self._newest:
            self.follower[self._newest.pop(env_id)] = number
        if not ends:
            self._newest[env_id] = number
        flags = {"terminated": what == "terminate", "truncated": what == "truncate"}
        return {"obs": obs, "next_obs": next_obs, "reward": float(number), "env_id": env_id, **flags}

    def sequence(self, first: int, length: int) -> list[int]:
        """Return the transitions from ``first`` on, at most ``length``, up to the end of what is known."""
        chain: list[int] = []
        number: int | None = first
        while number is not None and len(chain) < length:
            chain.append(number)
            number = self.follower[number]
        return chain


# ------------------------------------------------------------------ against the list


@QUICK
@given(capacity=st.integers(1, 20), pushes=PUSHES, length=st.integers(1, 5), burn_in=st.integers(0, 3))
def test_sequences_are_those_that_a_walk_through_the_list_finds(
    capacity: int, pushes: list[list[Event]], length: int, burn_in: int
) -> None:
    buffer, pushed, length = buffer_of(capacity, length + burn_in, burn_in), PushedList(), length + burn_in
    for events in pushes:
        batch = pushed.play(events)
        if len(batch["reward"]):
            buffer.push(batch)
    kept = range(max(0, len(pushed.follower) - capacity), len(pushed.follower))
    eligible = {number for number in kept if len(pushed.sequence(number, burn_in + 1)) > burn_in}

    if not eligible:
        with pytest.raises(ValueError, match="must be"):
            buffer.sample(1)
        return
    got = buffer.sample(8)

    for column in range(8):
        numbers = got["reward"][:, column].int().tolist()
        expected = pushed.sequence(numbers[0], length)
        assert numbers[0] in eligible
        assert numbers == expected + expected[-1:] * (length - len(expected))
        assert got["mask"][:, column].tolist() == [step < len(expected) for step in range(length)]
        assert got["learn_mask"][:, column].tolist() == [burn_in <= step < len(expected) for step in range(length)]


@pytest.mark.parametrize("burn_in", [0, 2])
def test_sequences_begin_equally_often_wherever_they_may(burn_in: int) -> None:
    buffer = buffer_of(14, 4, burn_in)
    for start, ending in ((0, "terminated"), (6, "terminated"), (10, "truncated"), (11, "running")):
        buffer.push(episode(*range(start, start + {0: 6, 6: 4, 10: 1, 11: 5}[start]), ending=ending))  # 0, 1 leave

    first = buffer.sample(4500)["reward"][0].int().tolist()

    expected = [2, 3, 6, 7, 11, 12, 13] if burn_in else range(2, 16)
    observed = np.bincount(first, minlength=16)
    mean = len(first) / len(expected)
    assert {int(name) for name in observed.nonzero()[0]} == set(expected)
    assert sum((observed[name] - mean) ** 2 / mean for name in expected) < 34.6  # p < 0.001 for up to 14


# ------------------------------------------------------------------ examples


def test_sequence_ends_with_its_episode_and_repeats_its_last_step() -> None:
    buffer = buffer_of(10, sequence_length=4)
    buffer.push(episode(5, 6))
    buffer.push(episode(7, 8, 9))

    got = buffer.sample(60)

    columns = {tuple(rewards): tuple(mask) for rewards, mask in zip(*(got[k].T.tolist() for k in ("reward", "mask")))}  # noqa: B905
    assert columns == {
        (5, 6, 6, 6): (True, True, False, False),
        (6, 6, 6, 6): (True, False, False, False),
        (7, 8, 9, 9): (True, True, True, False),
        (8, 9, 9, 9): (True, True, False, False),
        (9, 9, 9, 9): (True, False, False, False),
    }


def test_sequence_does_not_cross_the_write_head() -> None:
    buffer = buffer_of(4, sequence_length=4)
    for reward in range(6):  # 4 and 5 stand in the places before 2 and 3
        buffer.push(episode(reward, ending="running") | {"next_obs": np.array([reward + 1.0])})

    got = buffer.sample(50)["reward"].T.tolist()

    assert {tuple(row) for row in got} == {(2, 3, 4, 5), (3, 4, 5, 5), (4, 5, 5, 5), (5, 5, 5, 5)}


def test_sequence_takes_another_length_for_one_call() -> None:
    buffer = buffer_of(10, sequence_length=2)
    buffer.push(episode(*range(8)))

    assert buffer.sample(3)["reward"].shape == (2, 3)
    assert buffer.sample(3, sequence=5)["reward"].shape == (5, 3)


def test_sequence_returns_minibatches_along_a_leading_axis() -> None:
    buffer = buffer_of(100, sequence_length=3)
    buffer.push(episode(*range(90)))

    got = buffer.sample(5, num_batches=4)

    assert got["reward"].shape == got["mask"].shape == got["learn_mask"].shape == (4, 3, 5)
    assert got["reward"].is_contiguous()
    first = got["reward"][:, 0]
    assert got["reward"][:, 1][first < 88].equal(first[first < 88] + 1)
    assert got["obs"].equal(got["reward"])
    assert len(first.flatten().unique()) > 10


def test_sequence_burn_in_masks_its_first_steps() -> None:
    buffer = buffer_of(10, sequence_length=4, burn_in=2)
    buffer.push(episode(0, 1, 2))

    got = buffer.sample(1)

    assert got["reward"].flatten().tolist() == [0, 1, 2, 2]
    assert got["mask"].flatten().tolist() == [True, True, True, False]
    assert got["learn_mask"].flatten().tolist() == [False, False, True, False]


def test_sequence_sums_the_rewards_of_several_steps_within_its_episode() -> None:
    buffer = buffer_of(10, sequence_length=3, burn_in=2)
    buffer.push(episode(1, 2, 4))

    got = buffer.sample(1, n_step=2, discount_factor=0.5)

    assert got["reward"].flatten().tolist() == [2, 4, 4]  # 1 + 2/2, 2 + 4/2, 4
    assert got["discount"].flatten().tolist() == [0.25, 0.25, 0.5]
    assert got["next_obs"].flatten().tolist() == [4, -1, -1]


def test_sequence_is_reproducible_from_the_seed() -> None:
    def drawn(seed: int) -> list[Any]:
        buffer = buffer_of(100, burn_in=1, seed=seed)
        buffer.push(episode(*range(50)))
        rewards: list[Any] = buffer.sample(10)["reward"].tolist()
        return rewards

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_sequences_are_restored_with_the_links_that_they_follow() -> None:
    original, restored = buffer_of(20, seed=1), buffer_of(20, seed=2)
    original.push(episode(*range(30)))

    restored.load_state_dict(original.state_dict())

    assert original.sample(9)["reward"].equal(restored.sample(9)["reward"])


# ------------------------------------------------------------------ what is refused


def test_sequence_without_a_place_to_begin_is_an_error_at_once_also_when_others_wait_for_the_lock() -> None:
    buffer = buffer_of(2000, sequence_length=6, burn_in=5)
    for _ in range(100):
        buffer.push(episode(*range(5)))
    counts: list[int] = []
    other = threading.Thread(target=lambda: counts.extend(buffer.state_dict()["counters"]["count"] for _ in range(20)))
    other.start()

    for _ in range(5):
        with pytest.raises(ValueError, match="burn_in must be below the length of an episode in the buffer, got 5"):
            buffer.sample(8)

    other.join(timeout=10)
    assert counts == [500] * 20


def test_sequences_are_found_where_hardly_any_fits() -> None:
    buffer = buffer_of(5000, sequence_length=12, burn_in=10)
    buffer.push(episode(*range(1000, 1012)))
    for _ in range(400):
        buffer.push(episode(*range(10)))

    first = buffer.sample(200)["reward"][0]

    assert set(first.tolist()) == {1000, 1001}


def test_sequence_of_an_empty_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        buffer_of(5).sample(1)


@pytest.mark.parametrize("missing", ["env_id", "terminated", "obs"])
def test_sequence_needs_to_know_what_follows_what(missing: str) -> None:
    buffer = buffer_of(5)
    buffer.push({name: column for name, column in episode(1, 2).items() if missing not in name})

    with pytest.raises(ValueError, match=f"a sequence cannot be followed for transitions without .*{missing}"):
        buffer.sample(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "sequence": 2}, r"sequence must be above burn_in \(2\), got 2"),
        ({"batch_size": 1, "num_batches": 0}, "num_batches must be >= 1 or None, got 0"),
        ({"batch_size": 1, "n_step": 0}, "n_step must be >= 1, got 0"),
    ],
)
def test_sequence_refuses_numbers_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    buffer = buffer_of(5, burn_in=2)
    buffer.push(episode(1, 2, 3))

    with pytest.raises(ValueError, match=message):
        buffer.sample(**arguments)


def test_update_says_that_there_are_no_priorities() -> None:
    with pytest.raises(TypeError, match="stores no priorities"):
        buffer_of(5).update({"priority": [1.0]})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sequence_length": 0}, "sequence_length must be >= 1 or None, got 0"),
        ({"sequence_length": 3, "burn_in": 3}, r"burn_in must be in \[0, sequence_length\) = \[0, 3\), got 3"),
        ({"sequence_length": 3, "alpha": 0.5}, "config key 'alpha' does nothing in SequenceReplayBuffer"),
    ],
)
def test_sequence_buffer_refuses_a_config_that_makes_no_sense(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequenceReplayBuffer(config)
