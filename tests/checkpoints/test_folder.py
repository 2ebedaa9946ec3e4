from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest

from lightning_ding.checkpoints import RunFolder, find_rank_folder, last_checkpoint, verify
from lightning_ding.checkpoints.files import save_object
from lightning_ding.checkpoints.folder import SaveBuffer
from lightning_ding.checkpoints.manifest import write_manifest
from tests.processes import run_ranks_of_lightning


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

    monkeypatch.setattr("lightning_ding.checkpoints.folder.sync_tree", damage)
    with pytest.raises(OSError, match=r"state\.pt has 11 bytes, and had 10"):
        folder.publish({"world_size": 1})
    assert not (tmp_path / "last-64").exists()
    assert last_checkpoint(tmp_path) == tmp_path / "last-48" / "run.ckpt"


def test_ranks_that_write_to_different_disks_raise_an_error(tmp_path: Path) -> None:
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


def test_second_checkpoint_at_an_env_step_does_not_replace_the_first_until_it_is_complete(tmp_path: Path) -> None:
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


def checkpoint(folder: Path, saved_at: float) -> Path:
    """Make a whole checkpoint, and return its file."""
    folder.mkdir(parents=True)
    (folder / "run.ckpt").write_text("weights")
    write_manifest(folder, {"saved_at": saved_at})
    os.utime(folder, (0, 0))
    return folder / "run.ckpt"


def test_newest_checkpoint_is_the_one_that_was_written_last_not_the_one_of_most_steps(tmp_path: Path) -> None:
    checkpoint(tmp_path / "last-900", saved_at=100)
    newest = checkpoint(tmp_path / "last-64", saved_at=200)
    checkpoint(tmp_path / "last-1000", saved_at=150)
    assert last_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("above", ["", "checkpoints", "version_0/checkpoints", "lightning_logs/version_0/checkpoints"])
def test_checkpoint_is_found_under_a_runs_root(tmp_path: Path, above: str) -> None:
    newest = checkpoint(tmp_path / above / "last-64", saved_at=100)
    assert last_checkpoint(str(tmp_path)) == newest


def test_newest_version_of_a_logger_is_taken(tmp_path: Path) -> None:
    newest = checkpoint(tmp_path / "version_0" / "checkpoints" / "last-64", saved_at=200)
    checkpoint(tmp_path / "version_1" / "checkpoints" / "last-64", saved_at=100)
    assert last_checkpoint(tmp_path) == newest


def test_torn_checkpoint_is_passed_over_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = checkpoint(tmp_path / "last-48", saved_at=100)
    checkpoint(tmp_path / "last-64", saved_at=200).write_text("weight$")
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        assert last_checkpoint(tmp_path) == whole
    (record,) = caplog.records
    assert "last-64/run.ckpt has changed since it was written" in record.getMessage()


def test_checkpoint_that_lost_its_manifest_is_named_when_it_is_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = checkpoint(tmp_path / "last-48", saved_at=100)
    torn = checkpoint(tmp_path / "last-64", saved_at=200).parent
    (torn / "manifest.json").unlink()
    assert last_checkpoint(tmp_path) == whole
    assert "last-64 has no manifest.json" in caplog.text


def test_older_incomplete_checkpoint_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint(tmp_path / "last-48", saved_at=100).write_text("torn")
    newest = checkpoint(tmp_path / "last-64", saved_at=200)
    assert last_checkpoint(tmp_path) == newest
    assert not caplog.records


def test_half_written_checkpoint_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint(tmp_path / ".last-64.tmp", saved_at=200)
    assert last_checkpoint(tmp_path) is None
    assert not caplog.records


def test_manifest_of_something_else_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    assert last_checkpoint(tmp_path) is None
    assert not caplog.records


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_folder_next_to_last_ckpt_is_found_by_the_name_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "last-64" / "rank_0").mkdir(parents=True)
    assert find_rank_folder(tmp_path / "last.ckpt", "last-64") == tmp_path / "last-64"


@pytest.mark.parametrize("name", ["last-64", "kept-for-the-paper"])
def test_folder_is_found_around_the_file_in_it_whatever_it_is_called_now(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "rank_0").mkdir(parents=True)
    assert find_rank_folder(tmp_path / name / "run.ckpt", "last-64") == tmp_path / name


def test_ranks_of_another_checkpoint_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "last-48" / "rank_0").mkdir(parents=True)
    assert find_rank_folder(tmp_path / "last.ckpt", "last-64") is None


def test_folder_without_ranks_is_none(tmp_path: Path) -> None:
    (tmp_path / "last-64").mkdir()
    assert find_rank_folder(tmp_path / "last-64" / "run.ckpt", "last-64") is None


SCRIPT = Path(__file__).with_name("saving_ranks_script.py")


def test_disk_of_one_rank_that_is_full_stops_no_rank_and_leaves_the_checkpoint_of_before(tmp_path: Path) -> None:
    output = "".join(run_ranks_of_lightning(SCRIPT, tmp_path))
    reports = [json.loads((tmp_path / f"rank_{number}.json").read_text()) for number in range(2)]
    assert reports[0] == reports[1]
    last = f"last-{reports[0]['env_step']}"
    first, *failed, fourth = reports[0]["left"]
    assert failed == [first, first]  # nothing is left of what was begun
    assert fourth == [last, "last.ckpt"]
    assert verify(tmp_path / "here" / last)["world_size"] == 2
    assert sorted(folder.name for folder in (tmp_path / "here" / last).glob("rank_*")) == ["rank_0", "rank_1"]
    assert output.count("could not be written to") == 3  # rank 0 says it both times, rank 1 where it knows why
    assert output.count("File too large") == 2
