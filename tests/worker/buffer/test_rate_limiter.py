"""The rate limiter: waiting of pushes and samples, timeouts, and counters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lightning_ding.worker import AdvancedReplayBuffer
from lightning_ding.worker.buffer.rate_limiter import RateLimiter, ThroughputConfig

MODULE = "lightning_ding.worker.buffer.rate_limiter"
SHORT = 0.15  # seconds until a wait is an error
LONG = 20.0


def limited(timeout_seconds: float = SHORT, size: int = 1000, **controller: Any) -> AdvancedReplayBuffer:
    limit = {key: controller.pop(key) for key in ("max", "min") if key in controller}
    config = {"push_sample_rate_limit": limit, "timeout_seconds": timeout_seconds, "window_seconds": 1e6} | controller
    return AdvancedReplayBuffer({"replay_buffer_size": size, "thruput_controller": config}, seed=0)


def rewards(*values: float) -> dict[str, Any]:
    return {"reward": np.array(values)}


def push(buffer: AdvancedReplayBuffer, amount: int) -> None:
    buffer.push({"reward": np.zeros(amount)})


@contextmanager
def thread(target: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run ``target`` in a thread during the block, and re-raise its exception at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:  # handed to the test
            errors.append(error)

    started = threading.Thread(target=run)
    started.start()
    yield started
    started.join(timeout=LONG)
    assert not started.is_alive()
    if errors:
        raise errors[0]


# ------------------------------------------------------------------ what the bounds bound


def test_push_waits_where_pushed_by_sampled_would_exceed_max() -> None:
    buffer = limited(max=2.0)
    push(buffer, 10)  # nothing was sampled yet, so nothing is waited for
    buffer.sample(8)
    push(buffer, 6)  # 16 / 8

    bound = r"thruput_controller\.push_sample_rate_limit\.max = 2\.0"
    with pytest.raises(
        TimeoutError, match=rf"a push of 1 waited for 0\.15 s: pushed / sampled would be 2\.1\d, above {bound}"
    ):
        push(buffer, 1)
    assert buffer.count() == 16


def test_sample_waits_where_pushed_by_sampled_would_fall_below_min() -> None:
    buffer = limited(min=0.5)
    push(buffer, 10)
    buffer.sample(10)
    buffer.sample(10)  # 10 / 20

    bound = r"thruput_controller\.push_sample_rate_limit\.min = 0\.5"
    with pytest.raises(
        TimeoutError, match=rf"a sample of 2 waited for 0\.15 s: pushed / sampled would be 0\.45\d, below {bound}"
    ):
        buffer.sample(2)


def test_sample_of_several_minibatches_counts_all_of_them() -> None:
    buffer = limited(min=0.5)
    push(buffer, 10)

    buffer.sample(6, num_batches=3)  # 10 / 18
    with pytest.raises(TimeoutError, match=r"a sample of 18 waited .* would be 0\.27\d"):
        buffer.sample(6, num_batches=3)


def test_sample_waits_until_there_are_so_many_minibatches() -> None:
    buffer = limited(sample_min_limit_ratio=3.0)
    push(buffer, 11)

    why = r"the buffer holds 11 transitions, fewer than thruput_controller\.sample_min_limit_ratio = 3\.0 times 4"
    with pytest.raises(TimeoutError, match=f"a sample of 4 waited for 0.15 s: {why}"):
        buffer.sample(4)
    push(buffer, 1)
    assert len(buffer.sample(4)["reward"]) == 4


def test_sample_waits_for_fresh_transitions_not_for_stale_ones() -> None:
    config = {"sample_min_limit_ratio": 2.0, "timeout_seconds": SHORT}
    buffer = AdvancedReplayBuffer({"max_staleness": 5, "thruput_controller": config}, seed=0)
    buffer.push({"reward": np.zeros(4), "policy_version": np.array([0, 0, 9, 9])})

    with pytest.raises(TimeoutError, match="the buffer holds 2 transitions"):
        buffer.sample(2, cur_learner_iter=10)


def test_nothing_waits_without_limits() -> None:
    buffer = limited(timeout_seconds=1e-9)
    for _ in range(3):
        push(buffer, 1)
        buffer.sample(1, num_batches=50)
        push(buffer, 100)

    assert buffer.pop_metrics()["waited_seconds"] == 0


def test_push_counts_transitions_not_the_entries_of_an_observation() -> None:
    buffer = limited(max=1.0)
    obs = {"left": np.zeros(8), "right": np.zeros(8)}
    buffer.push({"obs": obs, "next_obs": obs, "reward": np.zeros(8), "env_id": np.arange(8)})
    buffer.sample(8)

    with pytest.raises(TimeoutError, match="a push of 8 waited"):
        buffer.push({"obs": obs, "next_obs": obs, "reward": np.zeros(8), "env_id": np.arange(8)})


def test_what_is_refused_is_not_counted() -> None:
    buffer = limited(max=2.0)
    push(buffer, 8)
    for _ in range(10):
        with pytest.raises(ValueError, match="a transition must hold"):
            buffer.push({"other": np.zeros(8)})
        with pytest.raises(ValueError, match="batch_size must be at most the 3"):
            buffer.sample(8, sample_range=slice(0, 3))
    buffer.sample(8)

    push(buffer, 8)  # 16 / 8
    with pytest.raises(TimeoutError, match=r"a push of 8 waited .* pushed / sampled would be 3"):
        push(buffer, 8)


# ------------------------------------------------------------------ two threads


def test_push_waits_for_samples_of_another_thread() -> None:
    buffer = limited(LONG, max=1.0)
    push(buffer, 8)
    buffer.sample(8)

    with thread(lambda: push(buffer, 4)) as pusher:
        pusher.join(timeout=SHORT)
        waits, before = pusher.is_alive(), buffer.count()
        buffer.sample(8)

    assert (waits, before, buffer.count()) == (True, 8, 12)
    assert SHORT * 0.5 < buffer.pop_metrics()["waited_seconds"] < LONG / 2


def test_sample_waits_for_pushes_of_another_thread() -> None:
    buffer, got = limited(LONG, min=1.0), []
    push(buffer, 8)
    buffer.sample(7)

    with thread(lambda: got.append(buffer.sample(4))) as sampler:
        sampler.join(timeout=SHORT)
        waits = sampler.is_alive()
        push(buffer, 8)

    assert (waits, len(got[0]["reward"])) == (True, 4)
    assert SHORT * 0.5 < buffer.pop_metrics()["waited_seconds"] < LONG / 2


def test_two_threads_keep_the_ratio_and_lose_nothing() -> None:
    buffer, ratios = limited(LONG, max=2.0, min=0.5), []
    buffer.push(rewards(*range(8)))
    buffer.sample(4)  # before a sample a push waits for nothing

    def push_all() -> None:
        for start in range(8, 608, 2):
            buffer.push(rewards(start, start + 1))

    def sample_all() -> None:
        for number in range(3, 303):
            buffer.sample(2)
            ratios.append(buffer.push_count / (2 * number))

    with thread(push_all), thread(sample_all):
        pass

    kept = buffer.state_dict()["tensors"]["column/reward"]
    assert kept.tolist() == list(range(608))
    assert min(ratios) >= 0.5 / 1.01
    assert max(ratios) <= 2.0 * 1.01


def test_thread_that_waits_lets_others_use_the_buffer() -> None:
    buffer = limited(LONG, min=1.0)
    push(buffer, 8)
    buffer.sample(8)

    with thread(lambda: buffer.sample(8)) as sampler:
        sampler.join(timeout=SHORT)
        started = time.monotonic()
        state, metrics = buffer.state_dict(), buffer.pop_metrics()
        seconds = time.monotonic() - started
        push(buffer, 16)

    assert seconds < LONG / 2
    assert (state["counters"]["count"], metrics["count"]) == (8, 8)


# ------------------------------------------------------------------ time


def test_wait_is_announced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    buffer = limited(max=1.0)
    push(buffer, 8)
    buffer.sample(8)

    with caplog.at_level(logging.WARNING, logger=MODULE), pytest.raises(TimeoutError):
        push(buffer, 8)

    assert len(caplog.records) == 1
    assert "a push of 8 waits: pushed / sampled would be 2" in caplog.text


def test_time_that_was_waited_in_vain_is_reported_too() -> None:
    buffer = limited(max=1.0)
    push(buffer, 8)
    buffer.sample(8)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            push(buffer, 8)

    assert 2 * SHORT <= buffer.pop_metrics()["waited_seconds"] < 20 * SHORT


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for the clock; ``clock.now`` is the time."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(f"{MODULE}.time", clock)
    return clock


@pytest.mark.parametrize("window_seconds", [5.0, 30.0])
def test_counts_fall_to_a_hundredth_within_the_window(clock: SimpleNamespace, window_seconds: float) -> None:
    config = ThroughputConfig(window_seconds=window_seconds)
    limiter = RateLimiter(config, threading.Condition())
    limiter.pushed += 200
    limiter.sampled += 100

    clock.now = window_seconds / 2
    limiter.wait_to_push(0)
    assert (limiter.pushed, limiter.sampled) == pytest.approx((20, 10))
    clock.now = window_seconds
    limiter.wait_to_push(0)
    assert (limiter.pushed, limiter.sampled) == pytest.approx((2, 1))


def test_pushes_continue_when_old_samples_leave_the_window(clock: SimpleNamespace) -> None:
    buffer = limited(max=1.0, window_seconds=10.0)
    push(buffer, 8)
    buffer.sample(8)

    clock.now = 30.0  # 8 samples then count for 8e-6
    push(buffer, 100)

    assert buffer.count() == 108


def test_timeout_seconds_is_the_longest_wait() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"waited for 0\.3 s"):
        limited(timeout_seconds=0.3, sample_min_limit_ratio=2.0).sample(1)

    assert 0.3 <= time.monotonic() - started < 5


# ------------------------------------------------------------------ config


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        ({"max": 0.0}, r"push_sample_rate_limit\.max must be > 0 or None, got 0"),
        ({"min": -1.0}, r"push_sample_rate_limit\.min must be >= 0, got -1"),
        (
            {"max": 1.0, "min": 1.0},
            r"max must be above min \(1\.0\), so that pushing and sampling do not wait for each other, got 1\.0",
        ),
        ({"window_seconds": 0.0}, r"window_seconds must be > 0, got 0"),
        ({"sample_min_limit_ratio": 0.5}, r"sample_min_limit_ratio must be >= 1, got 0\.5"),
        ({"timeout_seconds": 0.0}, r"timeout_seconds must be > 0, got 0"),
        ({"windowseconds": 1.0}, r"unknown config key 'thruput_controller\.windowseconds'; did you mean"),
    ],
)
def test_thruput_controller_refuses_numbers_that_make_no_sense(controller: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limited(**controller)
