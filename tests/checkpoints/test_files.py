from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.checkpoints.files import replace_by_link, replace_text, save_object

FilesOfAtMost = Callable[[int], AbstractContextManager[None]]


def test_saved_object_loads_without_trust_and_is_the_same(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "weights": torch.randn(300, 70),
        "nested": [1, 2.5, None, "text", {"flags": torch.tensor([True])}],
    }
    save_object(content, tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt", weights_only=True)
    assert torch.equal(loaded["weights"], content["weights"])
    assert loaded["nested"][:4] == [1, 2.5, None, "text"]
    assert loaded["nested"][4]["flags"].tolist() == [True]


@pytest.mark.parametrize("limit", [0, 1_000, 70_000, 399_000])
def test_disk_that_takes_no_more_is_an_error_of_the_disk_wherever_it_happens(
    tmp_path: Path, files_of_at_most: FilesOfAtMost, limit: int
) -> None:
    with files_of_at_most(limit), pytest.raises(OSError, match="File too large"):
        save_object([torch.zeros(50_000), torch.zeros(50_000)], tmp_path / "file.pt")  # 400 kB


def test_saving_where_there_is_no_folder_is_an_error_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_object({}, tmp_path / "nowhere" / "file.pt")


def test_text_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, files_of_at_most: FilesOfAtMost) -> None:
    file = tmp_path / "text"
    replace_text(file, "old")
    with files_of_at_most(1_000), pytest.raises(OSError, match="File too large"):
        replace_text(file, "new" * 1_000)
    assert file.read_text() == "old"
    replace_text(file, "new")
    assert file.read_text() == "new"


def test_link_takes_the_place_of_an_older_file_and_costs_no_space(tmp_path: Path) -> None:
    old, target = tmp_path / "last.ckpt", tmp_path / "run.ckpt"
    old.write_text("old")
    target.write_text("new")
    (tmp_path / ".last.ckpt.tmp").write_text("of a run that was killed")
    replace_by_link(old, target)
    assert old.read_text() == "new"
    assert old.samefile(target)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "run.ckpt"]


def test_copy_is_made_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "run.ckpt").write_text("new")
    replace_by_link(tmp_path / "last.ckpt", tmp_path / "run.ckpt")
    assert (tmp_path / "last.ckpt").read_text() == "new"
    assert not (tmp_path / "last.ckpt").samefile(tmp_path / "run.ckpt")
