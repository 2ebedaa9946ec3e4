from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from lightning_ding.worker.buffer.tensor_file import DTYPES, write_tensors

FilesOfAtMost = Callable[[int], AbstractContextManager[None]]
SCRIPT = Path(__file__).with_name("buffer_memory_script.py")


def assert_same(file: Path, tensors: dict[str, Tensor]) -> None:
    loaded = load_file(str(file))
    assert sorted(loaded) == sorted(tensors)
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(loaded[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_safetensors_reads_every_type_as_it_was(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(-3, 12).to(dtype).reshape(5, 3) for dtype in DTYPES}
    write_tensors(tensors, tmp_path / "file", {})
    assert_same(tmp_path / "file", tensors)


def test_safetensors_reads_every_shape_as_it_was(tmp_path: Path) -> None:
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {"none": torch.empty(0, 7), "one": torch.tensor(3.5), "turned": numbers.permute(2, 0, 1)}
    tensors |= {"every other": numbers[:, ::2], "repeated": torch.tensor([1, 2]).expand(3, 2)}
    write_tensors(tensors, tmp_path / "file", {})
    assert_same(tmp_path / "file", tensors)


def test_tensors_larger_than_a_piece_come_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_ding.worker.buffer.tensor_file.CHUNK", 100)
    tensors = {"rows": torch.randn(57, 3), "wide": torch.randn(2, 500), "turned": torch.randn(40, 30).t()}
    write_tensors(tensors, tmp_path / "file", {})
    assert_same(tmp_path / "file", tensors)


def test_metadata_and_odd_names_come_back(tmp_path: Path) -> None:
    write_tensors({'frames/obs:"ä"': torch.ones(2)}, tmp_path / "file", {"counters": '{"count": 2}'})
    with safe_open(str(tmp_path / "file"), framework="pt") as opened:
        assert opened.metadata() == {"counters": '{"count": 2}'}
        assert list(opened.keys()) == ['frames/obs:"ä"']


def test_numbers_start_where_their_size_divides_the_place(tmp_path: Path) -> None:
    write_tensors({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1)}, tmp_path / "file", {})
    content = (tmp_path / "file").read_bytes()
    assert content.index(b"\x00\x00\x80\x3f") % 8 == 0


def test_type_that_the_format_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"type of 'wave' must be one of \['BOOL', .*got torch.complex64"):
        write_tensors({"wave": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "file", {})
    assert not (tmp_path / "file").exists()


def test_disk_without_room_is_seen_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**6, 10**6 - 4_000, 4_000))
    with pytest.raises(OSError, match=r"No space left on device: 4\d\d\d bytes are needed"):
        write_tensors({"a": torch.zeros(1_000)}, tmp_path / "file", {})
    assert not (tmp_path / "file").exists()
    write_tensors({"a": torch.zeros(900)}, tmp_path / "file", {})


@pytest.mark.parametrize("limit", [10, 1_000, 300_000])
def test_disk_that_takes_no_more_is_an_error_of_the_disk(
    tmp_path: Path, files_of_at_most: FilesOfAtMost, limit: int
) -> None:
    with files_of_at_most(limit), pytest.raises(OSError, match="File too large"):
        write_tensors({"a": torch.zeros(100_000)}, tmp_path / "file", {})


def megabytes_of_saving_and_loading(kind: str, megabytes: int, folder: Path) -> tuple[float, float]:
    """Return by how much the memory of a process grew beyond the buffers' own while one was saved and loaded."""
    command = [sys.executable, str(SCRIPT), kind, str(megabytes), str(folder / "buffer.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    saving, loading = done.stdout.split()
    return float(saving), float(loading)


KINDS = ["naive", "priority", "episode", "frame_stack"]


@pytest.mark.parametrize("kind", KINDS)
def test_saving_and_loading_a_buffer_takes_little_memory_beside_it(tmp_path: Path, kind: str) -> None:
    saving, loading = megabytes_of_saving_and_loading(kind, 128, tmp_path)
    assert saving < 40
    assert loading < 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_saving_a_buffer_of_a_gigabyte_takes_less_than_100_megabytes(tmp_path: Path, kind: str) -> None:
    saving, loading = megabytes_of_saving_and_loading(kind, 1_000, tmp_path)
    assert saving < 100
    assert loading < 150
