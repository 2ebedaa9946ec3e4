"""The database of a run: all of a change or nothing of it, and what is left of a first write that was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_ding.distributed.coordinator.database import DamagedError, Database


def test_database_whose_first_writing_was_interrupted_is_written_again(tmp_path: Path) -> None:
    for name in (".run.db.new", ".run.db.new-journal"):
        (tmp_path / name).write_bytes(b"half of it")
    database = Database(tmp_path / "run.db")
    database.write({("state", "a"): 1})
    database.write({("state", "b"): [2], ("entry", 3): {}})
    database.write({("state", "a"): None, ("entry", 12): {}})
    database.close()
    again = Database(tmp_path / "run.db")
    assert dict(again.read("state")) == {"b": [2]}
    assert list(dict(again.read("entry"))) == [3, 12]
    again.delete_until("entry", 3)
    assert list(dict(again.read("entry"))) == [12]
    again.close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_full_disk_is_an_error_of_the_disk_and_changes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "run.db")
    database.write({("state", "a"): 1})
    database._connected().execute("PRAGMA max_page_count = 3")
    with pytest.raises(OSError, match="full"):
        database.write({("state", "a"): 2, ("state", "b"): "x" * 100_000})
    assert dict(database.read("state")) == {"a": 1}
    database.write({("state", "a"): 3})
    assert dict(database.read("state")) == {"a": 3}


def test_record_that_has_changed_is_told_apart_from_the_others(tmp_path: Path) -> None:
    database = Database(tmp_path / "run.db")
    database.write({("entry", number): {"number": number} for number in (1, 2, 3)})
    database._connected().execute("UPDATE records SET value = '{}' WHERE name = 2")
    database._connected().execute("UPDATE records SET name = 4 WHERE name = 3")
    found = dict(database.read("entry"))
    assert found[1] == {"number": 1}
    assert isinstance(found[2], DamagedError)
    assert isinstance(found[4], DamagedError)  # its checksum is that of the number 3


def test_two_processes_do_not_use_a_database_at_the_same_time(tmp_path: Path) -> None:
    first, second = Database(tmp_path / "run.db"), Database(tmp_path / "run.db")
    first.write({("state", "a"): 1})
    first.write({("state", "a"): 2})
    second._wait = 0.1
    with pytest.raises(OSError, match="locked"):
        dict(second.read("state"))
    first.close()
    assert dict(second.read("state")) == {"a": 2}
