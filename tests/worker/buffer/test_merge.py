"""Merging the saved buffers of a different number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import AdvancedReplayBuffer, IBuffer, NaiveReplayBuffer, SequenceReplayBuffer

SEED = np.random.SeedSequence(0)


def steps(first: int, number: int, episode: int = 0) -> dict[str, Any]:
    """Return steps of two envs side by side, whose observations count on from ``first``."""
    at = np.repeat(np.arange(first, first + number), 2)
    env = np.tile([0, 1], number)
    obs = (at + 1000 * env).astype(np.float32)[:, None]
    ends = np.zeros(2 * number, dtype=bool)
    known = {"terminated": ends, "truncated": ends, "env_id": env, "episode_id": 2 * episode + env}
    return {"obs": obs, "next_obs": obs + 1, "reward": at.astype(np.float32), **known, "policy_version": at}


def save(buffer: IBuffer, file: Path) -> Path:
    buffer.save_data(file)
    return file


def contents(buffer: Any) -> dict[str, Any]:
    storage = buffer._storage
    batch: dict[str, Any] = storage.gather(storage.newest(storage.count), 1, 1.0)
    return batch


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_buffers_are_merged_in_chronological_order_with_distinct_ids(kind: Any, tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        buffer = kind({"replay_buffer_size": 100}, seed=number)
        buffer.push(steps(100 * number, 10))
        files.append(save(buffer, tmp_path / str(number)))
    merged = kind({"replay_buffer_size": 100}, seed=5)
    assert (merged.load_files(files, SEED), merged.next_episode_id()) == (2, 4)
    data = contents(merged)
    assert merged.count() == 40
    assert sorted(set(data["env_id"].tolist())) == sorted(set(data["episode_id"].tolist())) == [0, 1, 2, 3]
    for env_id in range(4):
        mine = data["env_id"] == env_id
        start = (0 if env_id < 2 else 100) + 1000 * (env_id % 2)
        assert data["obs"][mine].flatten().tolist() == list(range(start, start + 10))
        assert torch.equal(data["next_obs"][mine], data["obs"][mine] + 1)


def test_windows_of_several_steps_are_those_of_before(tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        buffer = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=number)
        buffer.push(steps(100 * number, 10))
        files.append(save(buffer, tmp_path / str(number)))
    merged = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=5)
    merged.load_files(files, SEED)
    batch = merged.sample(40, n_step=3)
    full = (batch["obs"][:, 0] % 100) <= 7
    assert full.sum() == 32
    first = batch["obs"][full, 0] % 1000
    assert torch.equal(batch["reward"][full], 3 * first + 3)
    assert torch.equal(batch["next_obs"][full], batch["obs"][full] + 3)


def test_the_newest_of_each_stay_when_it_is_too_much(tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        buffer = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=number)
        buffer.push(steps(100 * number, 80))  # of 160 the newest 100: steps 30 to 79
        files.append(save(buffer, tmp_path / str(number)))
    merged = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=5)
    merged.load_files(files, SEED)
    at = contents(merged)["policy_version"]
    assert sorted(at[at < 100].tolist()) == sorted([*range(55, 80)] * 2)
    assert sorted(at[at >= 100].tolist()) == sorted([*range(155, 180)] * 2)


def test_priorities_and_uses_come_along_and_what_was_used_up_does_not(tmp_path: Path) -> None:
    files: list[Path] = []
    kept: dict[float, tuple[float, ...]] = {}
    for number in (0, 1):
        buffer = AdvancedReplayBuffer({"replay_buffer_size": 100, "max_use": 3, "alpha": 0.7}, seed=number)
        buffer.push(steps(100 * number, 10))
        for _ in range(4):
            batch = buffer.sample(8)
            buffer.update({**batch, "priority": batch["obs"].flatten() / 7})
        rows = np.flatnonzero(buffer._tree.read(np.arange(20)) > 0)
        obs = contents(buffer)["obs"].flatten().tolist()
        found = zip(buffer._priority[rows], buffer._tree.read(rows), buffer._use[rows], strict=True)
        kept |= dict(zip([obs[row] for row in rows], [tuple(map(float, one)) for one in found], strict=True))
        files.append(save(buffer, tmp_path / str(number)))
    merged = AdvancedReplayBuffer({"replay_buffer_size": 100, "max_use": 3, "alpha": 0.7}, seed=5)
    merged.load_files(files, SEED)
    rows = np.arange(merged.count())
    got = zip(merged._priority[rows], merged._tree.read(rows), merged._use[rows], strict=True)
    obs = merged._storage.gather(rows, 1, 1.0)["obs"].flatten().tolist()
    assert 0 < len(kept) < 40
    assert dict(zip(obs, [tuple(map(float, one)) for one in got], strict=True)) == kept


def test_two_buffers_that_begin_with_one_file_draw_differently(tmp_path: Path) -> None:
    buffer = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=0)
    buffer.push(steps(0, 40, episode=3))
    file = save(buffer, tmp_path / "0")
    drawn = []
    for seed in (1, 2):
        copy = NaiveReplayBuffer({"replay_buffer_size": 100}, seed=0)
        assert (copy.load_files([file], np.random.SeedSequence(seed)), copy.next_episode_id()) == (1, 8)
        assert copy.count() == 80
        drawn.append(copy.sample(20)["obs"].flatten().tolist())
    assert drawn[0] != drawn[1]


def test_a_buffer_of_sequences_takes_the_first_file_only(tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        buffer = SequenceReplayBuffer({"replay_buffer_size": 100, "sequence_length": 2}, seed=number)
        buffer.push(steps(100 * number, 10))
        files.append(save(buffer, tmp_path / str(number)))
    taken = SequenceReplayBuffer({"replay_buffer_size": 100, "sequence_length": 2}, seed=5)
    assert (taken.load_files(files, SEED), taken.next_episode_id()) == (1, 2)
    assert taken.count() == 20
