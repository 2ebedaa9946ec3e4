"""Stacks of frames, each frame kept once, against stacks that are kept as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding import nested
from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer, create_buffer
from lightning_ding.worker.buffer.frames import StackedFrames
from lightning_ding.worker.buffer.storage import RingStorage

QUICK = settings(max_examples=50, deadline=None, derandomize=True)
NUM_ENVS = 3

# What happens in an env, and the frame that it shows then; few frames, so that many are equal.
EVENTS = st.tuples(
    st.integers(0, NUM_ENVS - 1), st.sampled_from(["go", "go", "go", "end", "gap"]), st.sampled_from([0, 1, 2, 200])
)
PUSHES = st.lists(st.lists(EVENTS, min_size=1, max_size=12), min_size=1, max_size=7)


class Player:
    """Envs whose observations are stacks of frames; a reset repeats its frame, or begins with zeros."""

    def __init__(self, stack: int, resets: str, shape: tuple[int, ...] = (2, 2)) -> None:
        self.stack, self.resets, self.shape = stack, resets, shape
        self.rows: list[dict[str, Any]] = []
        self._obs = [self._reset(env_id) for env_id in range(NUM_ENVS)]
        self._episode = list(range(NUM_ENVS))

    def play(self, events: list[tuple[int, str, int]]) -> dict[str, Any] | None:
        new = [row for event in events if (row := self._happen(*event)) is not None]
        self.rows += new
        return {key: np.stack([row[key] for row in new]) for key in new[0]} if new else None

    def _happen(self, env_id: int, what: str, value: int) -> dict[str, Any] | None:
        obs = self._obs[env_id]
        next_obs = np.concatenate([obs[1:], self._frame(value)[None]])
        row = {"obs": obs, "next_obs": next_obs, "reward": np.float32(value), "terminated": what == "end"}
        row |= {"truncated": False, "env_id": env_id, "episode_id": self._episode[env_id]}
        self._obs[env_id] = next_obs
        if what == "end":
            self._obs[env_id] = self._reset(value)
            self._episode[env_id] += NUM_ENVS
        return None if what == "gap" else row

    def _frame(self, value: int) -> Any:
        return np.full(self.shape, value, dtype=np.uint8)

    def _reset(self, value: int) -> Any:
        before = self._frame(value) if self.resets == "repeat" else self._frame(0)
        return np.stack([before] * (self.stack - 1) + [self._frame(value)])


def everything(storage: RingStorage, n_step: int = 1) -> dict[str, Any]:
    return storage.gather(storage.newest(storage.count), n_step, 0.5)


def assert_holds(storage: RingStorage, rows: list[dict[str, Any]]) -> None:
    got = everything(storage)
    kept = rows[len(rows) - storage.count :]
    for key in kept[0] if kept else ():
        assert got[key].numpy().tobytes() == np.stack([row[key] for row in kept]).tobytes(), key


def frames_of(storage: RingStorage, leaf: str = "obs") -> StackedFrames:
    frames = storage.frames[leaf]
    assert isinstance(frames, StackedFrames)
    return frames


def without(batch: dict[str, Any], *missing: str) -> dict[str, Any]:
    return {key: value for key, value in batch.items() if key not in missing}


# ------------------------------------------------------------------ what comes out is what was pushed


@QUICK
@given(
    capacity=st.integers(1, 15),
    pushes=PUSHES,
    stack=st.integers(2, 4),
    resets=st.sampled_from(["repeat", "zeros"]),
    missing=st.sampled_from([(), (), ("env_id",), ("episode_id",)]),
)
def test_stacks_come_out_bit_by_bit_as_they_were_pushed(
    capacity: int, pushes: list[list[Any]], stack: int, resets: str, missing: tuple[str, ...]
) -> None:
    storage, player = RingStorage(capacity, stack), Player(stack, resets)
    for events in pushes:
        batch = player.play(events)
        if batch is not None:
            storage.push(without(batch, *missing))

        assert_holds(storage, [without(row, *missing) for row in player.rows])


@QUICK
@given(capacity=st.integers(1, 15), pushes=PUSHES, resets=st.sampled_from(["repeat", "zeros"]))
def test_stacks_pushed_at_once_are_those_pushed_in_parts_and_those_kept_as_they_are(
    capacity: int, pushes: list[list[Any]], resets: str
) -> None:
    at_once, in_parts, plain = RingStorage(capacity, 3), RingStorage(capacity, 3), RingStorage(capacity)
    player = Player(3, resets)
    for events in pushes:
        batch = player.play(events)
        if batch is None:
            continue
        for storage in (at_once, plain):
            storage.push(batch)
        for part in nested.split(batch, 2):
            in_parts.push(part)  # type: ignore[arg-type]

    if plain.count:
        expected = everything(plain, n_step=3)
        for storage in (at_once, in_parts):
            got = everything(storage, n_step=3)
            assert got.keys() == expected.keys()
            for key, values in expected.items():
                assert got[key].equal(values), key


@QUICK
@given(capacity=st.integers(1, 15), before=PUSHES, after=PUSHES)
def test_stacks_resumed_from_a_saved_state_equal_uninterrupted_ones(
    capacity: int, before: list[list[Any]], after: list[list[Any]]
) -> None:
    original, restored, player = RingStorage(capacity, 3), RingStorage(capacity, 3), Player(3, "repeat")
    for events in before:
        if (batch := player.play(events)) is not None:
            original.push(batch)

    restored.load_state_dict(original.state_dict())
    for events in after:
        if (batch := player.play(events)) is not None:
            restored.push(batch)

    assert_holds(restored, player.rows)


def test_final_stack_of_an_episode_is_the_true_one() -> None:
    storage, player = RingStorage(10, 3), Player(3, "repeat")
    batch = player.play([(0, "go", 1), (0, "end", 2), (0, "go", 200)])
    assert batch is not None
    storage.push(batch)

    assert everything(storage)["next_obs"][:, :, 0, 0].tolist() == [[0, 0, 1], [0, 1, 2], [2, 2, 200]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int16])
def test_stacks_keep_their_type(dtype: Any) -> None:
    storage = RingStorage(4, 2)
    obs = np.arange(24, dtype=dtype).reshape(3, 2, 4)
    storage.push({"obs": obs, "next_obs": obs + dtype(1), "env_id": np.arange(3)})

    got = everything(storage)
    assert got["obs"].numpy().dtype == dtype
    np.testing.assert_array_equal(got["next_obs"].numpy(), obs + dtype(1))


def test_stacks_of_frames_that_are_no_numbers_are_kept_too() -> None:
    storage, obs = RingStorage(4, 2), np.full((2, 2, 3), np.nan, dtype=np.float32)
    for _ in range(3):
        storage.push({"obs": obs, "next_obs": obs, "env_id": np.arange(2)})

    assert everything(storage)["obs"].isnan().all()


@pytest.mark.parametrize("with_env_id", [True, False])
def test_observation_may_have_stacked_and_other_entries(with_env_id: bool) -> None:
    storage, player = RingStorage(7, 3), Player(3, "zeros")
    rows: list[dict[str, Any]] = []
    for start in range(0, 24, 4):
        batch = player.play([(i % 2, "end" if i % 7 == 6 else "go", i) for i in range(start, start + 4)])
        assert batch is not None
        speed = np.arange(start, start + 4, dtype=np.float32)[:, None]
        nest = {key: {"image": batch[key], "speed": speed + (key == "next_obs")} for key in ("obs", "next_obs")}
        storage.push(without(batch, *(() if with_env_id else ("env_id",))) | nest)
        rows += [{"image": image, "speed": s} for image, s in zip(batch["next_obs"], speed + 1, strict=True)]

    got = everything(storage)["next_obs"]

    np.testing.assert_array_equal(got["image"].numpy(), [row["image"] for row in rows[-7:]])
    np.testing.assert_array_equal(got["speed"].numpy(), [row["speed"] for row in rows[-7:]])


@pytest.mark.parametrize("buffer_type", ["naive", "advanced", "sequence", "episode"])
def test_frame_stack_changes_no_sample_of_any_buffer(buffer_type: str) -> None:
    config: dict[str, Any] = {"type": buffer_type, "replay_buffer_size": 30}
    config |= {"sequence_length": 3} if buffer_type in ("sequence", "episode") else {}
    plain, stacked = create_buffer(config, seed=0), create_buffer({**config, "frame_stack": 4}, seed=0)
    for env_id in range(5):
        player = Player(4, "repeat")
        batch = player.play([(0, "end" if i == 9 else "go", i + env_id) for i in range(10)])
        assert batch is not None
        for buffer in (plain, stacked):
            buffer.push([batch] if buffer_type == "episode" else batch)

    first, second = plain.sample(2, n_step=2), stacked.sample(2, n_step=2)
    assert all(first[key].equal(second[key]) for key in first)


# ------------------------------------------------------------------ memory


def atari_steps(rng: np.random.Generator, obs: Any, ended: Any) -> tuple[dict[str, Any], Any]:
    """Return a step of 84 x 84 frames, four of a stack, and the next observations after resets."""
    num_envs = len(obs)
    frame = rng.integers(256, size=(num_envs, 1, 84, 84), dtype=np.uint8)
    next_obs = np.concatenate([obs[:, 1:], frame], axis=1)
    columns = {"obs": obs, "next_obs": next_obs, "terminated": ended, "truncated": np.zeros(num_envs, bool)}
    columns |= {"action": np.zeros(num_envs, int), "reward": np.zeros(num_envs, np.float32)}
    columns |= {"env_id": np.arange(num_envs), "episode_id": np.arange(num_envs), "policy_version": np.arange(num_envs)}
    first = np.repeat(rng.integers(256, size=(num_envs, 1, 84, 84), dtype=np.uint8), 4, axis=1)
    return columns, np.where(ended[:, None, None, None], first, next_obs)


@pytest.mark.parametrize("buffer_class", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_transition_of_atari_costs_hardly_more_than_one_frame(buffer_class: type[NaiveReplayBuffer]) -> None:
    rng, size, num_envs = np.random.default_rng(0), 800, 4
    buffer = buffer_class({"replay_buffer_size": size, "frame_stack": 4}, seed=0)
    obs = np.zeros((num_envs, 4, 84, 84), np.uint8)
    most = 0
    for step in range(2 * size // num_envs):
        columns, obs = atari_steps(rng, obs, (step + 25 * np.arange(num_envs)) % 100 == 99)
        buffer.push(columns)
        most = max(most, buffer.nbytes)

    frames = frames_of(buffer._storage)
    written = frames._pool[: frames._fresh].nbytes + frames._number.nbytes + frames._shown.nbytes + frames._free.nbytes
    assert most <= 1.1 * size * 84 * 84
    assert written <= 1.1 * size * 84 * 84
    assert len(frames._pool) == size + size // 16 + 64 * 4  # it never had to grow


def test_unused_frames_are_overwritten() -> None:
    storage, player, rng = RingStorage(20, 4), Player(4, "zeros"), np.random.default_rng(0)
    for _ in range(300):
        events = [(env_id, "end" if rng.random() < 0.3 else "go", int(rng.integers(256))) for env_id in range(NUM_ENVS)]
        batch = player.play(events)
        assert batch is not None
        storage.push(batch)

    # 45 laps. Each row has a separate frame, and where an episode ends or begins up to three more.
    frames = frames_of(storage)
    assert frames._fresh <= 20 * 4
    assert (frames._shown > 0).sum() + len(frames._free) == frames._fresh
    assert_holds(storage, player.rows)


def test_pool_grows_where_episodes_are_so_short_that_it_must() -> None:
    storage, rows = RingStorage(500, 4), []
    rng = np.random.default_rng(0)
    for _ in range(200):
        obs, next_obs = rng.integers(256, size=(2, 5, 4, 3), dtype=np.uint8)  # nothing is shared
        ends = {"terminated": np.ones(5, bool), "truncated": np.zeros(5, bool), "env_id": np.arange(5)}
        storage.push({"obs": obs, "next_obs": next_obs, **ends})
        rows += [{"obs": one, "next_obs": other} for one, other in zip(obs, next_obs, strict=True)]

    assert_holds(storage, rows)
    assert 500 * 8 <= len(frames_of(storage)._pool) <= 500 * 8 * 1.25


def test_many_steps_of_one_env_are_pushed_at_once_in_time_that_grows_with_their_number() -> None:
    from lightning_ding.worker.buffer.links import steps

    env_id = np.array([0, 1, 0, 0, 2, 1, 2, 0])
    assert [(part.start, part.stop) for part in steps(env_id)] == [(0, 2), (2, 3), (3, 6), (6, 8)]
    assert sum(1 for _ in steps(np.zeros(200_000, dtype=int))) == 200_000  # minutes, if each looked at all others


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("obs", [np.zeros((1, 5, 5)), np.zeros((1, 3))])
def test_frame_stack_that_no_observation_has_is_refused(obs: Any) -> None:
    with pytest.raises(ValueError, match=r"frame_stack must be the first axis of an observation, .*, got 3"):
        RingStorage(4, 3).push({"obs": obs, "next_obs": obs})


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"frame_stack must be the first axis of an observation, \{\}, got 3"):
        RingStorage(4, 3).push({"reward": np.zeros(1)})
    with pytest.raises(ValueError, match="frame_stack must be 2, as in the saved state, got 3"):
        RingStorage(4, 3).load_state_dict(RingStorage(4, 2).state_dict())
    with pytest.raises(ValueError, match="frame_stack must be >= 1, got 0"):
        NaiveReplayBuffer({"frame_stack": 0})


def test_stacked_state_survives_torch_save_without_pickle(tmp_path: Any) -> None:
    storage, player = RingStorage(5, 3), Player(3, "zeros")
    batch = player.play([(i % 2, "end" if i % 4 == 3 else "go", i) for i in range(12)])
    assert batch is not None
    storage.push(batch)
    torch.save(storage.state_dict(), tmp_path / "state.pt")

    restored = RingStorage(5, 3)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))

    assert_holds(restored, player.rows)
