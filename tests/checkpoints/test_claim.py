from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.checkpoints.claim import CLAIM_FILE, FolderClaim


def test_one_of_two_runs_gets_the_claim_until_it_is_released(tmp_path: Path) -> None:
    first = FolderClaim.take(tmp_path)
    assert first is not None
    assert FolderClaim.take(tmp_path) is None
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = FolderClaim.take(tmp_path)
    assert second is not None
    second.release()


def test_killed_run_leaves_no_claim(tmp_path: Path) -> None:
    killed = FolderClaim.take(tmp_path)
    assert killed is not None
    killed._file.close()  # what the kernel does
    assert (tmp_path / CLAIM_FILE).exists()
    claim = FolderClaim.take(tmp_path)
    assert claim is not None
    claim.release()


def test_claim_of_a_file_that_its_holder_removes_in_this_moment_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = FolderClaim.take(tmp_path)
    assert held is not None
    opened: Any = Path.open

    def open_then_lose(path: Path, *args: str) -> Any:
        file = opened(path, *args)
        held.release()  # after this run opened the file, and before it locks it
        return file

    monkeypatch.setattr(Path, "open", open_then_lose)
    claim = FolderClaim.take(tmp_path)
    assert claim is not None
    assert FolderClaim.take(tmp_path) is None
    claim.release()
