"""The store: only its own files, by names that it gave."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.block_files import read_block
from lightning_ding.distributed.file_store import FileStore, UnannouncedData, is_marked
from lightning_ding.distributed.transport import KINDS, Refusal
from tests.distributed.coordinator.coordinating import Clock
from tests.processes import start

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
HEX = "0123456789abcdef" * 2


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "data", max_bytes=10_000)


def file_of(store: FileStore, handle: Any) -> Path:
    return store.folder / str(handle["kind"]) / f"{handle['name']}.safetensors"


def status_of(act: Any, *arguments: Any) -> int:
    with pytest.raises(Refusal) as caught:
        act(*arguments)
    assert caught.value.reason
    return caught.value.status


def test_blocks_of_each_kind_are_kept_until_they_are_deleted(store: FileStore) -> None:
    handles = [store.put(kind, {"x": torch.tensor([index])}, {"of": kind}) for index, kind in enumerate(KINDS)]
    for index, (kind, handle) in enumerate(zip(KINDS, handles, strict=True)):
        block = store.get(handle)
        assert (block.tensors["x"].tolist(), block.metadata) == ([index], {"of": kind})
        store.delete(handle)
        store.delete(handle)
        assert status_of(store.get, handle) == 404
    assert not list(store.folder.rglob("*.*"))


def test_another_store_of_the_same_folder_reads_it(store: FileStore) -> None:
    handle = store.put("policy", {"x": torch.ones(2)})
    assert FileStore(store.folder).get(handle).tensors["x"].tolist() == [1, 1]


def test_a_kind_that_does_not_exist_is_not_written(store: FileStore) -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        store.put("../x", {"x": torch.ones(1)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "..", ".", f"{HEX}/..", f"..\\{HEX}", f"{HEX}\0", f"./{HEX}"]
)
@pytest.mark.parametrize("part", ["kind", "name"])
def test_a_path_that_leaves_the_directory_is_refused(part: str, name: str, store: FileStore, tmp_path: Path) -> None:
    handle = {"kind": "data", "name": HEX, part: name}
    for act in (store.get, store.delete, lambda handle: store.move(handle, tmp_path / "taken")):
        assert status_of(act, handle) == 403
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize(
    "handle",
    [None, 3, HEX, [], {}, {"kind": "data"}, {"kind": "data", "name": HEX, "more": 1}, {"kind": "code", "name": HEX},
     {"kind": "data", "name": 3}, {"kind": [], "name": HEX}, {"kind": "data", "name": HEX[:-1]},
     {"kind": "data", "name": HEX.upper()}, {"kind": "data", "name": HEX + "\n"}, {"kind": "data", "name": "é" * 32}],
    ids=str,
)  # fmt: skip
def test_what_is_no_handle_is_refused(handle: Any, store: FileStore) -> None:
    assert [status_of(act, handle) for act in (store.get, store.delete)] == [400, 400]


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=40) | st.integers(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(["kind", "name", "x"]), below),
    max_leaves=6,
)


@QUICK
@given(
    JSON | st.fixed_dictionaries({"kind": st.sampled_from(KINDS) | st.text(max_size=8), "name": st.text(max_size=40)})
)
def test_whatever_is_given_as_a_handle_no_file_outside_is_touched(
    tmp_path_factory: pytest.TempPathFactory, handle: Any
) -> None:
    store = FileStore(tmp_path_factory.getbasetemp() / "fuzzed")
    for act in (store.get, store.delete, lambda handle: store.move(handle, store.folder / "taken")):
        assert status_of(act, handle) in (400, 403)


def test_links_that_lead_out_of_the_store_are_refused(store: FileStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    file = store.folder / "data" / f"{HEX}.safetensors"
    file.symlink_to(tmp_path / "secret")
    handle = {"kind": "data", "name": HEX}
    assert status_of(store.get, handle) == status_of(store.move, handle, tmp_path / "taken") == 403
    store.delete(handle)
    assert (tmp_path / "secret").read_text() == "secret"
    (store.folder / "batch").rmdir()
    (store.folder / "batch").symlink_to(tmp_path)
    handle["kind"] = "batch"
    for act in (store.get, store.delete, lambda handle: store.move(handle, tmp_path / "taken")):
        assert status_of(act, handle) == 403
    assert status_of(store.sweep, 0) == 403


def test_torn_foreign_and_large_files_are_refused_and_others_still_read(store: FileStore) -> None:
    good, torn, foreign, large = (store.put("data", {"x": torch.zeros(size)}) for size in (10, 10, 10, 3000))
    os.truncate(file_of(store, torn), 90)
    file_of(store, foreign).write_bytes(b"\x80\x04\x95pickle")
    assert [status_of(store.get, handle) for handle in (torn, foreign, large)] == [422, 422, 413]
    assert store.get(good).tensors["x"].tolist() == [0] * 10


def test_a_moved_block_is_whole_in_its_new_place_and_gone_from_the_old(store: FileStore, tmp_path: Path) -> None:
    handle = store.put("data", {"x": torch.arange(3)}, {"a": "b"})
    store.move(handle, tmp_path / "journal-1")
    assert read_block(tmp_path / "journal-1", 10_000).tensors["x"].tolist() == [0, 1, 2]
    assert status_of(store.get, handle) == status_of(store.move, handle, tmp_path / "journal-2") == 404
    assert sorted(os.listdir(tmp_path)) == ["data", "journal-1"]


def test_a_block_moves_to_another_file_system_too(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    handle = store.put("data", {"x": torch.arange(3)})
    monkeypatch.setattr(os, "replace", refuse)
    store.move(handle, tmp_path / "journal-1")
    assert read_block(tmp_path / "journal-1", 10_000).tensors["x"].tolist() == [0, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["data", "journal-1"]
    assert status_of(store.get, handle) == 404


def test_a_directory_to_move_to_that_is_missing_is_not_the_blocks_fault(store: FileStore, tmp_path: Path) -> None:
    handle = store.put("data", {"x": torch.arange(3)})
    with pytest.raises(FileNotFoundError):
        store.move(handle, tmp_path / "none" / "file")
    assert store.get(handle).tensors["x"].tolist() == [0, 1, 2]


def test_sweep_deletes_old_batches_and_half_written_files_and_keeps_the_rest(store: FileStore) -> None:
    handles = {kind: [store.put(kind, {"x": torch.zeros(1)}) for _ in range(2)] for kind in KINDS}
    half = [store.folder / kind / f".{HEX}{age}.safetensors.tmp" for kind in KINDS for age in ("old", "new")]
    for file in half:
        file.touch()
    hour_ago = time.time() - 3600
    for file in [file_of(store, old) for old, _ in handles.values()] + half[::2]:
        os.utime(file, (hour_ago, hour_ago))
    assert store.sweep(1800) == 6
    kept = {kind: [file_of(store, handle).exists() for handle in pair] for kind, pair in handles.items()}
    assert kept == {"data": [True] * 2, "batch": [False, True], "priority": [False, True], "policy": [True] * 2}
    assert [file.exists() for file in half] == [False, True] * 4
    assert store.sweep(1800, kinds=("data",)) == 1
    assert not file_of(store, handles["data"][0]).exists()


def test_data_that_no_message_names_are_deleted_after_their_time(store: FileStore) -> None:
    clock = Clock()
    unannounced = UnannouncedData(store, 100.0, clock)
    for kind in ("batch", "priority"):  # whose readers were killed
        os.utime(file_of(store, store.put(kind, {})), (time.time() - 601, time.time() - 601))
    assert unannounced.sweep() == 2
    forgotten, named, other = store.put("data", {}), store.put("data", {}), store.put("batch", {})
    (store.folder / "data" / "notes.safetensors").touch()  # not a block
    assert unannounced.sweep() == 0

    def deleted_in(seconds: float) -> int:
        return sum(deleted_after(10.0) for _ in range(int(seconds / 10)))

    def deleted_after(seconds: float) -> int:
        clock.now += seconds
        return unannounced.sweep()

    assert deleted_in(60.0) == 0
    with unannounced.held(named):
        pass
    assert deleted_in(30.0) == 0
    assert deleted_in(10.0) == 1
    assert not file_of(store, forgotten).exists()
    assert deleted_in(50.0) == 0
    with unannounced.held(named), unannounced.held(named):  # a message that came twice and takes long
        assert deleted_in(200.0) == 0
    assert deleted_in(90.0) == 0
    assert deleted_after(1000.0) == 0  # the process was suspended
    assert deleted_in(90.0) == 0
    assert file_of(store, named).exists()
    assert deleted_in(10.0) == 1
    assert store.names("data") == []
    assert file_of(store, other).exists()
    assert (store.folder / "data" / "notes.safetensors").exists()


def test_incomplete_files_of_killed_processes_are_deleted_after_ten_minutes(store: FileStore) -> None:
    unannounced = UnannouncedData(store, max_age=100.0)
    half = [store.folder / "policy" / f".{HEX}{age}.safetensors.tmp" for age in ("old", "new")]
    for file in half:
        file.touch()
    os.utime(half[0], (time.time() - 601, time.time() - 601))
    assert unannounced.sweep() == 1
    assert [file.exists() for file in half] == [False, True]


def test_a_mark_is_a_new_one_each_time_and_alone(store: FileStore, tmp_path: Path) -> None:
    first, second = store.mark(), store.mark()
    assert [is_marked(store.folder, mark) for mark in (first, second)] == [False, True]
    assert not is_marked(tmp_path / "other", second)
    (store.folder / "file").touch()
    for name in ("file", "", ".", f"../data/{second}", f"{second}/../{second}"):
        assert not is_marked(store.folder, name)


@pytest.mark.parametrize("arguments", [{"max_bytes": 0}, {"max_bytes": -1}])
def test_a_store_needs_room_for_blocks(arguments: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes must be > 0"):
        FileStore(tmp_path, **arguments)


WRITER = """
import os, sys
from pathlib import Path
import torch
from lightning_ding.distributed.file_store import FileStore
store = FileStore(Path(sys.argv[1]))
print(store.put("data", {"x": torch.arange(1000)})["name"], flush=True)
import lightning_ding.distributed.block_files as block_files
block_files.os.replace = lambda *names: os.kill(os.getpid(), 9)
store.put("data", {"x": torch.arange(1000)})
"""


def test_a_block_outlives_its_writer_and_a_half_written_one_never_appears(tmp_path: Path) -> None:
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    writer = start([script, tmp_path / "data"])
    name = writer.communicate(timeout=60)[0].strip()
    assert writer.returncode == -9
    store = FileStore(tmp_path / "data")
    assert store.get({"kind": "data", "name": name}).tensors["x"].tolist() == list(range(1000))
    assert len(list((store.folder / "data").glob("*.safetensors"))) == 1
    assert store.sweep(0) == 1  # the half-written one
    assert len(os.listdir(store.folder / "data")) == 1
