"""The ring of tensors: the newest steps, returns of n steps as with arrays, draws, errors and exact state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.worker import NaiveReplayBuffer, NotEnoughError
from lightning_ding.worker.buffer.tensor import TensorReplayBuffer

N = 3


def make(size: int = 12, num_envs: int = N, seed: int = 0) -> TensorReplayBuffer:
    return TensorReplayBuffer({"replay_buffer_size": size}, num_envs, "cpu", seed)


def episodes(steps: int, seed: int = 0, share: float = 0.2, first_episode: int = 0) -> Any:
    """Return random transitions of N envs in the order of steps, with some ends of episodes and nested observations."""
    rng = np.random.default_rng(seed)
    terminated, truncated = (rng.random((steps, N)) < share / 2 for _ in range(2))
    episode = np.zeros((steps, N), dtype=np.int64)
    episode[1:] = np.cumsum(terminated | truncated, 0)[:-1]
    obs: dict[str, Any] = {
        "a": rng.normal(size=(steps, N, 2)).astype(np.float32),
        "b": rng.integers(9, size=(steps, N)),
    }
    next_obs = {name: np.roll(leaf, -1, 0) for name, leaf in obs.items()}
    for name, leaf in next_obs.items():  # final observations are others
        leaf[terminated | truncated] += 100
        leaf[-1] = 7 if name == "b" else 7.5
    columns = {
        "obs": obs,
        "action": rng.integers(2, size=(steps, N)),
        "reward": rng.normal(size=(steps, N)).astype(np.float32),
        "next_obs": next_obs,
        "terminated": terminated,
        "truncated": truncated,
        "episode_id": (episode + first_episode) * N + np.arange(N),
        "env_id": np.broadcast_to(np.arange(N), (steps, N)).copy(),
    }
    return nested.apply(lambda leaf: leaf.reshape(steps * N, *leaf.shape[2:]), columns)


def tensors(data: Any) -> Any:
    return nested.apply(torch.from_numpy, data)


def rows_of(data: Any, start: int, stop: int) -> Any:
    return nested.index(data, slice(start * N, stop * N))


def assert_same(found: Any, wanted: Any) -> None:
    for name, leaf in nested.flatten(wanted).items():
        if name != "env_id":
            assert torch.equal(nested.flatten(found)[name], leaf), name


@pytest.mark.parametrize("pushes", [(2,), (1, 1, 1), (4,), (3, 2), (2, 2, 2), (1, 4, 3, 2), (9,), (3, 6)])
def test_keeps_the_newest_steps(pushes: tuple[int, ...]) -> None:
    data, buffer, done = episodes(sum(pushes)), make(size=4 * N), 0
    for steps in pushes:
        buffer.push(tensors(rows_of(data, done, done + steps)), done * N)
        done += steps
    kept = min(done, 4)
    assert (buffer.count(), buffer.push_count, buffer.env_step) == (kept * N, done * N, (done - pushes[-1]) * N)
    assert_same(buffer.transitions(), tensors(rows_of(data, done - kept, done)))


@pytest.mark.parametrize("n_step", [1, 2, 3, 7])
@pytest.mark.parametrize(("size", "pushes"), [(12, (3, 2)), (6, (4, 3, 2)), (5, (2, 1, 1, 1, 1, 1)), (40, (20, 9))])
def test_returns_equal_those_of_the_buffer_of_arrays(n_step: int, size: int, pushes: tuple[int, ...]) -> None:
    data, done = episodes(sum(pushes), share=0.3), 0
    mine, other = make(size * N), NaiveReplayBuffer({"replay_buffer_size": size * N}, seed=0)
    for steps in pushes:
        part = rows_of(data, done, done + steps)
        mine.push(tensors(part))
        other.push(part)
        done += steps
    rows = np.arange(min(done, size) * N).reshape(2 if done % 2 == 0 else 1, -1)[:, ::-1].copy()
    wanted = other._gather(rows, n_step, 0.9)
    assert_same(mine._ring.gather(torch.from_numpy(rows), n_step, 0.9), wanted)
    assert (wanted["discount"] < 0.9).any() == (n_step > 1)


def test_window_ends_where_envs_were_reset_in_the_middle_of_an_episode() -> None:
    buffer = make()
    for first_episode in (0, 5):
        buffer.push(tensors(episodes(2, share=0, first_episode=first_episode)))
    got = buffer._ring.gather(torch.arange(4 * N), 3, 0.5)
    steps = [[0.25] * N, [0.5] * N, [0.25] * N, [0.5] * N]
    assert got["discount"].view(4, N).tolist() == steps
    assert buffer.next_episode_id() == 5 * N + N


def test_first_steps_and_ranges_of_ages() -> None:
    data, buffer = episodes(7), make(size=4 * N)
    buffer.push(tensors(rows_of(data, 0, 5)))
    buffer.push(tensors(rows_of(data, 5, 7)))
    drawn = buffer.sample(
        64, sample_range=slice(-N, None), replace=True, n_step=2, discount_factor=0.5, first_step=True
    )
    assert set(drawn["reward_1"].tolist()) == set(data["reward"][6 * N :].tolist())
    oldest = buffer.sample(64, sample_range=slice(0, N), replace=True)
    assert set(oldest["reward"].tolist()) == set(data["reward"][3 * N : 4 * N].tolist())


def test_draws_are_uniform_and_depend_on_the_seed() -> None:
    one, same, other = make(), make(), make(seed=1)
    for buffer in (one, same, other):
        buffer.push({"reward": torch.arange(12.0)})
    drawn = one.sample(10, num_batches=1200)["reward"]
    assert drawn.shape == (1200, 10)
    counts = drawn.long().flatten().bincount(minlength=12)
    assert (counts - 1000).abs().max() < 150  # five standard deviations
    assert torch.equal(same.sample(10, num_batches=1200)["reward"], drawn)
    assert not torch.equal(other.sample(10, num_batches=1200)["reward"], drawn)


def test_metrics_count_transitions() -> None:
    buffer = make(size=4 * N)
    for _ in range(3):
        buffer.push(tensors(episodes(2)))
    buffer.sample(5, num_batches=2)
    assert (buffer._pushed, buffer._sampled, buffer._removed) == (6 * N, 10, 2 * N)
    assert buffer.pop_metrics()["count"] == 4 * N


def test_size_is_rounded_up_to_whole_steps() -> None:
    buffer = make(size=10)
    buffer.push(tensors(episodes(6)))
    assert buffer.count() == 12


def test_pushed_memory_may_be_used_again() -> None:
    buffer, data = make(), tensors(episodes(2))
    buffer.push(data)
    before = buffer.transitions()
    nested.apply(torch.Tensor.zero_, data)
    assert_same(buffer.transitions(), before)


def test_errors() -> None:
    buffer, data = make(), tensors(episodes(2))
    with pytest.raises(ValueError, match="data must be whole steps of 3 envs, got 5"):
        buffer.push(nested.index(data, slice(5)))
    buffer.push(data)
    with pytest.raises(ValueError, match=r"data must be transitions with .*'reward'"):
        buffer.push({"obs": data["obs"]})
    with pytest.raises(NotEnoughError, match="batch_size must be at most the 6 transitions"):
        buffer.sample(7)
    plain = make()
    plain.push({"reward": torch.ones(N)})
    with pytest.raises(ValueError, match="n_step must be 1 for transitions without terminated, truncated, episode_id"):
        plain.sample(2, n_step=2)
    with pytest.raises(TypeError, match="stores no priorities"):
        buffer.update({"priority": torch.ones(2)})
    with pytest.raises(MemoryError, match=r"set other\.replay_buffer\.replay_buffer_size"):
        make(size=10**15).push(data)


@pytest.mark.parametrize("pushes", [(2,), (3, 3)], ids=["partly full", "wrapped"])
def test_file_restores_transitions_and_draws(pushes: tuple[int, ...], tmp_path: Path) -> None:
    one, other = make(seed=1), make(seed=2)
    for number, steps in enumerate(pushes):
        one.push(tensors(episodes(steps, seed=number)))
    one.sample(3)
    one.save_data(tmp_path / "buffer.safetensors")
    other.load_data(tmp_path / "buffer.safetensors")
    assert (other.count(), other.push_count) == (one.count(), one.push_count)
    for _ in range(2):
        assert_same(other.sample(6, num_batches=4, n_step=3), one.sample(6, num_batches=4, n_step=3))
        for buffer in (one, other):
            buffer.push(tensors(episodes(1, seed=9)))
    assert_same(other.transitions(), one.transitions())


def test_state_is_a_copy_and_other_sizes_are_refused(tmp_path: Path) -> None:
    buffer = make()
    buffer.push(tensors(episodes(2)))
    state = buffer.state_dict()
    buffer.clear()
    buffer.push(tensors(episodes(2, seed=1)))
    buffer.load_state_dict(state)
    assert_same(buffer.transitions(), tensors(episodes(2)))
    with pytest.raises(ValueError, match="num_envs must be 3, as in the saved state, got 2"):
        make(num_envs=2).load_state_dict(state)
    with pytest.raises(ValueError, match="replay_buffer_size must be 12, as in the saved state, got 15"):
        make(size=15).load_state_dict(state)
    with pytest.raises(ValueError, match="state must be the state of a NaiveReplayBuffer, got 'TensorReplayBuffer'"):
        NaiveReplayBuffer({"replay_buffer_size": 12}).load_state_dict(state)


def saved(folder: Path, pushes: Sequence[int], size: int) -> list[Path]:
    """Return the files of buffers, of which number i got ``pushes[i]`` steps with rewards from 100 i on."""
    files = []
    for number, steps in enumerate(pushes):
        buffer = make(size)
        data = episodes(steps, seed=number)
        data["reward"] = np.arange(steps * N, dtype=np.float32) + 100 * number
        buffer.push(tensors(data))
        files.append(folder / f"{number}.safetensors")
        buffer.save_data(files[-1])
    return files


def test_one_file_is_loaded_with_other_draws(tmp_path: Path) -> None:
    (file,), drawn = saved(tmp_path, [4], 12), []
    for seed in (0, 1):
        buffer = make()
        assert buffer.load_files([file], np.random.SeedSequence(seed)) == 1
        assert buffer.transitions()["reward"].tolist() == list(range(12))
        drawn.append(buffer.sample(10)["reward"])
    assert not torch.equal(*drawn)


def test_several_files_are_merged_and_the_newest_steps_of_each_are_kept(tmp_path: Path) -> None:
    buffer = make(4 * N)
    assert buffer.load_files(saved(tmp_path, [5, 3], 4 * N), np.random.SeedSequence(0)) == 2
    # steps 1 to 4 of the first and 0 to 2 of the second, by turns; there is room for four
    rewards = buffer.transitions()["reward"].view(4, N)
    assert rewards[:, 0].tolist() == [9, 103, 12, 106]
    assert (rewards - rewards[:, :1]).tolist() == 4 * [[0, 1, 2]]
    episode = buffer.transitions()["episode_id"].view(4, N)
    assert not set(episode[::2].flatten().tolist()) & set(episode[1::2].flatten().tolist())
    assert buffer.next_episode_id() == int(episode.max()) + 1


@pytest.mark.parametrize("n_step", [2, 3])
def test_returns_in_merged_buffers_leave_no_buffer(n_step: int, tmp_path: Path) -> None:
    size = 64 * 2 * N  # so that two steps stay together
    buffer = make(size)
    buffer.load_files(saved(tmp_path, [6, 6], size), np.random.SeedSequence(0))
    stored = buffer.transitions()
    found = buffer._ring.gather(torch.arange(12 * N), n_step, 1.0)
    over = (stored["terminated"] | stored["truncated"]).view(12, N)
    reward = stored["reward"].view(12, N)
    for step in range(12):
        is_first = step % 2 == 0 and n_step > 1
        wanted = reward[step] + (reward[step + 1].where(~over[step], 0) if is_first else 0)
        assert found["reward"].view(12, N)[step].tolist() == wanted.tolist()
        last = torch.where(over[step], step, step + 1) if is_first else torch.full((N,), step)
        rows = last * N + torch.arange(N)
        assert torch.equal(found["next_obs"]["a"].view(12, N, 2)[step], stored["next_obs"]["a"][rows])


def test_state_of_a_device_of_another_kind_has_no_random_numbers_for_this_one() -> None:
    one, other = make(seed=1), make(seed=2)
    one.push(tensors(episodes(2)))
    state = one.state_dict()
    state["tensors"]["generator"] = torch.zeros(16, dtype=torch.uint8)  # as on a GPU
    before = other._ring.generator.get_state()
    other.load_state_dict(state)
    assert torch.equal(other._ring.generator.get_state(), before)
    assert_same(other.transitions(), one.transitions())
