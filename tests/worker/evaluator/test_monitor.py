"""The monitor: a fixed quota of episodes for each env, and videos that match the returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import VectorEvalMonitor


def frame(value: int, shape: tuple[int, ...] = (2, 3, 1)) -> Any:
    return np.full(shape, value, dtype=np.uint8)


def filmed(returns: dict[int, list[tuple[float, list[int]]]], n_episode: int | None = None) -> VectorEvalMonitor:
    """Return a monitor that saw, in each env, episodes with a return and frames of one colour each."""
    monitor = VectorEvalMonitor(len(returns), n_episode or sum(map(len, returns.values())))
    for env_id, episodes in returns.items():
        for episode_return, colours in episodes:
            for colour in colours:
                monitor.update_video({env_id: frame(colour)})
            monitor.update_reward(env_id, episode_return)
    return monitor


def colours_of(monitor: VectorEvalMonitor, max_frames: int | None = None) -> list[list[int]]:
    """Return the colour of each frame of each film."""
    video = monitor.get_video(max_frames)
    assert video is not None
    assert video.dtype == np.uint8
    assert (video == video[..., :1, :1, :1]).all()
    return video[..., 0, 0, 0].tolist()  # type: ignore[no-any-return]


# ------------------------------------------------------------------ the quota


@pytest.mark.parametrize(("n_episode", "quota"), [(1, [1, 0, 0]), (3, [1, 1, 1]), (8, [3, 3, 2])])
def test_eval_monitor_shares_the_episodes_out_evenly(n_episode: int, quota: list[int]) -> None:
    assert VectorEvalMonitor(3, n_episode).quota.tolist() == quota


def test_eval_monitor_ignores_episodes_beyond_the_quota() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=2)
    for value in (1.0, 99.0):
        monitor.update_info(0, {"length": value})
        monitor.update_reward(0, value)

    assert monitor.get_episode_return() == [1.0]
    assert (monitor.get_episode_info() or {})["length"] == [1.0]


def test_eval_monitor_is_finished_when_every_env_has_delivered() -> None:
    monitor, was_finished = VectorEvalMonitor(env_num=2, n_episode=3), []
    for env_id in (0, 0, 0, 1):
        monitor.update_reward(env_id, 0.0)
        was_finished.append(monitor.is_finished())

    assert was_finished == [False, False, False, True]  # two episodes of env 0 count, one of env 1


def test_eval_monitor_wants_no_episode_of_an_env_without_quota() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=1)

    assert [monitor.wants(0), monitor.wants(1)] == [True, False]


def test_eval_monitor_counts_and_shows_the_newest() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=4)
    monitor.update_reward(1, np.float64(5.0))
    monitor.update_reward(1, torch.tensor(7.0))

    assert (monitor.get_latest_reward(1), monitor.get_current_episode()) == (7.0, 2)


def test_eval_monitor_has_no_newest_return_before_the_first() -> None:
    with pytest.raises(IndexError):
        VectorEvalMonitor(env_num=1, n_episode=1).get_latest_reward(0)


def test_eval_monitor_averages_numbers_and_lists_the_rest() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=2)
    monitor.update_info(1, {"won": True, "map": "north"})
    monitor.update_info(0, {"won": False, "map": "south", "score": 3})

    info = monitor.get_episode_info()

    expected = {"won": [False, True], "map": ["south", "north"], "score": [3], "won_mean": 0.5, "score_mean": 3.0}
    assert info == expected


def test_eval_monitor_knows_nothing_before_the_first_episode() -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)

    assert (monitor.get_episode_info(), monitor.get_episode_return()) == (None, [])


@pytest.mark.parametrize(("env_num", "n_episode", "name"), [(0, 1, "env_num"), (1, 0, "n_episode")])
def test_eval_monitor_refuses_numbers_that_are_none(env_num: int, n_episode: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        VectorEvalMonitor(env_num, n_episode)


def test_eval_monitor_keeps_the_first_episodes_of_an_env_whose_quota_is_full() -> None:
    monitor = filmed({0: [(1.0, [10]), (99.0, [90]), (98.0, [80])], 1: [(2.0, [20])]}, n_episode=2)

    assert monitor.get_episode_return() == [1.0, 2.0]
    assert colours_of(monitor) == [[10], [20]]


def test_eval_monitor_needs_no_info_of_the_first_env() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=2)
    monitor.update_info(1, {"won": 1.0})

    assert monitor.get_episode_info() == {"won": [1.0], "won_mean": 1.0}


def test_eval_monitor_gives_tensors_and_arrays_back_as_plain_python() -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)
    monitor.update_info(0, {"a": torch.tensor([1.0, 2.0]), "b": np.int64(3), "c": {"d": np.array([True])}, "e": "x"})

    info = monitor.get_episode_info()

    assert repr(info) == "{'a': [[1.0, 2.0]], 'b': [3], 'c': [{'d': [True]}], 'e': ['x'], 'b_mean': 3.0}"


# ------------------------------------------------------------------ films


@pytest.mark.parametrize(
    ("n_episode", "shown"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 4]), (6, [0, 2, 3, 5])],
)
def test_video_shows_the_worst_the_medians_and_the_best_episode(n_episode: int, shown: list[int]) -> None:
    ranks = [3, 0, 5, 1, 4, 2]
    order = [rank for rank in ranks if rank < n_episode]  # not sorted, so that ranking has something to do

    monitor = filmed({0: [(float(rank), [rank]) for rank in order]})

    assert colours_of(monitor) == [[rank] for rank in shown]


def test_video_is_of_the_episodes_whose_returns_are_ranked_even_if_envs_take_turns() -> None:
    monitor = VectorEvalMonitor(env_num=2, n_episode=4)
    monitor.update_video({0: frame(1), 1: frame(2)})
    monitor.update_reward(1, 7.0)
    monitor.update_video({0: frame(1), 1: frame(3)})
    monitor.update_reward(0, 9.0)
    monitor.update_reward(1, 1.0)
    monitor.update_video({0: frame(4), 1: frame(99)})  # env 1 has delivered its two episodes
    monitor.update_reward(0, 8.0)

    assert colours_of(monitor) == [[3, 3], [2, 2], [4, 4], [1, 1]]  # returns 1, 7, 8, 9


def test_video_repeats_the_last_frame_of_short_videos() -> None:
    assert colours_of(filmed({0: [(1.0, [10, 11, 12])], 1: [(2.0, [20, 21])]})) == [[10, 11, 12], [20, 21, 21]]


def test_video_keeps_every_pixel_where_it_was() -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)
    drawn = np.random.default_rng(0).integers(0, 256, (5, 4, 7, 3), dtype=np.uint8)  # T, H, W, C
    for one in drawn:
        monitor.update_video({0: np.asfortranarray(one)})
    monitor.update_reward(0, 0.0)

    video = monitor.get_video()

    assert np.array_equal(np.asarray(video), drawn.transpose(0, 3, 1, 2)[None])


def test_video_leaves_episodes_without_frames_out() -> None:
    monitor = filmed({0: [(5.0, []), (1.0, [10])], 1: [(2.0, []), (3.0, [30])]})

    assert colours_of(monitor) == [[10], [30]]


def test_video_is_none_without_frames() -> None:
    assert filmed({0: [(5.0, [])]}).get_video() is None


def test_video_leaves_the_running_episode_out() -> None:
    monitor = filmed({0: [(1.0, [10])]}, n_episode=2)
    monitor.update_video({0: frame(20)})

    assert colours_of(monitor) == [[10]]


def test_dropped_frames_are_those_of_the_running_episode_only() -> None:
    monitor = filmed({0: [(1.0, [10])]}, n_episode=2)
    monitor.update_video({0: frame(20)})
    monitor.drop_video(0)
    monitor.update_video({0: frame(30)})
    monitor.update_reward(0, 2.0)

    assert colours_of(monitor) == [[10], [30]]


@pytest.mark.parametrize(
    ("max_frames", "expected"),
    [
        (7, [[1, 2, 3, 4, 5, 6, 7], [8, 9, 9, 9, 9, 9, 9]]),
        (4, [[1, 3, 5, 7], [8, 8, 8, 8]]),
        (1, [[1], [8]]),
    ],
)
def test_video_takes_every_nth_frame_of_videos_that_are_too_long(max_frames: int, expected: list[list[int]]) -> None:
    assert colours_of(filmed({0: [(1.0, list(range(1, 8)))], 1: [(2.0, [8, 9])]}), max_frames) == expected


def test_frames_of_all_episodes_are_kept_in_little_memory() -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)
    drawn = np.full((400, 600, 3), 255, dtype=np.uint8)
    drawn[200:, 100:150] = 0
    monitor.update_video({0: drawn})

    kept = sum(len(part) for part in monitor._videos[0][0]._frames)

    assert kept < drawn.nbytes / 100


def test_frames_beyond_the_quota_are_not_kept() -> None:
    monitor = filmed({0: [(1.0, [10])], 1: [(2.0, [20])]})
    monitor.update_video({0: frame(99), 1: frame(99)})

    assert [len(film) for films in monitor._videos for film in films] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 3, 1)), r"frame must be a uint8 array of shape \(H, W, C\), got \('float64', \(2, 3, 1\)\)"),
        (np.zeros((2, 3), np.uint8), r"of shape \(H, W, C\), got \('uint8', \(2, 3\)\)"),
        (None, "got 'NoneType'"),
        (np.zeros((4, 3, 1), np.uint8), r"frame must be of shape \(2, 3, 1\), got \(4, 3, 1\)"),
    ],
)
def test_frame_that_is_none_is_refused(given: Any, message: str) -> None:
    monitor = VectorEvalMonitor(env_num=1, n_episode=1)
    monitor.update_video({0: frame(0)})

    with pytest.raises(ValueError, match=message):
        monitor.update_video({0: given})


def test_video_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="max_frames must be >= 1 or None, got 0"):
        filmed({0: [(1.0, [1])]}).get_video(max_frames=0)
