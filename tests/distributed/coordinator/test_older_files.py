"""Runs of earlier versions: their JSON files become records of the database."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from lightning_ding.distributed.coordinator.database import Database
from lightning_ding.distributed.coordinator.older_files import import_older


def test_entry_that_had_changed_before_the_import_gets_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book = {"runs": 1, "over": [], "tasks": []}
    state = {"scheduler": {"book": book}, "results": {}, "buffers": {}, "fixed": {}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    folder = tmp_path / "journal" / "b"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        text = json.dumps({"number": number, "sampled": 0.25, "newest_version": 7})
        checksum = "" if number == 3 else f', "crc32": {zlib.crc32(text.encode())}'  # still earlier ones had none
        changed = text.replace("7", "5") if number == 2 else text
        (folder / f"{number:012d}_run_{number}.json").write_text(changed[:-1] + checksum + "}")
    database = Database(tmp_path / "run.db")
    import_older(tmp_path, database)
    found = dict(database.read("entry of b"))
    assert found == {number: {"number": number, "sampled": 0.25, "policy_version": 7} for number in (1, 3)}
    assert "000000000002_run_2.json cannot be used: it has changed since it was written" in caplog.text
    assert not list(tmp_path.rglob("*.json"))
