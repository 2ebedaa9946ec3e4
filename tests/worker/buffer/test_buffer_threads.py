"""Buffers that many threads use at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding.worker import create_buffer

SIZE = 64


def steps(start: int, amount: int, env_id: int) -> dict[str, Any]:
    """Return steps of an endless env; the observation is [env, step] and the reward 10,000 env + step."""
    step = np.arange(start, start + amount, dtype=np.float32)
    return {
        "obs": np.stack([np.full(amount, env_id, np.float32), step], axis=1),
        "next_obs": np.stack([np.full(amount, env_id, np.float32), step + 1], axis=1),
        "reward": 10_000 * env_id + step,
        "terminated": np.zeros(amount, dtype=bool),
        "truncated": np.zeros(amount, dtype=bool),
        "env_id": np.full(amount, env_id),
    }


def assert_whole(batch: dict[str, Any]) -> None:
    """Check that every transition, of one or two steps, is made of parts that were pushed together."""
    env_id, first = batch["obs"].unbind(-1)
    length = batch["next_obs"][:, 1] - first
    assert env_id.equal(batch["next_obs"][:, 0])
    assert env_id.equal(batch["env_id"].float())
    assert ((length == 1) | (length == 2)).all()
    assert batch["reward"].equal(length * (10_000 * env_id + first) + (length - 1))


class Crowd:
    """What several threads do with one buffer, over and over."""

    def __init__(self, buffer: Any, folder: Path) -> None:
        self.buffer, self.file = buffer, folder / "buffer.safetensors"
        self.pushed = dict.fromkeys(range(3), 0)
        self.sampled = 0
        self.errors: list[Exception] = []
        self.is_over = threading.Event()

    def run(self, seconds: float) -> None:
        jobs: list[Callable[[], None]] = [self.sample, self.sample, self.save, self.load, self.look, self.clear]
        jobs += [lambda env_id=env_id: self.push(env_id) for env_id in self.pushed]  # type: ignore[misc]
        threads = [threading.Thread(target=self._repeat, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        self.is_over.wait(seconds)
        self.is_over.set()
        for thread in threads:
            thread.join(timeout=10)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def push(self, env_id: int) -> None:
        self.buffer.push(steps(self.pushed[env_id], 3, env_id))
        self.pushed[env_id] += 3

    def sample(self) -> None:
        try:
            batch = self.buffer.sample(16, n_step=2)
        except ValueError:
            return  # just cleared
        assert_whole(batch)
        self.sampled += 1
        if self.buffer.is_prioritised:
            self.buffer.update({**batch, "priority": torch.rand(16)})

    def save(self) -> None:
        self.buffer.save_data(self.file)
        self._check_copy(lambda copy: copy.load_data(self.file))

    def load(self) -> None:
        state = self.buffer.state_dict()
        self._check_copy(lambda copy: copy.load_state_dict(state))

    def look(self) -> None:
        assert 0 <= self.buffer.pop_metrics()["count"] <= SIZE

    def clear(self) -> None:
        self.buffer.clear()
        self.is_over.wait(0.05)

    def _check_copy(self, restore: Callable[[Any], None]) -> None:
        copy = create_buffer(self.buffer.config)
        restore(copy)
        assert 0 <= copy.count() <= SIZE
        if copy.count() > 0:
            assert_whole(copy.sample(copy.count(), n_step=2))

    def _repeat(self, job: Callable[[], None]) -> None:
        while not self.is_over.is_set():
            try:
                job()
            except Exception as error:  # raised by ``run``
                self.errors.append(error)
                self.is_over.set()


@pytest.fixture
def _hurried_threads() -> Iterator[None]:
    """Let threads take turns as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_hurried_threads")
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_threads_that_push_sample_save_and_clear_at_once_see_whole_transitions(kind: str, tmp_path: Path) -> None:
    buffer: Any = create_buffer({"type": kind, "replay_buffer_size": SIZE}, seed=0)
    crowd = Crowd(buffer, tmp_path)

    crowd.run(seconds=1.0)

    assert min(crowd.pushed.values()) > 30
    assert crowd.sampled > 10
    buffer.clear()
    crowd.push(0)
    assert (buffer.count(), buffer.push_count) == (3, 3)


@pytest.mark.usefixtures("_hurried_threads")
def test_pushes_of_many_threads_are_all_counted() -> None:
    buffer: Any = create_buffer({"type": "naive", "replay_buffer_size": 10_000})

    def push(env_id: int) -> None:
        for start in range(0, 300, 3):
            buffer.push(steps(start, 3, env_id))

    threads = [threading.Thread(target=push, args=(env_id,)) for env_id in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)

    assert (buffer.count(), buffer.push_count) == (1800, 1800)
    got = buffer.sample(1800, n_step=2)
    assert_whole(got)
    for env_id in range(6):
        assert sorted(got["obs"][got["env_id"] == env_id][:, 1].tolist()) == list(range(300))
    # Each env's steps were pushed in order, so all but its last have a follower.
    assert (got["next_obs"][:, 1] - got["obs"][:, 1] == 2).sum() == 1800 - 6


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_buffer_leaves_no_thread_behind(kind: str) -> None:
    before = set(threading.enumerate())
    with create_buffer({"type": kind}, seed=0) as buffer:
        buffer.push(steps(0, 10, 0))
        buffer.sample(3)
        assert set(threading.enumerate()) == before
    buffer.close()
    buffer.close()  # may be called again

    assert set(threading.enumerate()) == before
    assert buffer.count() == 10
