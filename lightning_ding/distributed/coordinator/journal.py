"""The journal and the snapshots of a buffer: accepted messages are on the disk before they are acknowledged.

An entry is a record in the database of the run and, if it has data, a safetensors file. The record is written first;
the entry is valid as soon as the file exists, too. An entry whose record or data have changed on the disk is set aside:
its data are moved into another folder, and an error in the log names it. Entries are not synced: they survive the
death of the process, but possibly not a power failure.

A snapshot is a folder with the state up to some entry, and with the checksums of its files. It is written under a
hidden name and renamed when it is complete and on the disk. The two newest snapshots are kept, and the entries after
the older one, so that nothing is lost if the newer one is damaged.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import sync, sync_tree
from lightning_ding.checkpoints.manifest import verify, write_manifest
from lightning_ding.distributed.coordinator.database import DamagedError, Database

logger = logging.getLogger(__name__)

DIGITS = 12
"""Digits of an entry's number in the name of its file."""
SUFFIX = ".safetensors"

STATE_FILE = "state.json"


@dataclass(frozen=True)
class Entry:
    """An accepted message, with everything that its effect depends on."""

    number: int
    """Number of the entry, counted per buffer from 1."""
    run_id: str
    seq: int
    slot: int
    run_number: int
    policy_version: int
    """Version of the newest published weights when the message was accepted."""
    sampled: int
    """Transitions that the learner had drawn when the message was accepted."""
    has_data: bool
    metadata: dict[str, Any] = field(default_factory=dict)
    data_checksum: int | None = None
    """Checksum of its tensors; None without data."""
    serial: int = 0
    """Number of the publication of the newest weights when the message was accepted."""

    @property
    def name(self) -> str:
        """Name of its file without the suffix."""
        return f"{self.number:0{DIGITS}d}_{self.run_id}_{self.seq}"


class Journal:
    """The entries of one buffer, whose data are in folders next to the database of the run."""

    def __init__(self, database: Database, buffer_id: str) -> None:
        self._database = database
        self._kind = f"entry of {buffer_id}"
        self._data, self._damaged = (database.file.parent / name / buffer_id for name in ("journal", "damaged"))
        self.set_aside: list[str] = []
        """Names of the entries that were set aside since this process started."""
        self._data.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, take_data: Callable[[Path], None]) -> None:
        """Write an entry; several threads may write different entries.

        Args:
            entry: The entry.
            take_data: Moves the data to a file, which appears when it is complete; called if the entry has data.

        Raises:
            OSError: If it cannot be written; then there is no such entry.
        """
        self._database.write({(self._kind, entry.number): vars(entry)}, is_synced=False)
        if entry.has_data:
            try:
                take_data(self.data_file(entry))
            except BaseException:
                self.discard(entry)
                raise

    def discard(self, entry: Entry) -> None:
        """Delete an entry, its data first, because the entry is not valid without them."""
        self.data_file(entry).unlink(missing_ok=True)
        self._database.write({(self._kind, entry.number): None}, is_synced=False)

    def reject(self, name: str, reason: object) -> None:
        """Delete an entry that cannot be used, move its data into the folder for damaged ones, and log an error.

        Args:
            name: Name of its file without the suffix.
            reason: The damage.
        """
        self._damaged.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            os.replace(self._data / f"{name}{SUFFIX}", self._damaged / f"{name}{SUFFIX}")
        self._database.write({(self._kind, int(name[:DIGITS])): None}, is_synced=False)
        self.set_aside.append(name)
        logger.error("the journal entry %s cannot be used, its data are in %s: %s", name, self._damaged, reason)

    def data_file(self, entry: Entry) -> Path:
        """Return the file for the data of an entry."""
        return self._data / f"{entry.name}{SUFFIX}"

    def after(self, number: int) -> Iterator[Entry]:
        """Yield the entries after a number, in order; delete incomplete ones, and set damaged ones aside."""
        for unfinished in self._data.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        found, names = self._database.read(self._kind), self._names()
        records = {one: record for one, record in found if isinstance(one, int)}  # others have changed on the disk
        for one in sorted(records.keys() | names.keys()):
            if one > number and (entry := self._entry(one, records.get(one), names.get(one))) is not None:
                yield entry

    def delete_until(self, number: int) -> None:
        """Delete the entries up to a number, their data first, without reading them."""
        for one, name in sorted(self._names().items()):
            if one <= number:
                with suppress(FileNotFoundError):
                    os.unlink(self._data / f"{name}{SUFFIX}")
        self._database.delete_until(self._kind, number)

    def is_complete(self) -> bool:
        """Return whether no entry was deleted yet, so that the buffer can be made from the journal alone."""
        return any(number == 1 for number, _ in self._database.read(self._kind))

    def _names(self) -> dict[int, str]:
        """Return the name of the data of each entry by its number."""
        names = (os.path.splitext(file)[0] for file in os.listdir(self._data) if file[:DIGITS].isdigit())
        return {int(name[:DIGITS]): name for name in names}

    def _entry(self, number: int, record: Any, name: str | None) -> Entry | None:
        """Return an entry; None if its writing was interrupted, after deleting it, or if it is damaged."""
        if isinstance(record, dict) and not (record["has_data"] and name is None):
            return Entry(**record)
        if record is None or isinstance(record, DamagedError):
            self.reject(name or f"{number:0{DIGITS}d}", record or "its record is missing")
        else:  # the process died before it could move the data
            logger.warning("deleting the journal entry %s, whose writing was interrupted", Entry(**record).name)
            self._database.write({(self._kind, number): None}, is_synced=False)
        return None


class Snapshots:
    """The snapshots of one buffer.

    Args:
        folder: Folder of the snapshots, made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hidden = folder / ".new"
        self._newest: tuple[Path, int] | None = None  # that can be used, and the newest entry that it contains
        self.superfluous = 0
        """Number of the newest entry that no start needs any more, because both snapshots contain it."""
        folder.mkdir(parents=True, exist_ok=True)

    def newest_first(self) -> list[Path]:
        """Return the folders of all snapshots that were completed, the newest first."""
        found = (one for one in self._folder.iterdir() if one.name.isdigit())
        return sorted(found, key=lambda one: int(one.name), reverse=True)

    def read_state(self, folder: Path) -> dict[str, Any]:
        """Return the state of a snapshot, after comparing its files with their checksums.

        Raises:
            ValueError: If a file is missing or has changed; the message names it.
            OSError: If a file cannot be read.
        """
        verify(folder)
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
        return state

    def use(self, folder: Path, number: int) -> None:
        """Note the snapshot that this process has loaded.

        Args:
            folder: Folder of the snapshot.
            number: Number of the newest entry that it contains.
        """
        self._newest = (folder, number)

    def write(self, state: dict[str, Any], save: Callable[[Path], None]) -> None:
        """Write the state up to the newest entry, which becomes a snapshot with :meth:`publish`.

        Args:
            state: State as builtins.
            save: Writes the remaining files into a folder.

        Raises:
            OSError: If a file cannot be written; then nothing has changed.
        """
        shutil.rmtree(self._hidden, ignore_errors=True)
        self._hidden.mkdir()
        save(self._hidden)
        (self._hidden / STATE_FILE).write_text(json.dumps(state))

    def publish(self, number: int) -> None:
        """Complete the written snapshot, and delete all others but the one before it.

        Entries may be written at the same time.

        Args:
            number: Number of the newest entry that the snapshot contains.

        Raises:
            OSError: If a file cannot be written; then nothing has changed.
        """
        write_manifest(self._hidden, {"entry": number})
        sync_tree(self._hidden)
        others = self.newest_first()
        folder = self._folder / f"{int(others[0].name) + 1 if others else 1:012d}"
        os.replace(self._hidden, folder)
        sync(self._folder)
        before, self._newest = self._newest, (folder, number)
        for other in others:
            if before is None or other != before[0]:
                shutil.rmtree(other, ignore_errors=True)
        self.superfluous = 0 if before is None else before[1]

    def delete_older(self) -> None:
        """Delete all snapshots but the newest one that can be used, so that no start needs the entries before it.

        Nothing is deleted if this process has neither loaded nor written one.
        """
        if self._newest is None:
            return
        newest, self.superfluous = self._newest
        for folder in self.newest_first():
            if folder != newest:
                shutil.rmtree(folder, ignore_errors=True)
