"""The benchmarks of frames and of collecting do what they say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks import bare_pixels, collecting, frame_memory, pixels
from benchmarks.frames_env import PreparedFrames
from benchmarks.workload import W4

SHORT = dataclasses.replace(W4, env_steps=W4.warm_up + 2 * W4.num_envs)


def test_an_episode_of_prepared_frames_shows_each_frame_after_the_other() -> None:
    env = PreparedFrames((4, 12, 12))
    obs, _ = env.reset()
    assert all(np.array_equal(frame, obs[0]) for frame in obs)

    ended, steps = False, 0
    while not ended:
        following, _, ended, truncated, _ = env.step(0)
        assert np.array_equal(following[:-1], obs[1:])
        assert not np.array_equal(following[-1], obs[-1])
        assert not truncated
        obs, steps = following, steps + 1
    assert 90 <= steps < 150


def test_a_step_of_prepared_frames_copies_nothing() -> None:
    env = PreparedFrames((4, 12, 12))
    assert np.shares_memory(env.reset()[0], env.step(0)[0])


def test_the_contestants_make_the_updates_of_w4() -> None:
    for result in (bare_pixels.run(SHORT), pixels.run_ours(SHORT)):
        assert (result["env_steps"], result["updates"]) == (144, 4)


def test_w4_stores_each_frame_once() -> None:
    pushed = []
    transitions = frame_memory.fill(lambda step: pushed.append(step["obs"].shape), 16)
    assert transitions == 16
    assert pushed == [(8, 4, 84, 84)] * 2


@pytest.mark.parametrize("policy", ["random", "greedy"])
@pytest.mark.parametrize("contestant", ["gymnasium", "ours"])
def test_collecting_counts_the_steps_of_all_envs(contestant: str, policy: str) -> None:
    make, can_run = collecting.CONTESTANTS[contestant]
    case = collecting.CASES[f"cartpole_sync_8_{policy}"]
    assert can_run(case)
    run, close = make(case)
    assert [run(), run()] == [32, 32]
    close()
