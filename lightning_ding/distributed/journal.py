"""What was accepted, on the disk before it is acknowledged.

An entry is a JSON file and, if it came with data, a safetensors file that appears behind it: the entry counts as soon
as the last of them is there. A snapshot is a folder with the state up to some entry; it loses its hidden name when it
is whole and on the disk, and only then the entries that it holds go. Entries do not wait for the disk itself: they
survive the death of the process, but perhaps not a power cut.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text, sync, sync_tree

logger = logging.getLogger(__name__)

STATE_FILE = "state.json"


@dataclass(frozen=True)
class Entry:
    """A message that was accepted, with all that its meaning depends on."""

    number: int
    """Counts what a buffer accepted, from 1 on."""
    run_id: str
    seq: int
    slot: int
    run_number: int
    newest_version: int
    """Of the weights published by then."""
    sampled: int
    """Transitions learned from by then."""
    has_data: bool
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its files, without what follows the dot."""
        return f"{self.number:012d}_{self.run_id}_{self.seq}"


class Journal:
    """The entries of one buffer, and its snapshot.

    Args:
        entries: Folder of the entries.
        snapshots: Folder of the snapshots.
    """

    def __init__(self, entries: Path, snapshots: Path) -> None:
        self._entries = entries
        self._snapshots = snapshots
        self.depth = 0
        """Entries that no snapshot holds yet."""
        for folder in (entries, snapshots):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, take_data: Callable[[Path], None]) -> None:
        """Make an entry durable.

        Args:
            entry: What was accepted.
            take_data: Brings the data to a file, whose name appears when it is whole; called if the entry has data.

        Raises:
            OSError: If the disk does not take it; then there is no such entry.
        """
        about = self._entries / f"{entry.name}.json"
        try:
            replace_text(about, json.dumps(asdict(entry)), is_synced=False)
            if entry.has_data:
                take_data(self.data_file(entry))
        except BaseException:
            self.discard(entry)
            raise
        self.depth += 1

    def discard(self, entry: Entry) -> None:
        """Remove an entry, the data first: without them it does not count."""
        self.data_file(entry).unlink(missing_ok=True)
        (self._entries / f"{entry.name}.json").unlink(missing_ok=True)

    def data_file(self, entry: Entry) -> Path:
        """Return where the data of an entry are."""
        return self._entries / f"{entry.name}.safetensors"

    def behind(self, number: int) -> Iterator[Entry]:
        """Yield the entries behind a number, in order; what is left of others is removed."""
        self.depth = 0
        for entry in self._all():
            if entry.number <= number or (entry.has_data and not self.data_file(entry).exists()):
                self.discard(entry)
            else:
                self.depth += 1
                yield entry

    def snapshot(self, number: int, state: dict[str, Any], save: Callable[[Path], None]) -> None:
        """Write a snapshot of everything up to an entry, and forget what it makes superfluous.

        Args:
            number: Of the newest entry in it.
            state: As builtins.
            save: Writes the rest into a folder.

        Raises:
            OSError: If the disk does not take it; then everything is as before.
        """
        hidden = self._snapshots / ".new"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        save(hidden)
        (hidden / STATE_FILE).write_text(json.dumps(state))
        sync_tree(hidden)
        older = list(self._whole())
        os.replace(hidden, self._snapshots / f"{max(map(_number, older), default=0) + 1:012d}")
        sync(self._snapshots)
        for folder in older:
            shutil.rmtree(folder, ignore_errors=True)
        for entry in self._all():
            if entry.number <= number:
                self.discard(entry)
        self.depth = 0

    def newest_snapshot(self) -> Path | None:
        """Return the folder of the newest snapshot."""
        return max(self._whole(), key=_number, default=None)

    def _all(self) -> list[Entry]:
        found = map(self._read, sorted(self._entries.glob("[0-9]*.json")))
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.number)

    def _read(self, file: Path) -> Entry | None:
        """Return an entry; None, and it is removed, if a power cut has left only part of it."""
        try:
            return Entry(**json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            logger.error("the entry %s of the journal is left out, it cannot be read: %s", file.stem, error)
            file.with_suffix(".safetensors").unlink(missing_ok=True)
            file.unlink()
            return None

    def _whole(self) -> Iterator[Path]:
        return (folder for folder in self._snapshots.iterdir() if folder.name.isdigit())


def _number(folder: Path) -> int:
    return int(folder.name)
