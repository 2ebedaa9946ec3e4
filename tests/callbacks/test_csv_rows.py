from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lightning_ding.callbacks.csv_rows import CsvRows

FilesOfAtMost = Callable[[int], AbstractContextManager[None]]


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_row_is_in_the_file_at_once_and_a_new_metric_keeps_the_earlier_rows(tmp_path: Path) -> None:
    rows = CsvRows(str(tmp_path), keeps=False)
    rows.log_metrics({"a": 1.0}, step=8)
    assert rows_of(tmp_path) == [{"a": "1.0", "step": "8"}]
    rows.log_metrics({"b": 2.0}, step=16)
    assert rows_of(tmp_path) == [{"a": "1.0", "b": "", "step": "8"}, {"a": "", "b": "2.0", "step": "16"}]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]


def test_earlier_rows_are_kept_where_they_are_to_be(tmp_path: Path) -> None:
    CsvRows(str(tmp_path), keeps=False).log_metrics({"a": 1.0}, step=8)
    CsvRows(str(tmp_path), keeps=True).log_metrics({"b": 2.0}, step=16)
    assert [row["step"] for row in rows_of(tmp_path)] == ["8", "16"]
    with pytest.warns(UserWarning, match="will be deleted"):
        CsvRows(str(tmp_path), keeps=False).log_metrics({"b": 2.0}, step=24)
    assert [row["step"] for row in rows_of(tmp_path)] == ["24"]


def test_part_of_a_row_at_the_end_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_bytes(b"a,step\r\n1.0,8\r\n2.25,1")  # step 16, of a killed process
    CsvRows(str(tmp_path), keeps=True).log_metrics({"a": 3.0}, step=24)
    assert file.read_bytes() == b"a,step\r\n1.0,8\r\n3.0,24\r\n"


def test_purge_removes_what_came_after_the_checkpoint_by_metric(tmp_path: Path) -> None:
    rows = CsvRows(str(tmp_path), keeps=False)
    rows.log_metrics({"a": 1.0}, step=16)
    rows.log_metrics({"updates": 1.0, "a": 2.0}, step=20)  # another x axis: its last step in the checkpoint is 19
    rows.log_metrics({"a": 3.0, "b": 4.0}, step=24)
    rows.log_metrics({"b": 5.0}, step=32)
    rows.purge({"a": 20, "updates": 19}, position=24)
    assert rows_of(tmp_path) == [
        {"a": "1.0", "b": "", "step": "16", "updates": ""},
        {"a": "2.0", "b": "", "step": "20", "updates": ""},
        {"a": "", "b": "4.0", "step": "24", "updates": ""},
    ]


def test_full_disk_keeps_whole_rows_and_those_that_are_missing_are_written_later(
    tmp_path: Path, files_of_at_most: FilesOfAtMost
) -> None:
    rows = CsvRows(str(tmp_path), keeps=False)
    rows.log_metrics({"a": 1.0}, step=8)
    before = (tmp_path / "metrics.csv").read_bytes()
    with files_of_at_most(len(before) + 3):
        for metrics in ({"a": 2.0}, {"b": 3.0}):  # appended; a new column
            with pytest.raises(OSError, match="File too large"):
                rows.log_metrics(metrics, step=16)
            assert (tmp_path / "metrics.csv").read_bytes() == before
    rows.log_metrics({"a": 4.0}, step=24)
    assert [(row["a"], row["b"], row["step"]) for row in rows_of(tmp_path)] == [
        ("1.0", "", "8"),
        ("2.0", "", "16"),
        ("", "3.0", "16"),
        ("4.0", "", "24"),
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.csv"]
