"""One coordinator at a time uses the folder of a run."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.folder import FolderInUseError, check_start, locked
from tests.distributed.coordinator.coordinating import config


def test_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cfg = resolve(ParallelConfig, config(folder))
    assert not check_start(cfg, resume=False)
    with locked(folder):
        for lock in (locked(folder).__enter__, lambda: check_start(cfg, resume=False)):
            with pytest.raises(FolderInUseError, match=f"another coordinator uses '{folder}'; choose another"):
                lock()
    with locked(folder):
        pass


def test_lock_with_patience_waits_for_a_coordinator_that_ends(tmp_path: Path) -> None:
    first = ExitStack()
    first.enter_context(locked(tmp_path))
    timer = threading.Timer(0.3, first.close)
    timer.start()
    with locked(tmp_path, patience=20.0):
        assert timer.finished.is_set()


def test_coordinator_that_listens_itself_has_the_folder_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_DING_TOKEN", "a" * 40)
    settings = config(tmp_path)
    settings["system"]["transport"] = "flask_fs"
    first = Coordinator(settings)
    first.sweep()  # which writes the state
    before = sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*"))
    for resume in (False, True):
        with pytest.raises(FolderInUseError, match="another coordinator uses"):
            Coordinator(settings, resume=resume)
    assert sorted(file.relative_to(tmp_path) for file in tmp_path.rglob("*")) == before
    first.close()
    with pytest.raises(ValueError, match="contains a run: --resume continues it"):
        Coordinator(settings)
    Coordinator(settings, resume=True).close()  # the coordinator that failed has released the folder


def test_coordinator_that_cannot_write_at_its_end_releases_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_DING_TOKEN", "a" * 40)
    settings = config(tmp_path)
    settings["system"]["transport"] = "flask_fs"
    first = Coordinator(settings)
    first.sweep()

    def fail() -> None:
        raise OSError("there is no space left")

    monkeypatch.setattr(first.run, "save", fail)
    with pytest.raises(OSError, match="no space"):
        first.close()
    Coordinator(settings, resume=True).close()
