from __future__ import annotations

from pathlib import Path

import pytest

from lightning_ding.checkpoints import find_rank_folder


def test_folder_is_found_beside_the_last_file_by_the_name_in_it(tmp_path: Path) -> None:
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
