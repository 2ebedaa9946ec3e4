"""How often frames of stacked observations are copied, and the memory that they take."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from benchmarks.frames_env import makers
from lightning_ding.worker.buffer import NaiveReplayBuffer

SHAPE = (4, 36, 36)
STACK_BYTES = int(np.prod(SHAPE))
FRAME_BYTES = STACK_BYTES // 4


@pytest.fixture(scope="module")
def full_buffer() -> NaiveReplayBuffer:
    """Return a full buffer of 2,000 transitions of two envs."""
    buffer = NaiveReplayBuffer({"replay_buffer_size": 2_000, "frame_stack": 4}, seed=0)
    envs: list[Any] = [type(env)(SHAPE, number) for number, env in enumerate(make() for make in makers(2))]
    obs, episode = np.stack([env.reset()[0] for env in envs]), np.arange(2)
    for _ in range(1_100):
        steps = [env.step(0) for env in envs]
        next_obs, ended = np.stack([step[0] for step in steps]), np.array([step[2] for step in steps])
        ends = {"terminated": ended, "truncated": np.zeros(2, dtype=bool)}
        ids = {"env_id": np.arange(2), "episode_id": episode.copy()}
        buffer.push({"obs": obs, "next_obs": next_obs, "reward": np.ones(2, np.float32), **ends, **ids})
        obs = np.stack([env.reset()[0] if end else seen for env, end, seen in zip(envs, ended, next_obs, strict=True)])
        episode = np.where(ended, episode + 2, episode)
    return buffer


@pytest.mark.parametrize("num_batches", [None, 3])
def test_a_minibatch_of_stacks_copies_each_byte_once(full_buffer: NaiveReplayBuffer, num_batches: int | None) -> None:
    tracemalloc.start()
    batch = full_buffer.sample(32, num_batches=num_batches)
    allocated = tracemalloc.get_traced_memory()[1]  # at most, at any time
    tracemalloc.stop()

    stacks = 2 * 32 * (num_batches or 1)  # observations and next observations
    assert batch["obs"].nbytes + batch["next_obs"].nbytes == stacks * STACK_BYTES
    assert stacks * STACK_BYTES <= allocated < stacks * (STACK_BYTES + 128) + 20_000  # no second copy, not of one frame


def test_a_minibatch_of_stacks_takes_one_call_for_all_frames(
    full_buffer: NaiveReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = full_buffer._storage.frames["obs"]
    taken: list[int] = []

    class Pool:
        def take(self, numbers: Any, axis: int) -> Any:
            taken.append(numbers.size)
            return pool.take(numbers, axis=axis)

    pool = column._pool  # type: ignore[attr-defined]
    monkeypatch.setattr(column, "_pool", Pool())
    full_buffer.sample(32, num_batches=2)

    assert taken == [2 * 32 * 4, 2 * 32 * 4]  # frames of the observations, and of the next observations


def test_a_full_buffer_takes_little_more_than_its_frames(full_buffer: NaiveReplayBuffer) -> None:
    per_transition = full_buffer.nbytes / full_buffer.count()

    other = 4 + 1 + 1 + 8 + 8 + 4 + 4 * 4  # reward, ends, ids, link, numbers of the frames
    episodes = 4 * FRAME_BYTES / 90  # an episode has at least 90 steps, and its first stack and last observation
    assert FRAME_BYTES < per_transition < FRAME_BYTES + other + episodes
