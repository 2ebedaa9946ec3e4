from __future__ import annotations

import time
from pathlib import Path

import pytest

from lightning_ding.checkpoints import RunFolder, last_checkpoint, verify
from lightning_ding.checkpoints.files import save_object
from lightning_ding.checkpoints.run_folder import SaveBuffer


def write(parent: Path, env_step: int) -> RunFolder:
    """Write a checkpoint but for its end."""
    folder = RunFolder(parent, "last", RunFolder.free_name(parent, "last", env_step))
    folder.begin()
    save_object({"env_step": env_step}, folder.temporary / "run.ckpt")
    (folder.temporary / "rank_0").mkdir()
    (folder.temporary / "rank_0" / "buffer.safetensors").write_text("transitions")
    (folder.temporary / "rank_0" / "state.pt").write_text("generators")
    return folder


def publish(parent: Path, env_step: int, keep_last: int = 1, save_buffer: SaveBuffer = "last") -> Path:
    """Write a checkpoint, and return its folder."""
    folder = write(parent, env_step)
    published = folder.publish({"env_step": env_step, "world_size": 1})
    folder.retire_older(keep_last, save_buffer)
    return published


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_published_checkpoint_is_whole_and_the_last_file_is_its_file(tmp_path: Path) -> None:
    folder = publish(tmp_path / "new" / "folder", 64)
    assert folder == tmp_path / "new" / "folder" / "last-64"
    assert verify(folder)["env_step"] == 64
    assert (folder.parent / "last.ckpt").samefile(folder / "run.ckpt")


def test_nothing_older_changes_until_the_new_one_is_published(tmp_path: Path) -> None:
    publish(tmp_path, 48)
    before = (tmp_path / "last.ckpt").read_bytes()
    write(tmp_path, 64)
    assert names(tmp_path) == [".last-64.tmp", "last-48", "last.ckpt"]
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert last_checkpoint(tmp_path) == tmp_path / "last-48" / "run.ckpt"


def test_what_reads_otherwise_than_it_was_written_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 48)
    folder = write(tmp_path, 64)

    def damage(path: Path) -> None:
        (path / "rank_0" / "state.pt").write_text("rotten here")

    monkeypatch.setattr("lightning_ding.checkpoints.run_folder.sync_tree", damage)
    with pytest.raises(OSError, match=r"state\.pt has 11 bytes, and had 10"):
        folder.publish({"world_size": 1})
    assert not (tmp_path / "last-64").exists()
    assert last_checkpoint(tmp_path) == tmp_path / "last-48" / "run.ckpt"


def test_ranks_that_write_to_disks_of_their_own_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="must be on a disk that all ranks share, got data of 1 of 2"):
        write(tmp_path, 64).publish({"world_size": 2})
    assert last_checkpoint(tmp_path) is None


def test_discarded_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    publish(tmp_path, 48)
    write(tmp_path, 64).discard()
    assert names(tmp_path) == ["last-48", "last.ckpt"]


def test_leftovers_of_killed_runs_go_when_the_next_checkpoint_begins(tmp_path: Path) -> None:
    (tmp_path / ".last-32.tmp" / "rank_0").mkdir(parents=True)
    (tmp_path / ".best-32.tmp").mkdir()
    write(tmp_path, 64)
    assert names(tmp_path) == [".best-32.tmp", ".last-64.tmp"]


def test_second_checkpoint_of_one_env_step_stands_beside_the_first_until_it_is_whole(tmp_path: Path) -> None:
    publish(tmp_path, 64)
    folder = write(tmp_path, 64)
    assert last_checkpoint(tmp_path) == tmp_path / "last-64" / "run.ckpt"
    folder.publish({"world_size": 1})
    folder.retire_older(1, "last")
    assert names(tmp_path) == ["last-64-2", "last.ckpt"]
    assert last_checkpoint(tmp_path) == tmp_path / "last-64-2" / "run.ckpt"


def test_newest_are_kept_by_the_time_they_were_written(tmp_path: Path) -> None:
    for env_step in (900, 32, 48, 64):
        publish(tmp_path, env_step, keep_last=3)
    assert names(tmp_path) == ["last-32", "last-48", "last-64", "last.ckpt"]


def test_clock_that_is_set_back_does_not_make_the_newest_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, 48, keep_last=2)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    publish(tmp_path, 64, keep_last=2)
    assert last_checkpoint(tmp_path) == tmp_path / "last-64" / "run.ckpt"


@pytest.mark.parametrize(("save_buffer", "kept"), [("last", [False, False, True]), ("always", [True, True, True])])
def test_older_checkpoints_keep_their_buffers_only_if_asked(
    tmp_path: Path, save_buffer: SaveBuffer, kept: list[bool]
) -> None:
    folders = [publish(tmp_path, env_step, 3, save_buffer) for env_step in (32, 48, 64)]
    assert [(folder / "rank_0" / "buffer.safetensors").is_file() for folder in folders] == kept
    for folder in folders:
        assert (folder / "rank_0" / "state.pt").is_file()
        verify(folder)


def test_folders_that_are_no_checkpoints_of_this_name_stay(tmp_path: Path) -> None:
    for name in ("last-year", "best-48", "last-48-copy", "last-16"):
        (tmp_path / name).mkdir()
    publish(tmp_path, 64)
    assert names(tmp_path) == ["best-48", "last-48-copy", "last-64", "last-year", "last.ckpt"]
