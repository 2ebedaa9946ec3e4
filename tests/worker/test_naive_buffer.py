"""The uniform buffer: what it draws, how often, and what survives saving."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.config import to_dict
from lightning_ding.worker import NaiveReplayBuffer, SequenceReplayBuffer, create_buffer, get_buffer_cls
from lightning_ding.worker_config import ReplayBufferConfig


def buffer_of(size: int, seed: int | None = 0) -> NaiveReplayBuffer:
    return NaiveReplayBuffer({"replay_buffer_size": size}, seed=seed)


def steps(start: int, amount: int, num_envs: int = 1) -> dict[str, Any]:
    """Return vector steps ``start`` and on of endless envs; in env i step s, obs is [i, s] and the reward 10 i + s."""
    step, env_id = np.repeat(np.arange(start, start + amount), num_envs), np.tile(np.arange(num_envs), amount)
    return {
        "obs": np.stack([env_id, step], axis=1).astype(np.float32),
        "next_obs": np.stack([env_id, step + 1], axis=1).astype(np.float32),
        "reward": (10.0 * env_id + step),
        "terminated": np.zeros(len(step), dtype=bool),
        "truncated": np.zeros(len(step), dtype=bool),
        "env_id": env_id,
    }


def filled(size: int, seed: int | None = 0) -> NaiveReplayBuffer:
    buffer = buffer_of(size, seed)
    buffer.push(steps(0, size))
    return buffer


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, values in left.items():
        torch.testing.assert_close(values, right[name], rtol=0, atol=0, msg=name)


# ------------------------------------------------------------------ pushing


def test_push_keeps_the_newest() -> None:
    buffer = buffer_of(4)
    for start in range(0, 6, 2):
        buffer.push(steps(start, 2))

    assert sorted(buffer.sample(4)["reward"].tolist()) == [2, 3, 4, 5]


def test_push_counts_what_is_kept_and_what_ever_came() -> None:
    buffer = buffer_of(4)
    buffer.push(steps(0, 3))
    before = buffer.count(), buffer.push_count
    buffer.push(steps(3, 6))

    assert (before, buffer.count(), buffer.push_count) == ((3, 3), 4, 9)


def test_push_of_a_list_is_push_of_the_batch() -> None:
    batch = steps(0, 6, num_envs=2)
    by_batch, by_list = buffer_of(8), buffer_of(8)

    by_batch.push(batch)
    by_list.push([{name: column[i] for name, column in batch.items()} for i in range(12)])

    sample = {"num_batches": 3, "n_step": 2, "discount_factor": 0.5}
    assert_equal(by_batch.sample(5, **sample), by_list.sample(5, **sample))  # type: ignore[arg-type]


def test_push_takes_a_list_of_python_numbers() -> None:
    buffer = buffer_of(4)

    buffer.push([{"reward": 0.5, "env_id": 3, "terminated": True}, {"reward": 1.5, "env_id": 3, "terminated": False}])

    got = buffer.sample(2)
    assert sorted(zip(got["reward"].tolist(), got["terminated"].tolist(), strict=True)) == [(0.5, True), (1.5, False)]


def test_push_takes_tensors_as_it_takes_arrays() -> None:
    of_arrays, of_tensors = buffer_of(4), buffer_of(4)

    of_arrays.push(steps(0, 6))
    of_tensors.push({name: torch.from_numpy(column) for name, column in steps(0, 6).items()})

    assert_equal(of_arrays.sample(4), of_tensors.sample(4))


def test_push_takes_a_copy() -> None:
    buffer, batch = buffer_of(4), steps(0, 4)
    buffer.push(batch)
    for column in batch.values():
        column[...] = 0

    assert sorted(buffer.sample(4)["next_obs"][:, 1].tolist()) == [1, 2, 3, 4]


def test_push_of_nothing_changes_nothing() -> None:
    buffer = buffer_of(4)
    buffer.push([])
    buffer.push(steps(0, 0))

    assert (buffer.count(), buffer.push_count) == (0, 0)


@pytest.mark.parametrize("size", [3, 8])
def test_push_in_parts_is_push_at_once(size: int) -> None:
    at_once, in_parts = buffer_of(size), buffer_of(size)
    batch = steps(0, 5, num_envs=2)

    at_once.push(batch)
    for part in nested.split(batch, 3):
        in_parts.push(part)  # type: ignore[arg-type]

    # The rows lie elsewhere, so the same draws give others; all of them together are the same.
    rewards = [buffer.sample(size, n_step=2, discount_factor=0.5)["reward"].tolist() for buffer in (at_once, in_parts)]
    assert sorted(rewards[0]) == sorted(rewards[1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"env_id": np.array([0, -1])}, "env_id must be >= 0, got -1"),
        ({"env_id": np.array([0.0, 1.0])}, r"env_id must be an integer for each transition, got 'float32 \(\)'"),
        ({"env_id": np.array([[0], [1]])}, r"env_id must be an integer for each transition, got 'int64 \(1,\)'"),
        ({"info": np.array([None, None])}, "info must be numbers, got 'object'"),
        ({"info": np.array(["a", "b"])}, "info must be numbers, got '<U1'"),
    ],
)
def test_push_refuses_what_cannot_be_kept_before_it_keeps_anything(column: dict[str, Any], message: str) -> None:
    buffer = buffer_of(4)

    with pytest.raises(ValueError, match=message):
        buffer.push(steps(0, 2) | column)

    assert (buffer.count(), buffer.push_count) == (0, 0)
    buffer.push(steps(7, 2))
    assert sorted(buffer.sample(2)["reward"].tolist()) == [7, 8]


def test_push_refuses_a_negative_env_later_too_and_evicts_nothing() -> None:
    buffer = filled(4)

    with pytest.raises(ValueError, match="env_id must be >= 0, got -3"):
        buffer.push(steps(4, 2) | {"env_id": np.array([1, -3])})

    assert sorted(buffer.sample(4)["reward"].tolist()) == [0, 1, 2, 3]
    assert (buffer.push_count, buffer.pop_metrics()["removed_per_second"]) == (4, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(2)}, "a transition must hold"),
        ({"reward": np.zeros((2, 1))}, r"reward must have the shape \(\), got \(1,\)"),
        ({"obs": np.zeros((2, 3))}, r"obs must have the shape \(2,\), got \(3,\)"),
        ({"reward": np.zeros(3)}, "the same leading axis"),
        ({"env_id": np.zeros(2)}, "env_id must be of a type that fits int64, got float32"),
    ],
)
def test_push_refuses_what_does_not_fit(change: dict[str, Any], message: str) -> None:
    buffer = buffer_of(4)
    buffer.push(steps(0, 2))

    with pytest.raises(ValueError, match=message):
        buffer.push(steps(2, 2) | change)


def test_push_refuses_a_list_of_transitions_with_different_keys() -> None:
    with pytest.raises(ValueError, match=r"every item must have the keys \['reward'\], got \['action'\]"):
        buffer_of(4).push([{"reward": 1.0}, {"action": 1}])


# ------------------------------------------------------------------ drawing


@pytest.mark.parametrize("num_batches", [None, 1, 40])
@pytest.mark.parametrize("batch_size", [1, 3, 9, 10])
def test_sample_holds_a_transition_once_in_a_minibatch(batch_size: int, num_batches: int | None) -> None:
    rewards = filled(10).sample(batch_size, num_batches=num_batches)["reward"].reshape(-1, batch_size)

    assert len(rewards) == (num_batches or 1)
    assert all(len(set(row)) == batch_size for row in rewards.tolist())


@pytest.mark.parametrize("batch_size", [2, 6])
def test_sample_draws_its_minibatches_independently(batch_size: int) -> None:
    rewards = filled(10).sample(batch_size, num_batches=30)["reward"]

    assert len({frozenset(row) for row in rewards.tolist()}) > 10


def test_sample_gives_another_minibatch_at_the_next_call() -> None:
    buffer = filled(1000)

    assert set(buffer.sample(10)["reward"].tolist()) != set(buffer.sample(10)["reward"].tolist())


@pytest.mark.parametrize(("batch_size", "replace"), [(2, False), (6, False), (4, True), (30, True)])
def test_sample_draws_all_transitions_equally_often(batch_size: int, replace: bool) -> None:
    buffer = buffer_of(10)
    buffer.push(steps(0, 14))  # the ring has wrapped

    rewards = buffer.sample(batch_size, num_batches=6000 // batch_size, replace=replace)["reward"]

    observed = np.bincount(rewards.flatten().int().numpy(), minlength=14)[4:]
    assert ((observed - 600) ** 2 / 600).sum() < 27.88  # chi-square, 9 degrees of freedom, p = 0.001


def test_sample_draws_from_a_partly_filled_ring_what_is_there() -> None:
    buffer = buffer_of(1000)
    buffer.push(steps(5, 3))

    assert set(buffer.sample(200, replace=True)["reward"].tolist()) == {5, 6, 7}


def test_sample_with_replacement_may_hold_a_transition_more_than_once() -> None:
    assert len(filled(3).sample(50, replace=True)["reward"]) == 50


RANGES = [
    slice(None),
    slice(-3, None),
    slice(0, 2),
    slice(2, 5),
    slice(-5, -2),
    slice(None, None, 3),
    slice(None, None, -1),
    slice(6, 1, -2),
    slice(-100, 100),
    slice(7, None, 5),
]


@pytest.mark.parametrize("ages", RANGES, ids=str)
@pytest.mark.parametrize("pushed", [8, 10, 14, 23], ids=["partly full", "full", "wrapped", "wrapped twice"])
def test_sample_range_counts_by_age(pushed: int, ages: slice) -> None:
    buffer = buffer_of(10)
    for start in range(pushed):
        buffer.push(steps(start, 1))
    expected = list(range(pushed))[-10:][ages]

    exactly = buffer.sample(len(expected), sample_range=ages)["reward"].tolist()
    often = buffer.sample(1, num_batches=300, sample_range=ages)["reward"].flatten().tolist()

    assert sorted(exactly) == sorted(expected)
    assert set(often) == set(expected)


def test_sample_range_draws_its_transitions_equally_often() -> None:
    buffer = buffer_of(10)
    buffer.push(steps(0, 14))

    rewards = buffer.sample(2, num_batches=2000, sample_range=slice(1, -1, 2))["reward"].flatten().tolist()

    assert sum((rewards.count(name) - 1000) ** 2 / 1000 for name in (5, 7, 9, 11)) < 16.3  # 3 degrees, p = 0.001


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("ages", [slice(0, 0), slice(5, 2), slice(20, None), slice(-1, 0)], ids=str)
def test_sample_range_may_not_be_empty(ages: slice, replace: bool) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        filled(10).sample(1, sample_range=ages, replace=replace)


def test_sample_range_may_not_be_smaller_than_a_minibatch_unless_it_may_be_replaced() -> None:
    buffer = filled(10)

    with pytest.raises(ValueError, match=r"batch_size must be at most the 3 transitions kept, .* got 4"):
        buffer.sample(4, sample_range=slice(-3, None))
    assert set(buffer.sample(40, sample_range=slice(-3, None), replace=True)["reward"].tolist()) == {7, 8, 9}


def test_sample_keeps_what_belongs_together() -> None:
    buffer = buffer_of(50)
    buffer.push(steps(0, 40, num_envs=2))

    got = buffer.sample(20, num_batches=4)

    env_id, step = got["env_id"], got["obs"][..., 1]
    assert got["obs"][..., 0].equal(env_id.float())
    assert got["next_obs"].equal(torch.stack([env_id, step + 1], dim=-1))
    assert got["reward"].equal(10.0 * env_id + step)


def test_sample_gives_the_discount_of_one_step() -> None:
    assert filled(3).sample(3, discount_factor=0.9)["discount"].tolist() == pytest.approx([0.9] * 3, rel=1e-6)


def test_sample_sums_the_rewards_of_several_steps() -> None:
    got = filled(3).sample(3, n_step=2, discount_factor=0.5)

    # Rewards 0, 1, 2: 0 + 1/2, 1 + 2/2, and 2 alone because its follower is not there.
    by_first = {row[1]: values for row, *values in zip(*(got[n].tolist() for n in ("obs", "reward", "discount")))}  # noqa: B905
    assert by_first == {0: [0.5, 0.25], 1: [2.0, 0.25], 2: [2.0, 0.5]}


def test_sample_is_a_copy() -> None:
    buffer = filled(5)
    for values in buffer.sample(5).values():
        values.zero_()

    assert sorted(buffer.sample(5)["reward"].tolist()) == [0, 1, 2, 3, 4]
    assert sorted(buffer.sample(5)["next_obs"][:, 1].tolist()) == [1, 2, 3, 4, 5]


def test_sample_is_reproducible_from_the_seed() -> None:
    first, second = filled(100, seed=3), filled(100, seed=3)

    assert_equal(first.sample(7, num_batches=2), second.sample(7, num_batches=2))


def test_sample_differs_with_the_seed() -> None:
    first, second = filled(100, seed=3), filled(100, seed=4)

    assert first.sample(20)["reward"].tolist() != second.sample(20)["reward"].tolist()


def test_sample_refuses_more_than_there_is() -> None:
    with pytest.raises(
        ValueError, match="batch_size must be at most the 5 transitions kept, without replacement, got 6"
    ):
        filled(5).sample(6)


@pytest.mark.parametrize("replace", [False, True])
def test_sample_refuses_an_empty_buffer(replace: bool) -> None:
    with pytest.raises(ValueError, match="batch_size must be at most the 0 transitions kept"):
        buffer_of(5).sample(1, replace=replace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "n_step": 0}, "n_step must be >= 1, got 0"),
        ({"batch_size": 1, "num_batches": 0}, "num_batches must be >= 1 or None, got 0"),
    ],
)
def test_sample_refuses_numbers_that_are_none(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filled(5).sample(**arguments)  # type: ignore[arg-type]


def test_update_says_that_there_are_no_priorities() -> None:
    with pytest.raises(TypeError, match="keeps no priorities"):
        filled(5).update({"priority": torch.ones(2)})


# ------------------------------------------------------------------ clearing and saving


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


def test_saving_replaces_what_was_there(hand_over: SaveAndLoad) -> None:
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


def test_load_data_refuses_what_is_no_such_file_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no buffer")

    with pytest.raises(ValueError, match=r"file must be one that save_data wrote, got .*notes\.txt"):
        buffer_of(5).load_data(tmp_path / "notes.txt")


def test_load_data_says_that_there_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        buffer_of(5).load_data(tmp_path / "missing.safetensors")


# ------------------------------------------------------------------ threads


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hurried_threads")
def test_buffer_never_shows_another_thread_a_half_pushed_transition() -> None:
    buffer, errors = buffer_of(64), []
    buffer.push(steps(0, 64))
    is_over = threading.Event()

    def push() -> None:
        start = 64
        for amount in np.random.default_rng(0).integers(1, 20, size=600):
            buffer.push(steps(start, int(amount)))
            start += int(amount)
        is_over.set()

    def check() -> None:
        got = buffer.sample(16, n_step=3)
        first, behind = got["obs"][:, 1], got["next_obs"][:, 1]
        length = behind - first  # steps first, first + 1, ...; the sum of their rewards is known
        if not (
            ((length >= 1) & (length <= 3)).all() and got["reward"].equal(length * first + length * (length - 1) / 2)
        ):
            errors.append(got)

    pusher = threading.Thread(target=push)
    pusher.start()
    checks = 0
    while not is_over.is_set():
        check()
        checks += 1
    pusher.join()

    assert not errors
    assert checks > 10


# ------------------------------------------------------------------ metrics


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stand in for the clock; ``clock.now`` is the time."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr("lightning_ding.worker.buffer.stored.time", clock)
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
            buffer.sample(1, train_iter)

    count = 1 if kind == "episode" else 10
    times = list(range(monitor_freq, 41, monitor_freq))
    assert [scalar[1:] for scalar in writer.scalars if scalar[0] == "replay_iter/count"] == [(count, t) for t in times]
    assert [scalar[2] for scalar in writer.scalars if scalar[0] == "replay_step/count"] == [77] * len(times)
    lines = [record.getMessage() for record in caplog.records if record.name == "lightning_ding.study.replay"]
    assert len(lines) == len(times)
    assert lines[0].startswith(f"train_iter {monitor_freq}, envstep 77: count {count}, pushed_per_second")


# ------------------------------------------------------------------ tracking what leaves


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


def test_used_data_needs_ids_to_track() -> None:
    with pytest.raises(ValueError, match="data must be transitions with a data_id to track, got"):
        NaiveReplayBuffer({"enable_track_used_data": True}).push(steps(0, 1))


def test_used_data_is_not_there_unless_it_is_tracked() -> None:
    with pytest.raises(ValueError, match="enable_track_used_data must be True for pop_used_data, got False"):
        filled(3).pop_used_data()


# ------------------------------------------------------------------ config and factory


COMMON = {"type", "cfg_type", "import_names", "replay_buffer_size", "frame_stack", "memmap_dir"}
COMMON |= {"enable_track_used_data", "monitor_freq"}
OF_ADVANCED = {"alpha", "beta", "anneal_step", "anneal_unit", "max_use", "max_staleness", "thruput_controller"}
OF_SEQUENCE = {"sequence_length", "burn_in"}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("naive", set()), ("advanced", OF_ADVANCED), ("sequence", OF_SEQUENCE), ("episode", OF_SEQUENCE)],
)
def test_default_config_of_a_buffer_has_the_keys_that_do_something_in_it(kind: str, keys: set[str]) -> None:
    default = get_buffer_cls({"type": kind}).default_config()

    assert set(default) == COMMON | keys
    assert default.type == kind
    assert set(to_dict(ReplayBufferConfig())) == (COMMON | OF_ADVANCED | OF_SEQUENCE) - {"cfg_type"}


NOT_DEFAULT: dict[str, Any] = {
    "alpha": 0.1,
    "beta": 0.1,
    "anneal_step": 3,
    "anneal_unit": "env_step",
    "max_use": 2,
    "max_staleness": 2,
}
NOT_DEFAULT |= {"thruput_controller": {"window_seconds": 3.0}, "sequence_length": 5}


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
@pytest.mark.parametrize("key", sorted(NOT_DEFAULT))
def test_key_that_would_do_nothing_in_a_buffer_is_refused(kind: str, key: str) -> None:
    cls = get_buffer_cls({"type": kind})
    config = {"sequence_length": 4} if kind == "sequence" else {}

    if key in cls.config_keys:
        cls({**config, key: NOT_DEFAULT[key]})  # type: ignore[call-arg]
    else:
        with pytest.raises(ValueError, match=f"config key '{key}' does nothing in {cls.__name__}, got"):
            cls({**config, key: NOT_DEFAULT[key]})  # type: ignore[call-arg]


def test_monitor_freq_must_be_a_number_of_updates() -> None:
    with pytest.raises(ValueError, match="monitor_freq must be >= 1, got 0"):
        NaiveReplayBuffer({"monitor_freq": 0})


@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence", "episode"])
def test_full_buffer_keeps_replay_buffer_size_transitions(kind: str) -> None:
    cfg = {"type": kind, "replay_buffer_size": 12} | ({"sequence_length": 2} if kind == "sequence" else {})
    buffer = create_buffer(cfg)
    data: Any = steps(0, 6) | {"terminated": np.arange(6) == 5}
    for _ in range(5):
        buffer.push([data] if kind == "episode" else data)

    assert buffer.count() == (2 if kind == "episode" else 12)


def test_buffer_default_config_holds_the_fields_of_the_dataclass() -> None:
    default = NaiveReplayBuffer.default_config()

    assert default.cfg_type == "NaiveReplayBufferDict"
    assert default.replay_buffer_size == ReplayBufferConfig().replay_buffer_size


def test_buffer_refuses_to_keep_nothing() -> None:
    with pytest.raises(ValueError, match="replay_buffer_size must be >= 1, got 0"):
        buffer_of(0)


def test_create_buffer_makes_the_type_with_what_it_is_given() -> None:
    buffers = [create_buffer({"type": "naive", "replay_buffer_size": 100}, seed=3) for _ in range(2)]
    for buffer in buffers:
        buffer.push(steps(0, 100))

    assert isinstance(buffers[0], NaiveReplayBuffer)
    assert buffers[0].replay_buffer_size == 100
    assert_equal(buffers[0].sample(10), buffers[1].sample(10))


@pytest.mark.parametrize("cfg", [ReplayBufferConfig(), {"type": "naive"}, NaiveReplayBuffer.default_config()])
def test_get_buffer_cls_takes_dataclass_mapping_and_easydict(cfg: Any) -> None:
    assert get_buffer_cls(cfg) is NaiveReplayBuffer


def test_get_buffer_cls_lists_the_types_there_are() -> None:
    with pytest.raises(
        KeyError, match=r"no buffer is registered as 'nave'; did you mean 'naive'\? Registered: .*naive"
    ):
        get_buffer_cls({"type": "nave"})


def test_get_buffer_cls_needs_a_type() -> None:
    with pytest.raises(KeyError, match=r"a buffer config needs a 'type', one of .*'naive'.*; got the keys"):
        get_buffer_cls({"replay_buffer_size": 3})


def test_buffer_is_a_context_that_keeps_its_data() -> None:
    with filled(5) as buffer:
        pass

    assert buffer.count() == 5


@pytest.mark.parametrize("state", [{}, {"tensors": {}, "counters": {}}])
def test_load_state_dict_refuses_what_is_no_state(state: dict[str, Any]) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 3})
    with pytest.raises(ValueError, match="state must be what state_dict returned, with tensors, counters and rng"):
        buffer.load_state_dict(state)


def test_load_state_dict_refuses_the_state_of_a_buffer_of_sequences() -> None:
    state = SequenceReplayBuffer({"replay_buffer_size": 3, "sequence_length": 2}).state_dict()
    with pytest.raises(ValueError, match="state must be that of a NaiveReplayBuffer, got 'SequenceReplayBuffer'"):
        NaiveReplayBuffer({"replay_buffer_size": 3}).load_state_dict(state)
