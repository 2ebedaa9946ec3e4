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

from lightning_ding.worker.buffer.files import write_tensors

FilesOfAtMost = Callable[[int], AbstractContextManager[None]]
SCRIPT = Path(__file__).with_name("buffer_memory_script.py")


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    numbers = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {"turned": numbers.permute(2, 0, 1), "none": torch.empty(0, 7), "flags": numbers > 5}
    write_tensors(tensors, tmp_path / "file", {"counters": '{"count": 2}'})
    with safe_open(str(tmp_path / "file"), framework="pt") as opened:
        assert opened.metadata() == {"counters": '{"count": 2}'}
        assert sorted(opened.keys()) == sorted(tensors)
        for name, tensor in tensors.items():
            assert opened.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(opened.get_tensor(name), tensor)


def test_disk_without_room_is_seen_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**6, 10**6 - 3_999, 3_999))
    with pytest.raises(OSError, match=r"No space left on device: 4000 bytes are needed"):
        write_tensors({"a": torch.zeros(1_000)}, tmp_path / "file", {})
    assert not (tmp_path / "file").exists()
    write_tensors({"a": torch.zeros(900)}, tmp_path / "file", {})


def test_place_that_is_no_folder_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_tensors({"a": torch.zeros(2)}, tmp_path / "nowhere" / "file", {})


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


def test_saving_and_loading_a_buffer_copies_little_of_it(tmp_path: Path) -> None:
    saving, loading = megabytes_of_saving_and_loading("priority", 64, tmp_path)
    assert saving < 16
    assert loading < 32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["naive", "priority", "episode", "frame_stack"])
def test_saving_a_buffer_of_a_gigabyte_takes_less_than_100_megabytes(tmp_path: Path, kind: str) -> None:
    saving, loading = megabytes_of_saving_and_loading(kind, 1_000, tmp_path)
    assert saving < 100
    assert loading < 100
