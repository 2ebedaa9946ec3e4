"""The database of a run: all of a change or nothing of it, and what is left of a first write that was interrupted."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("is_deleted", [False, True])
def test_database_that_has_ended_is_not_opened_again(tmp_path: Path, is_deleted: bool) -> None:
    database = Database(tmp_path / "run.db")
    database.write({("state", "a"): 1})
    database.close()
    database.write({("state", "a"): 2})
    database.end()
    if is_deleted:
        (tmp_path / "run.db").unlink()
    with pytest.raises(OSError, match="is closed, because its process ends"):
        database.write({("state", "a"): 3})
    if is_deleted:
        assert list(tmp_path.iterdir()) == []
    else:
        assert dict(Database(tmp_path / "run.db").read("state")) == {"a": 2}


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


def test_full_disk_while_the_file_is_opened_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "run.db")
    database.write({("state", "a"): 1})  # the next write opens the file, and changes its mode
    connect = sqlite3.connect

    class Full(sqlite3.Connection):
        def execute(self, text: str, *parameters: Any) -> Any:
            if "journal_mode" in text:
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(text, *parameters)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Full))
    with pytest.raises(OSError, match="full"):
        database.write({("state", "a"): 2})
    monkeypatch.undo()
    database.write({("state", "a"): 3})
    assert dict(database.read("state")) == {"a": 3}


def test_flipped_bit_damages_one_record_or_is_found(tmp_path: Path) -> None:
    """A flipped bit of a value, of a key, of the kind of a record, and of a page's list of records."""
    database = Database(tmp_path / "run.db")
    database.write({("entry", number): {"number": number, "text": f"value {number}" * 9} for number in range(200)})
    database.close()
    content = database.file.read_bytes()
    value = content.index(b"value 77")
    for place, bit in [(value, 7), (value, 0), *((content.rindex(b"entry", 0, value), bit) for bit in range(8))]:
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        database.file.write_bytes(changed)
        found = dict(database.read("entry"))
        database.close()
        good = [number for number, one in found.items() if not isinstance(one, DamagedError)]
        assert good == [number for number in range(200) if number != 77], (place - value, bit)
    page = content.rindex(b"\x0a", 0, value) // 4096 * 4096
    changed = bytearray(content)
    changed[page + 3 : page + 5] = b"\xff\xff"  # number of records in the page
    database.file.write_bytes(changed)
    with pytest.raises(DamagedError, match=r"run\.db is damaged, so the run cannot be resumed"):
        dict(database.read("entry"))
