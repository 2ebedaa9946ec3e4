"""Metrics, tracking and state of a prioritised buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer
from tests.worker.buffer.priority_toys import buffer_of, prioritised, pushed, rows, weights_of

SaveAndLoad = Callable[[AdvancedReplayBuffer, AdvancedReplayBuffer], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for the clock; ``clock.now`` is the time."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("lightning_ding.worker.buffer.ring_buffer.time", clock)
    return clock


def test_pop_metrics_gives_rates_and_means_of_the_newest_minibatch(clock: SimpleNamespace) -> None:
    buffer = buffer_of(4, alpha=1.0, beta=0.5, anneal_step=10, max_use=3, max_staleness=100)
    buffer.push(rows(*range(6), priority=[1, 1, 1, 1, 1, 1], policy_version=[0, 0, 2, 2, 4, 4]))
    buffer.sample(2, 4)
    batch = buffer.sample(4, 4)
    buffer.update({**batch, "priority": [2.0, 4.0, 6.0, 8.0]})
    clock.now = 2.0

    assert buffer.pop_metrics() == {
        "count": 4,
        "pushed_per_second": 3,
        "sampled_per_second": 3,
        "removed_per_second": 1,
        "beta": pytest.approx(0.7),
        "waited_seconds": 0,
        "priority_mean": pytest.approx(5, rel=1e-4),
        "use_mean": 1.5,  # two of the four were sampled twice
        "staleness_mean": 1,
    }
    clock.now = 3.0
    assert buffer.pop_metrics()["pushed_per_second"] == 0


def test_pop_metrics_counts_what_was_used_up_and_what_was_stale_as_removed(clock: SimpleNamespace) -> None:
    buffer = buffer_of(10, max_use=1, max_staleness=5)
    buffer.push(rows(*range(10), policy_version=[0] * 3 + [9] * 7))
    buffer.sample(4, 9)  # three are stale, four used up
    clock.now = 1.0

    assert (buffer.pop_metrics()["removed_per_second"], buffer.count()) == (7, 3)
    buffer.push(rows(*range(10), policy_version=[9] * 10))  # three more leave; seven had left
    clock.now = 2.0
    assert (buffer.pop_metrics()["removed_per_second"], buffer.count()) == (3, 10)


def test_pop_metrics_knows_of_no_minibatch_after_clear() -> None:
    buffer = prioritised(1, 2, 3)
    buffer.sample(3)
    buffer.clear()

    assert "priority_mean" not in buffer.pop_metrics()


def test_pop_metrics_does_not_depend_on_what_is_done_to_a_minibatch() -> None:
    buffer = prioritised(1, 2, 3)
    before = buffer.sample(3)["replay_buffer_idx"].fill_(10**9)

    assert before.tolist() == [10**9] * 3
    assert buffer.pop_metrics()["priority_mean"] > 1


def test_used_data_is_what_was_overwritten_used_up_stale_or_cleared_each_once() -> None:
    buffer = buffer_of(6, max_use=1, max_staleness=5, enable_track_used_data=True)

    def used() -> list[int]:
        return sorted(buffer.pop_used_data().tolist())

    buffer.push(rows(*range(6), data_id=range(6), policy_version=[0, 0, 9, 9, 9, 9]))
    assert used() == []
    first = buffer.sample(2, cur_learner_iter=9)["data_id"].tolist()
    assert used() == [0, 1, *sorted(first)]
    buffer.push(rows(*range(4), data_id=range(6, 10), policy_version=[9] * 4))  # over 0 to 3
    assert used() == sorted({2, 3} - set(first))
    buffer.push(rows(*range(9), data_id=range(10, 19), policy_version=[9] * 9))  # three of them never stand anywhere
    assert used() == sorted({4, 5, *range(6, 13)} - set(first))
    buffer.clear()
    assert used() == [13, 14, 15, 16, 17, 18]


@pytest.fixture(params=["state_dict", "file", "torch.save"])
def hand_over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SaveAndLoad]:
    """Copy one buffer's state to another, in memory or through a file."""

    def copy(source: AdvancedReplayBuffer, target: AdvancedReplayBuffer) -> None:
        if request.param == "file":
            source.save_data(tmp_path / "buffer.safetensors")
            target.load_data(tmp_path / "buffer.safetensors")
            return
        state = source.state_dict()
        if request.param == "torch.save":
            torch.save(state, tmp_path / "buffer.pt")
            state = torch.load(tmp_path / "buffer.pt", weights_only=True)
        target.load_state_dict(state)

    yield copy  # noqa: PT022


@pytest.mark.parametrize("steps", [3, 14], ids=["partly full", "wrapped"])
@pytest.mark.parametrize("limits", [{}, {"max_use": 2, "max_staleness": 3}], ids=["whole", "with removed rows"])
def test_saving_restores_everything_that_later_samples_depend_on(
    hand_over: SaveAndLoad, steps: int, limits: dict[str, int]
) -> None:
    config = {"beta": 0.5, "anneal_step": 20, **limits}
    original, restored = buffer_of(16, seed=1, **config), buffer_of(16, seed=2, **config)
    restored.push(pushed(50, 8))
    restored.sample(8, 14)
    original.push(pushed(0, steps))
    train_iter = (steps + 1) // 4  # that of the newest policy, or one update older
    batch = original.sample(2, train_iter)
    original.update({**batch, "priority": [9.0, 0.1]})

    hand_over(original, restored)

    assert (restored.count(), restored.push_count, restored.beta) == (original.count(), 2 * steps, original.beta)
    for later in (train_iter, train_iter + 1):
        samples = [buffer.sample(2, later, n_step=2, discount_factor=0.5) for buffer in (original, restored)]
        assert samples[0].keys() == samples[1].keys()
        assert all(samples[0][key].equal(samples[1][key]) for key in samples[0])
        for buffer in (original, restored):
            buffer.update({**samples[0], "priority": [3.0, 4.0]})
            buffer.update({**batch, "priority": [7.0, 7.0]})  # of before it was saved
            buffer.push(pushed(steps, 2))
        assert weights_of(original) == weights_of(restored)
        assert original.count() == restored.count()


def test_saving_without_a_limit_of_use_lets_a_limited_buffer_begin_to_count(hand_over: SaveAndLoad) -> None:
    original, restored = prioritised(1, 1, 1), prioritised(1, 1, 1, max_use=2)
    restored.sample(3)

    hand_over(original, restored)

    counts = Counter(restored.sample(3, num_batches=2)["reward"].flatten().tolist())
    assert counts == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("prioritised_first", [False, True])
def test_saving_refuses_the_state_of_another_type_of_buffer(prioritised_first: bool) -> None:
    uniform = NaiveReplayBuffer({"replay_buffer_size": 3})
    uniform.push(rows(5, 6))
    source: Any
    target: Any
    source, target = (prioritised(1, 2, 3), uniform) if prioritised_first else (uniform, prioritised(1, 2, 3))
    count = target.count()

    with pytest.raises(ValueError, match=r"state must be the state of a .*Buffer, got '.*Buffer'"):
        target.load_state_dict(source.state_dict())

    assert target.count() == count


def test_clear_forgets_transitions_and_priorities() -> None:
    buffer = prioritised(1, 2, 30)
    buffer.sample(3)
    buffer.clear()

    assert (buffer.count(), buffer.push_count) == (0, 0)
    with pytest.raises(ValueError, match="at most the 0 transitions kept"):
        buffer.sample(1)
    buffer.push(rows(7, 8))
    assert set(buffer.sample(2, num_batches=20)["reward"].flatten().tolist()) == {7, 8}
