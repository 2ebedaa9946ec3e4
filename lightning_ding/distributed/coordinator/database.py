"""The database of a run: small records in one SQLite file, of which a change costs as much as the change is large.

The file is in SQLite's write-ahead mode. A transaction survives the death of the process as soon as it is committed,
and a power failure if it or a later one is synced. After a power failure the database is as it was at some moment, so
its records always fit each other. Each record has a checksum. The file appears under its name with its first records.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import sync

Key = tuple[str, "str | int"]
"""Kind of a record, such as ``"task"``, and its name or number among those of its kind."""
TABLE = "CREATE TABLE records (kind, name, value, checksum, PRIMARY KEY (kind, name)) WITHOUT ROWID"
SET = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)"
UNKNOWN = "no such"
"""Beginning of SQLite's message about a table or a column that the file does not have."""
DELETE = "DELETE FROM records WHERE kind = ? AND name = ?"


class DamagedError(ValueError):
    """A record, or the whole file, has changed since it was written."""


class Database:
    """Records of builtins by kind and name; may be used from several threads, and by one process at a time.

    Args:
        file: The file, made by the first :meth:`write`.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._wait = 5.0  # seconds for another process to close the file
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._has_ended = False

    def write(self, changes: Mapping[Key, Any], is_synced: bool = True) -> None:
        """Set records, or delete those whose value is None, all of them or none.

        Args:
            changes: Values as builtins, by kind and name.
            is_synced: Whether this and all earlier changes survive a power failure, which makes the call slower.

        Raises:
            OSError: If the file cannot be written; then nothing has changed.
        """
        texts = {key: json.dumps(value) for key, value in changes.items() if value is not None}
        new = [(*key, text, zlib.crc32(f"{key[1]} {text}".encode())) for key, text in texts.items()]
        gone = [key for key, value in changes.items() if value is None]
        with self._lock, _errors_of(self.file):
            self._check_open()
            if self._connection is None and not self.file.exists():
                self._create(new)
                return
            connection = self._connected()
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            with _transaction(connection):
                connection.executemany(SET, new)
                connection.executemany(DELETE, gone)

    def delete_until(self, kind: str, number: int) -> None:
        """Delete the records of a kind that have a number up to a given one.

        Raises:
            OSError: If the file cannot be written.
        """
        with self._lock, _errors_of(self.file):
            if self._connection is not None or self.file.exists():
                self._connected().execute("DELETE FROM records WHERE kind = ? AND name <= ?", (kind, number))

    def read(self, kind: str) -> Iterator[tuple[Any, Any]]:
        """Yield the names or numbers of the records of a kind, in order, and their values, or a ``DamagedError``.

        Raises:
            DamagedError: If the file is no database.
            OSError: If it cannot be read.
        """
        if self._connection is None and not self.file.exists():
            return
        # the signs let SQLite look at each record, so that a damaged key of one does not hide others
        query = "SELECT name, value, checksum FROM records WHERE +kind = ? ORDER BY +name"
        with self._lock, _errors_of(self.file):
            rows = self._connected().execute(query, (kind,)).fetchall()
        for name, value, checksum in rows:
            is_whole = zlib.crc32(f"{name} {value}".encode()) == checksum
            yield name, json.loads(value) if is_whole else DamagedError("it has changed since it was written")

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def end(self) -> None:
        """Close the file for good: a later call raises ``OSError`` instead of opening it again."""
        self._has_ended = True
        self.close()

    def _check_open(self) -> None:
        if self._has_ended:
            raise OSError(f"{self.file} is closed, because its process ends")

    def _connected(self) -> sqlite3.Connection:
        self._check_open()
        if self._connection is None:
            connection = sqlite3.connect(self.file, self._wait, isolation_level=None, check_same_thread=False)
            # if a bit of a text has changed, its checksum will not fit
            connection.text_factory = lambda content: content.decode(errors="replace")
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # needs no shared memory, as on a network disk
                connection.execute("SELECT 1 FROM records LIMIT 1").fetchall()
                connection.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _create(self, rows: list[tuple[Any, ...]]) -> None:
        """Write the first records into a file that appears when they are on the disk."""
        hidden = self.file.with_name(f".{self.file.name}.new")
        for left in hidden.parent.glob(f"{hidden.name}*"):  # by a process that was killed, with its journal
            left.unlink()
        connection = sqlite3.connect(hidden, isolation_level=None)
        try:
            with _transaction(connection):
                connection.execute(TABLE)
                connection.executemany(SET, rows)
        finally:
            connection.close()
        os.replace(hidden, self.file)
        sync(self.file.parent)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    """Raise a ``DamagedError`` for a damaged file, and an ``OSError`` for a full or unreadable disk, as files do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not str(error).startswith(UNKNOWN):
            raise OSError(str(error)) from error
        raise DamagedError(f"{file} is damaged, so the run cannot be resumed: {error}") from error
