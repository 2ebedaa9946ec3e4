"""The journal of a buffer: accepted messages are on the disk before they are acknowledged.

An entry is a JSON file and, if it has data, a safetensors file that is written after it. The entry is valid as soon as
all its files exist. The last of them appears under its name when it is complete; a JSON file before it may be truncated
if the process dies, and is then deleted. A snapshot is a folder with the state up to some entry. It is written under a
hidden name and renamed when it is complete and on the disk; only then the entries that it contains are deleted. Entries
are not synced: they survive the death of the process, but possibly not a power failure.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text, sync, sync_tree

logger = logging.getLogger(__name__)

STATE_FILE = "state.json"
DIGITS = 12
"""Digits of an entry's number in the names of its files."""


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

    @property
    def name(self) -> str:
        """Name of its files without the suffix."""
        return f"{self.number:0{DIGITS}d}_{self.run_id}_{self.seq}"


class Journal:
    """The entries of one buffer, and its snapshot.

    Args:
        entries: Folder of the entries, made if missing.
        snapshots: Folder of the snapshots, made if missing.
    """

    def __init__(self, entries: Path, snapshots: Path) -> None:
        self._entries = entries
        self._snapshots = snapshots
        self.depth = 0
        """Number of entries that are not in a snapshot yet."""
        self._lock = threading.Lock()
        self._hidden = snapshots / ".new"
        self._depth_of_snapshot = 0
        for folder in (entries, snapshots):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, take_data: Callable[[Path], None]) -> None:
        """Write an entry; several threads may write different entries.

        Args:
            entry: The entry.
            take_data: Moves the data to a file, which appears when it is complete; called if the entry has data.

        Raises:
            OSError: If a file cannot be written; then there is no such entry.
        """
        about, text = self._entries / f"{entry.name}.json", json.dumps(vars(entry))
        try:
            if entry.has_data:
                _write(about, text)
                take_data(self.data_file(entry))
            else:
                replace_text(about, text, is_synced=False)
        except BaseException:
            self.discard(entry)
            raise
        with self._lock:
            self.depth += 1

    def discard(self, entry: Entry) -> None:
        """Delete an entry, its data first, because the entry is not valid without them."""
        self.data_file(entry).unlink(missing_ok=True)
        (self._entries / f"{entry.name}.json").unlink(missing_ok=True)

    def data_file(self, entry: Entry) -> Path:
        """Return the file for the data of an entry."""
        return self._entries / f"{entry.name}.safetensors"

    def after(self, number: int) -> Iterator[Entry]:
        """Yield the entries after a number, in order; delete earlier and incomplete ones."""
        self.depth = 0
        for entry in self._all():
            if entry.number <= number or (entry.has_data and not self.data_file(entry).exists()):
                self.discard(entry)
            else:
                self.depth += 1
                yield entry

    def write_snapshot(self, state: dict[str, Any], save: Callable[[Path], None]) -> None:
        """Write the state up to the newest entry, which becomes a snapshot with :meth:`publish_snapshot`.

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
        self._depth_of_snapshot = self.depth

    def publish_snapshot(self) -> None:
        """Wait until the written snapshot is on the disk, and delete older ones.

        Entries may be written at the same time.

        Raises:
            OSError: If a file cannot be written; then nothing has changed.
        """
        sync_tree(self._hidden)
        older = list(self._whole())
        os.replace(self._hidden, self._snapshots / f"{max(map(_number, older), default=0) + 1:012d}")
        sync(self._snapshots)
        for folder in older:
            shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self.depth -= self._depth_of_snapshot

    def delete_until(self, number: int) -> None:
        """Delete the entries up to a number, without reading them.

        Args:
            number: Number of the newest entry in a snapshot.
        """
        names = sorted(os.listdir(self._entries), reverse=True)  # the data of an entry first
        for name in names:
            if name[:DIGITS].isdigit() and int(name[:DIGITS]) <= number:
                with suppress(FileNotFoundError):
                    os.unlink(self._entries / name)

    def newest_snapshot(self) -> Path | None:
        """Return the folder of the newest snapshot; None if there is none."""
        return max(self._whole(), key=_number, default=None)

    def _all(self) -> list[Entry]:
        found = map(self._read, sorted(self._entries.glob("[0-9]*.json")))
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.number)

    def _read(self, file: Path) -> Entry | None:
        """Return an entry; if it is truncated, delete it and return None."""
        try:
            return Entry(**renamed(json.loads(file.read_text()), newest_version="policy_version"))
        except (ValueError, TypeError) as error:
            data = file.with_suffix(".safetensors")
            # without data, the process may have died in the middle of writing it, before it was acknowledged
            level = logging.ERROR if data.exists() else logging.WARNING
            logger.log(level, "skipping the journal entry %s, which cannot be read: %s", file.stem, error)
            data.unlink(missing_ok=True)
            file.unlink()
            return None

    def _whole(self) -> Iterator[Path]:
        return (folder for folder in self._snapshots.iterdir() if folder.name.isdigit())


def renamed(saved: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return a saved mapping with the current names of its keys.

    Args:
        saved: Mapping from a file that an earlier version may have written.
        names: Current name of each key by its earlier name.

    Example:
        >>> renamed({"newest_version": 3, "seq": 0}, newest_version="policy_version")
        {'policy_version': 3, 'seq': 0}
    """
    return {names.get(key, key): value for key, value in dict(saved).items()}


def _write(file: Path, text: str) -> None:
    """Write a file with few system calls, each of which may be slow in a shared folder."""
    left = memoryview(text.encode())
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while left:
            left = left[os.write(number, left) :]
    finally:
        os.close(number)


def _number(folder: Path) -> int:
    return int(folder.name)
