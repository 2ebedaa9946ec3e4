"""Saving, threads, metrics and tracking of the uniform buffer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import NaiveReplayBuffer, create_buffer
from tests.worker.buffer.uniform_toys import assert_equal, buffer_of, filled, steps


def test_clear_forgets_all_transitions() -> None:
    buffer = filled(5)
    buffer.clear()

    assert (buffer.count(), buffer.push_count, buffer.nbytes) == (0, 0, 0)


def test_clear_forgets_the_links_too() -> None:
    buffer = buffer_of(5)
    buffer.push(steps(0, 2))
    buffer.clear()
    buffer.push(steps(2, 2))  # its first observation is what the last one announced

    assert sorted(buffer.sample(2, n_step=2, discount_factor=0.5)["reward"].tolist()) == [3, 3.5]  # 3; 2 + 3/2


SaveAndLoad = Callable[[NaiveReplayBuffer, NaiveReplayBuffer], None]


@pytest.fixture(params=["state_dict", "file"])
def hand_over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SaveAndLoad]:
    """Copy one buffer's state to another, in memory or through a file."""

    def through_memory(source: NaiveReplayBuffer, target: NaiveReplayBuffer) -> None:
        target.load_state_dict(source.state_dict())

    def through_file(source: NaiveReplayBuffer, target: NaiveReplayBuffer) -> None:
        source.save_data(tmp_path / "buffer.safetensors")
        target.load_data(tmp_path / "buffer.safetensors")

    yield through_memory if request.param == "state_dict" else through_file  # noqa: PT022


@pytest.mark.parametrize("pushed", [6, 26], ids=["partly full", "wrapped"])
def test_saving_restores_transitions_links_and_draws(hand_over: SaveAndLoad, pushed: int) -> None:
    original, restored = buffer_of(20, seed=1), buffer_of(20, seed=2)
    original.push(steps(0, pushed // 2, num_envs=2))
    original.sample(3)

    hand_over(original, restored)

    assert (restored.count(), restored.push_count) == (original.count(), original.push_count)
    sample = {"num_batches": 5, "n_step": 3, "discount_factor": 0.5}
    assert_equal(original.sample(6, **sample), restored.sample(6, **sample))  # type: ignore[arg-type]


@pytest.mark.parametrize("pushed", [6, 26], ids=["partly full", "wrapped"])
def test_saving_lets_later_pushes_find_what_they_follow(hand_over: SaveAndLoad, pushed: int) -> None:
    original, restored = buffer_of(20), buffer_of(20)
    original.push(steps(0, pushed // 2, num_envs=2))
    hand_over(original, restored)

    for buffer in (original, restored):
        for start in range(pushed // 2, pushed // 2 + 8):  # past the end of the ring
            buffer.push(steps(start, 1, num_envs=2))

    got = original.sample(20, n_step=3, discount_factor=0.5)
    assert got["discount"].eq(0.125).sum() == 16  # all but the two newest of each env have three steps
    assert_equal(got, restored.sample(20, n_step=3, discount_factor=0.5))


def test_loading_replaces_the_stored_transitions(hand_over: SaveAndLoad) -> None:
    original, restored = buffer_of(5), buffer_of(5)
    original.push(steps(100, 2))
    restored.push([{"other": 1}, {"other": 2}])

    hand_over(original, restored)

    assert sorted(restored.sample(2)["reward"].tolist()) == [100, 101]


def test_saving_works_for_an_empty_buffer(hand_over: SaveAndLoad) -> None:
    original, restored = buffer_of(5), filled(5)

    hand_over(original, restored)
    restored.push([{"value": 0}, {"value": 1}])

    assert restored.count() == 2


def test_saving_keeps_nested_observations_and_their_types(hand_over: SaveAndLoad) -> None:
    original, restored = buffer_of(5), buffer_of(5)
    obs = {"image": np.arange(3, dtype=np.uint8), "more": {"speed": np.arange(3, dtype=np.float32)}}
    original.push({"obs": obs, "next_obs": obs, "env_id": np.zeros(3, dtype=int)})

    hand_over(original, restored)

    got = restored.sample(3)
    assert got["next_obs"]["image"].dtype == torch.uint8
    assert sorted(got["next_obs"]["more"]["speed"].tolist()) == [0, 1, 2]


def test_saving_refuses_a_buffer_of_another_size(hand_over: SaveAndLoad) -> None:
    with pytest.raises(ValueError, match="replay_buffer_size must be 5, as in the saved state, got 6"):
        hand_over(filled(5), buffer_of(6))


def test_load_data_refuses_another_programs_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, str(tmp_path / "model.safetensors"))

    with pytest.raises(ValueError, match=r"file must be one that save_data wrote, got .*model\.safetensors"):
        buffer_of(5).load_data(tmp_path / "model.safetensors")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for the clock; ``clock.now`` is the time."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("lightning_ding.worker.buffer.ring_buffer.time", clock)
    return clock


def test_pop_metrics_gives_rates_since_the_last_call(clock: SimpleNamespace) -> None:
    buffer = buffer_of(4)
    buffer.push(steps(0, 3))
    buffer.push(steps(3, 7))  # three of them never stand anywhere
    buffer.sample(2, num_batches=5)
    clock.now = 2.0

    rates = {"pushed_per_second": 5, "sampled_per_second": 5, "removed_per_second": 3}
    assert buffer.pop_metrics() == {"count": 4, **rates}
    clock.now = 6.0
    buffer.clear()
    assert buffer.pop_metrics() == {"count": 0, **dict.fromkeys(rates, 0), "removed_per_second": 1}


class Writer:
    """A TensorBoard writer that remembers."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
@pytest.mark.parametrize("monitor_freq", [5, 20])
def test_buffer_by_hand_reports_every_monitor_freq_updates(
    kind: str, monitor_freq: int, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer()
    cfg = {"type": kind, "replay_buffer_size": 20, "monitor_freq": monitor_freq}
    cfg |= {"sequence_length": 1} if kind == "sequence" else {}
    data: Any = steps(0, 10) | {"terminated": np.arange(10) == 9}
    buffer = create_buffer(cfg, tb_logger=writer, exp_name="study", instance_name="replay", seed=0)
    buffer.push([data] if kind == "episode" else data, 77)

    with caplog.at_level(logging.INFO, logger="lightning_ding.study.replay"):
        for train_iter in range(41):
            buffer.sample(1, cur_learner_iter=train_iter)

    count = 1 if kind == "episode" else 10
    times = list(range(monitor_freq, 41, monitor_freq))
    assert [scalar[1:] for scalar in writer.scalars if scalar[0] == "replay_iter/count"] == [(count, t) for t in times]
    assert [scalar[2] for scalar in writer.scalars if scalar[0] == "replay_step/count"] == [77] * len(times)
    lines = [record.getMessage() for record in caplog.records if record.name == "lightning_ding.study.replay"]
    assert len(lines) == len(times)
    assert lines[0].startswith(f"train_iter {monitor_freq}, env_step 77: count {count}, pushed_per_second")


def test_used_data_is_what_was_overwritten_or_cleared_each_once() -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 4, "enable_track_used_data": True})

    def push(start: int, amount: int) -> list[int]:
        buffer.push(steps(start, amount) | {"data_id": np.arange(start, start + amount)})
        return sorted(buffer.pop_used_data().tolist())

    assert push(0, 3) == []
    assert push(3, 3) == [0, 1]
    assert push(6, 11) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]  # 6 to 12 never stand anywhere
    buffer.clear()
    assert sorted(buffer.pop_used_data().tolist()) == [13, 14, 15, 16]
    assert buffer.pop_used_data().tolist() == []


def test_mistakes_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no buffer")
    with pytest.raises(ValueError, match=r"file must be one that save_data wrote, got .*notes\.txt"):
        buffer_of(5).load_data(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        buffer_of(5).load_data(tmp_path / "missing.safetensors")
    with pytest.raises(ValueError, match="data must be transitions with a data_id to track, got"):
        NaiveReplayBuffer({"enable_track_used_data": True}).push(steps(0, 1))
    with pytest.raises(ValueError, match="enable_track_used_data must be True for pop_used_data, got False"):
        filled(3).pop_used_data()
