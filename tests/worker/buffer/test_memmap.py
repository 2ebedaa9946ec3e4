"""Buffers with memory-mapped files: the samples are the same, and no files remain."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ding.worker import create_buffer
from lightning_ding.worker.buffer.columns import ObsColumn
from lightning_ding.worker.buffer.frames import StackedFrames
from lightning_ding.worker.buffer.memory import Memory


def buffer_of(folder: Path | None, kind: str = "naive", **config: Any) -> Any:
    where = {} if folder is None else {"memmap_dir": str(folder)}
    return create_buffer({"type": kind, "replay_buffer_size": 20, **where, **config}, seed=0)


def episode(length: int, name: int) -> dict[str, Any]:
    """Return an episode with stacks of three frames."""
    frames = np.random.default_rng(name).integers(256, size=(length + 3, 2, 2), dtype=np.uint8)
    stacks = np.stack([frames[step : step + 3] for step in range(length + 1)])
    is_last = np.arange(length) == length - 1
    return {
        "obs": {"image": stacks[:-1], "speed": np.arange(length) + 0.5},
        "next_obs": {"image": stacks[1:], "speed": np.arange(length) + 1.5},
        "reward": np.arange(length) + 100.0 * name,
        "terminated": is_last,
        "truncated": np.zeros(length, dtype=bool),
        "env_id": np.full(length, name % 2),
        "episode_id": np.full(length, name),
    }


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for key, values in left.items():
        if isinstance(values, dict):
            assert_equal(values, right[key])
        else:
            assert values.equal(right[key]), key


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("naive", {}),
    ("naive", {"frame_stack": 3}),
    ("advanced", {"frame_stack": 3}),
    ("sequence", {"sequence_length": 3}),
    ("episode", {}),
]


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_samples_are_those_of_a_buffer_in_memory(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    in_file, in_memory = buffer_of(tmp_path, kind, **config), buffer_of(None, kind, **config)
    for name in range(7):  # 35 transitions: both wrap
        for buffer in (in_file, in_memory):
            buffer.push([episode(5, name)] if kind == "episode" else episode(5, name))
        assert_equal(in_file.sample(1, n_step=2), in_memory.sample(1, n_step=2))

    assert_equal(in_file.sample(3, num_batches=4), in_memory.sample(3, num_batches=4))
    assert in_file.nbytes == in_memory.nbytes


def test_transitions_lie_in_the_file_and_not_in_memory(tmp_path: Path) -> None:
    buffer = buffer_of(tmp_path, frame_stack=3)
    buffer.push(episode(5, 0))

    arrays = dict(buffer._storage.columns)
    for name, frames in buffer._storage.frames.items():
        arrays |= {name: frames._pool, "numbers": frames._number} if isinstance(frames, StackedFrames) else {}
        arrays |= {name: frames._values} if type(frames) is ObsColumn else {}
    assert len(arrays) == 8
    assert all(isinstance(array, np.memmap) for array in arrays.values())


def test_folder_is_made_and_nothing_is_ever_seen_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "replay"
    buffer = buffer_of(folder)
    buffer.push(episode(5, 0))
    while_alive = list(folder.iterdir())
    del buffer
    gc.collect()

    assert folder.is_dir()
    assert while_alive == list(folder.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_space_is_free_again_when_the_buffer_is_gone(tmp_path: Path) -> None:
    def files() -> list[str]:
        with open("/proc/self/maps") as maps:
            return [line for line in maps if str(tmp_path) in line]

    buffer = buffer_of(tmp_path)
    buffer.push(episode(5, 0))
    while_alive = len(files())
    buffer.clear()
    after_clear = len(files())
    buffer.push(episode(5, 1))
    del buffer
    gc.collect()

    assert (while_alive, after_clear, files()) == (7, 0, [])


@pytest.mark.parametrize("through_file", [False, True])
def test_state_goes_from_files_to_memory_and_back(through_file: bool, tmp_path: Path) -> None:
    in_file, in_memory = buffer_of(tmp_path / "replay", frame_stack=3), buffer_of(None, frame_stack=3)
    back = buffer_of(tmp_path / "replay", frame_stack=3)
    for name in range(7):
        in_file.push(episode(5, name))

    for source, target in ((in_file, in_memory), (in_memory, back)):
        if through_file:
            source.save_data(tmp_path / "buffer.safetensors")
            target.load_data(tmp_path / "buffer.safetensors")
        else:
            target.load_state_dict(source.state_dict())

    expected = in_file.sample(20, n_step=3)
    assert_equal(in_memory.sample(20, n_step=3), expected)
    assert_equal(back.sample(20, n_step=3), expected)


def test_state_is_a_copy_that_later_pushes_do_not_change(tmp_path: Path) -> None:
    buffer = buffer_of(tmp_path)
    for name in range(4):
        buffer.push(episode(5, name))
    state = buffer.state_dict()["tensors"]
    before = {key: tensor.clone() for key, tensor in state.items()}
    buffer.push(episode(5, 9))

    assert all(state[key].equal(before[key]) for key in before)


def test_sample_is_a_copy_too(tmp_path: Path) -> None:
    buffer = buffer_of(tmp_path)
    buffer.push(episode(5, 0))
    for values in (batch := buffer.sample(5)).values():
        for leaf in values.values() if isinstance(values, dict) else [values]:
            leaf.zero_()

    assert batch["reward"].tolist() == [0] * 5
    assert sorted(buffer.sample(5)["reward"].tolist()) == [0, 1, 2, 3, 4]


def test_pool_of_frames_grows_in_a_file_too(tmp_path: Path) -> None:
    memory = Memory(str(tmp_path))
    frames = StackedFrames(8, np.zeros((1, 2, 3), np.uint8), memory)
    room = len(frames._pool)
    stacks = np.random.default_rng(0).integers(256, size=(4, 2, 3), dtype=np.uint8)
    for _ in range(room):  # nothing is released
        frames.write_rows(slice(0, 4), np.arange(4), stacks, np.empty(0, int), np.empty(0, int))

    assert len(frames._pool) > room
    assert isinstance(frames._pool, np.memmap)
    np.testing.assert_array_equal(frames.read(np.arange(4)), stacks)


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    buffer = buffer_of(tmp_path / "file")

    with pytest.raises(FileExistsError):
        buffer.push(episode(5, 0))
    assert buffer.count() == 0
