"""A buffer takes memory for the transitions that it holds, not for those that fit."""

from __future__ import annotations

import logging
import mmap
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from lightning_ding.policy import C51Policy, DDPGPolicy, DQNPolicy, QRDQNPolicy, RainbowPolicy, SACPolicy, TD3Policy
from lightning_ding.worker import create_buffer
from lightning_ding.worker.buffer.memory import Memory

MANY = 1_000_000
WIDTH = 500
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident() -> float:
    """Return the megabytes of memory that this process has taken and that are no file's."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def transitions(start: int, count: int, shape: tuple[int, ...] = (WIDTH,), dtype: Any = np.float32) -> dict[str, Any]:
    """Return the steps of two envs in turn, whose observations count the steps."""
    step = (start + np.arange(count)) // 2
    obs = np.broadcast_to(step.reshape(-1, *[1] * len(shape)), (count, *shape)).astype(dtype)
    ends = {"terminated": np.zeros(count, bool), "truncated": step % 50 == 49}
    ids = {"env_id": np.arange(start, start + count) % 2, "episode_id": step // 50 * 2 + np.arange(count) % 2}
    return {"obs": obs, "next_obs": (obs + 1).astype(dtype), "reward": step.astype(np.float32), **ends, **ids}


@on_linux
@pytest.mark.parametrize("kind", ["naive", "advanced", "sequence"])
def test_memory_grows_with_the_stored_transitions(kind: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"type": kind, "replay_buffer_size": MANY}
    buffer: Any = create_buffer({**config, **({"sequence_length": 2} if kind == "sequence" else {})}, seed=0)
    buffer.push(transitions(0, 2))
    before = resident()

    for start in range(2, 10_002, 1000):
        buffer.push(transitions(start, 1000))

    stored = 10_002 * WIDTH * 4 / 1e6  # 20 MB; all of the storage is 4,000 MB
    assert buffer.nbytes / 1e6 < 1.2 * stored
    assert resident() - before < 2 * stored + 20  # pages that are touched in part


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_saved_buffer_contains_the_stored_transitions(kind: str, tmp_path: Path) -> None:
    buffer = create_buffer({"type": kind, "replay_buffer_size": MANY}, seed=0)
    buffer.push(transitions(0, 400))

    buffer.save_data(tmp_path / "buffer.safetensors")

    with safe_open(str(tmp_path / "buffer.safetensors"), framework="pt") as saved:
        rows = {name: saved.get_slice(name).get_shape()[0] for name in saved.keys()}  # noqa: SIM118 - not a dict
    assert max(rows.values()) == 400
    restored = create_buffer({"type": kind, "replay_buffer_size": MANY}, seed=1)
    restored.load_data(tmp_path / "buffer.safetensors")
    for one in (buffer, restored):
        one.push(transitions(400, 400))
    ours, theirs = buffer.sample(64, n_step=3), restored.sample(64, n_step=3)
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_files_of_a_buffer_take_the_disk_that_is_written(tmp_path: Path) -> None:
    array = Memory(str(tmp_path)).zeros((MANY, WIDTH), np.float32)
    array[:100] = 1
    assert array.nbytes == 4 * MANY * WIDTH  # 2 GB in the folder of the tests, which needs no room for them


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux maps memory without setting it aside")
def test_a_buffer_may_be_larger_than_the_memory_of_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    buffer: Any = create_buffer({"type": "naive", "replay_buffer_size": 100 * MANY}, seed=0)  # 5.6 TB of pictures

    with caplog.at_level(logging.WARNING):
        buffer.push(transitions(0, 8, (4, 84, 84), np.uint8))

    assert buffer.sample(8)["obs"].float().mean().item() == pytest.approx(1.5)
    assert buffer.nbytes < 1e6
    assert "set replay_buffer_size, frame_stack or memmap_dir" in caplog.text


def test_a_machine_that_refuses_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", refuse)
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(MemoryError, match="needs an array of 4 GB: set replay_buffer_size or memmap_dir"):
        Memory().zeros((MANY, 1000), np.float32)


def test_a_small_buffer_gives_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    create_buffer({"type": "naive"}, seed=0).push(transitions(0, 8))

    assert not caplog.records


@pytest.mark.parametrize("kind", [DQNPolicy, C51Policy, QRDQNPolicy, RainbowPolicy, DDPGPolicy, TD3Policy, SACPolicy])
def test_replay_keeps_a_million_transitions_by_default(kind: Any) -> None:
    assert kind.config_class().other.replay_buffer.replay_buffer_size == MANY


@on_linux
@pytest.mark.parametrize(("size", "has_own_pages"), [(1 << 17, True), ((1 << 17) - 1, False)])
def test_large_arrays_have_pages_that_the_heap_cannot_keep(size: int, has_own_pages: bool) -> None:
    array = Memory().zeros((size,), np.uint8)
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap) == has_own_pages
    array[:] = 1
    assert array.sum() == size
