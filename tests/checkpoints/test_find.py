from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.checkpoints.manifest import write_manifest


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
    assert "last-64/run.ckpt has other content than when it was written" in record.getMessage()


def test_checkpoint_that_lost_its_manifest_is_named_when_it_is_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = checkpoint(tmp_path / "last-48", saved_at=100)
    torn = checkpoint(tmp_path / "last-64", saved_at=200).parent
    (torn / "manifest.json").unlink()
    assert last_checkpoint(tmp_path) == whole
    assert "last-64 has no manifest.json" in caplog.text


def test_older_torn_checkpoint_is_nobodys_business(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
