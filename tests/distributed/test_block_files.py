"""Blocks of tensors as files: what goes in comes out, and nothing else does."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.block_files import MAX_DEPTH, flatten, form_of, read_block, unflatten, write_block
from lightning_ding.distributed.transport import Refusal
from tests.processes import run

QUICK = settings(max_examples=100, deadline=None, derandomize=True)
LARGE = 10_000_000


def safetensors(header: Any, data: bytes = b"") -> bytes:
    """Return a file's bytes, whatever its header says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def refused(file: Path, max_bytes: int = LARGE) -> int:
    with pytest.raises(Refusal) as caught:
        read_block(file, max_bytes)
    assert caught.value.reason
    return caught.value.status


def test_a_block_comes_out_as_it_went_in(tmp_path: Path) -> None:
    tensors = {
        "obs": {"speed": torch.tensor([1.5, -2.5]), "image": np.arange(12, dtype=np.uint8).reshape(2, 3, 2)},
        "reward": np.array([0.1, 0.2]),
        "terminated": np.array([True, False]),
        "episode_id": np.array([1 << 40, 2]),
        "scalar": torch.tensor(7),
        "none": torch.zeros(0, 4),
    }
    write_block(tmp_path / "b", tensors, {"policy_iter": "3"})
    block = read_block(tmp_path / "b", LARGE)
    assert block.metadata == {"policy_iter": "3"}
    assert list(block.tensors["obs"]) == ["image", "speed"]
    assert list(block.tensors) == sorted(tensors)
    for name, tensor in flatten(tensors).items():
        found = flatten(block.tensors)[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found, tensor)
    assert os.listdir(tmp_path) == ["b"]


def test_what_was_read_may_be_written_into_and_its_file_changed(tmp_path: Path) -> None:
    write_block(tmp_path / "b", {"x": torch.zeros(1000)})
    x = read_block(tmp_path / "b", LARGE).tensors["x"]
    (tmp_path / "b").write_bytes(b"")  # a mapping of it would now end the process
    x += 1
    assert x.sum() == 1000


def test_views_weights_that_are_tied_and_arrays_that_are_read_only_can_be_written(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    fixed = np.arange(3)
    fixed.setflags(write=False)
    back = np.arange(4)[::-1]
    write_block(
        tmp_path / "b", {"a": weight, "b": weight, "t": weight.T, "row": weight[1], "fixed": fixed, "back": back}
    )
    read = read_block(tmp_path / "b", LARGE).tensors
    assert read["a"].tolist() == read["b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read["row"].tolist() == [3, 4, 5]
    assert (read["fixed"].tolist(), read["back"].tolist()) == ([0, 1, 2], [3, 2, 1, 0])


NAMES = st.text("abc.", min_size=1, max_size=3)
TREES: Any = st.recursive(
    st.integers(0, 9).map(torch.tensor), lambda below: st.dictionaries(NAMES, below, min_size=1, max_size=3)
)


@QUICK
@given(st.dictionaries(NAMES, TREES, max_size=3))
def test_unflatten_is_the_inverse_of_flatten(tree: dict[str, Any]) -> None:
    assert str(unflatten(flatten(tree))) == str(tree)


@pytest.mark.parametrize("key", ["", "a/b", 3])
def test_keys_that_would_not_come_back_are_not_taken(key: Any) -> None:
    with pytest.raises(ValueError, match="must be non-empty strings without '/'"):
        flatten({"obs": {key: torch.zeros(1)}})


def test_dicts_that_are_too_deep_are_not_taken_either_way(tmp_path: Path) -> None:
    deep: Any = torch.zeros(1)
    for _ in range(MAX_DEPTH + 1):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="at most 16 keys"):
        flatten(deep)
    write_block(tmp_path / "b", deep["a"])
    assert len(flatten(read_block(tmp_path / "b", LARGE).tensors)) == 1


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("",), ("a//b",), ("/a",), ("a/",), ("a/" * 40 + "a",)])
def test_names_that_flatten_does_not_make_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"names must|is inside of a leaf|is both a leaf and a dict"):
        unflatten({name: torch.zeros(1) for name in names})
    header = {n: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, n in enumerate(names)}
    (tmp_path / "b").write_bytes(safetensors(header, b"ab"[: len(names)]))
    assert refused(tmp_path / "b") == 422


def test_a_pickle_in_place_of_a_block_is_refused_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    (tmp_path / "b").write_bytes(pickle.dumps(Bomb()))
    assert refused(tmp_path / "b") == 422
    torch.save({"x": Bomb()}, tmp_path / "c")
    assert refused(tmp_path / "c") == 422
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]},
        {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]},
        {"dtype": "O", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
        {"shape": [1]},
        "x",
    ],
    ids=str,
)
def test_a_header_that_lies_about_its_data_is_refused(entry: Any, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(safetensors({"x": entry}, b"\0\0\0\0"))
    assert refused(tmp_path / "b") == 422


def test_a_block_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_block(tmp_path / "b", {"x": torch.arange(5), "y": {"z": torch.zeros(3)}})
    whole = (tmp_path / "b").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:size])
        assert refused(tmp_path / "b") == 422, size


@QUICK
@given(st.data())
def test_a_block_with_other_bytes_in_its_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("blocks") / "b"
    write_block(file, {"x": torch.arange(5), "y": {"z": torch.zeros(3)}}, {"k": "v"})
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with suppress(Refusal):
        read_block(file, LARGE)


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_in_place_of_a_block_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("blocks") / "b"
    file.write_bytes(content)
    assert refused(file) == 422


def test_a_file_is_refused_for_its_size_before_it_is_read(tmp_path: Path) -> None:
    write_block(tmp_path / "b", {"x": torch.zeros(10)})
    size = (tmp_path / "b").stat().st_size
    assert read_block(tmp_path / "b", size).tensors["x"].shape == (10,)
    assert refused(tmp_path / "b", size - 1) == 413
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert refused(tmp_path / "huge") == 413


def sparse(file: Path, size: int, header: dict[str, Any] | None = None) -> None:
    """Write a file whose data occupy neither the disk nor, until they are read, memory."""
    with file.open("wb") as opened:
        opened.write(b"" if header is None else safetensors(header))
        opened.truncate(opened.tell() + size)


READING = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from lightning_ding.distributed.block_files import read_block
from lightning_ding.distributed.transport import Refusal
from tests.processes import run
def read(file):
    try:
        return read_block(file, 2_000_000_000).tensors["x"].shape[0]
    except Refusal as refusal:
        return refusal.status
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(3) as pool:
    print(*pool.map(read, sys.argv[1:]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def reading_together(files: list[Path]) -> tuple[list[int], int]:
    """Return lengths or statuses of files that a process reads at the same time, and the MiB that it needs for it."""
    found, memory = run("-c", READING, *files).splitlines()
    return list(map(int, found.split())), int(memory)


def test_sparse_files_without_a_fitting_header_need_no_memory(tmp_path: Path) -> None:
    size, files = 900_000_000, [tmp_path / str(number) for number in range(3)]
    sparse(files[0], size)
    sparse(files[1], size, {"x": {"dtype": "U8", "shape": [size - 1], "data_offsets": [0, size - 1]}})
    sparse(files[2], size, {"x": {"dtype": "F32", "shape": [size], "data_offsets": [0, size]}})
    found, memory = reading_together(files)
    assert found == [422] * 3
    assert memory < 50


def test_large_files_are_read_one_after_the_other_and_once(tmp_path: Path) -> None:
    size, files = 100_000_000, [tmp_path / str(number) for number in range(3)]
    for file in files:
        sparse(file, size, {"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    found, memory = reading_together(files)
    assert found == [size] * 3
    assert size / 2**20 < memory < 1.5 * size / 2**20


def test_form_of_a_block_is_read_without_its_data(tmp_path: Path) -> None:
    size = 1 << 40
    sparse(tmp_path / "b", size, {"x": {"dtype": "F32", "shape": [size // 8, 2], "data_offsets": [0, size]}})
    assert form_of(tmp_path / "b", 2 * size) == {"x": (torch.float32, (size // 8, 2), 0, size)}
    with pytest.raises(Refusal, match="413"):
        form_of(tmp_path / "b", size)


def test_tensors_at_odd_places_of_a_file_are_read(tmp_path: Path) -> None:
    content = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    content |= {"b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}
    (tmp_path / "b").write_bytes(safetensors(content, b"\x07" + np.array([1.5, -2], np.float32).tobytes()))
    read = read_block(tmp_path / "b", LARGE).tensors
    assert (read["a"].tolist(), read["b"].tolist()) == ([7], [1.5, -2.0])


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    write_block(tmp_path / "b", {"x": torch.zeros(10)})
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    assert [refused(tmp_path / name) for name in ("link", "folder", "pipe", "none")] == [403, 403, 403, 404]


def test_a_disk_without_room_leaves_nothing_behind(
    tmp_path: Path, files_of_at_most: Callable[[int], AbstractContextManager[None]]
) -> None:
    write_block(tmp_path / "b", {"x": torch.ones(10)})
    with files_of_at_most(4096), pytest.raises(OSError, match="too large"):
        write_block(tmp_path / "b", {"x": torch.zeros(100_000)})
    assert os.listdir(tmp_path) == ["b"]
    assert read_block(tmp_path / "b", LARGE).tensors["x"].sum() == 10
