"""The journal and the snapshots of a buffer: accepted messages are on the disk before they are acknowledged.

An entry is a JSON file and, if it has data, a safetensors file that is written after it. The entry is valid as soon as
all its files exist. The last of them appears under its name when it is complete; a JSON file before it may be truncated
if the process dies, and is then deleted. Both files have a checksum: an entry that has changed on the disk is moved
into another folder, and an error in the log names it. Entries are not synced: they survive the death of the process,
but possibly not a power failure.

A snapshot is a folder with the state up to some entry, and with the checksums of its files. It is written under a
hidden name and renamed when it is complete and on the disk. The two newest snapshots are kept, and the entries after
the older one, so that nothing is lost if the newer one is damaged.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import replace_text, sync, sync_tree
from lightning_ding.checkpoints.manifest import MANIFEST, read_manifest, verify, write_manifest

logger = logging.getLogger(__name__)

DIGITS = 12
"""Digits of an entry's number in the names of its files."""
CHECKSUM = "crc32"
"""Key of the checksum of an entry's JSON file; entries of earlier versions have none."""

STATE_FILE = "state.json"
CHECKED = "manifest"
"""Key of the state that names the file with the checksums; snapshots of earlier versions have neither."""


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
    """Checksum of its tensors; None without data, or if an earlier version wrote it."""
    serial: int = 0
    """Number of the publication of the newest weights when the message was accepted."""

    @property
    def name(self) -> str:
        """Name of its files without the suffix."""
        return f"{self.number:0{DIGITS}d}_{self.run_id}_{self.seq}"


class Journal:
    """The entries of one buffer.

    Args:
        entries: Folder of the entries, made if missing.
        damaged: Folder for entries that have changed on the disk, made when there is one.
    """

    def __init__(self, entries: Path, damaged: Path) -> None:
        self._entries = entries
        self._damaged = damaged
        self.depth = 0
        """Number of entries that are not in a snapshot yet."""
        self.set_aside: list[str] = []
        """Names of the entries that were moved into the folder for damaged ones, since this process started."""
        self._lock = threading.Lock()
        entries.mkdir(parents=True, exist_ok=True)

    def write(self, entry: Entry, take_data: Callable[[Path], None]) -> None:
        """Write an entry; several threads may write different entries.

        Args:
            entry: The entry.
            take_data: Moves the data to a file, which appears when it is complete; called if the entry has data.

        Raises:
            OSError: If a file cannot be written; then there is no such entry.
        """
        about, text = self._entries / f"{entry.name}.json", json.dumps(vars(entry))
        text = f'{text[:-1]}, "{CHECKSUM}": {zlib.crc32(text.encode())}}}'
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

    def reject(self, name: str, reason: object) -> None:
        """Move an entry that cannot be used into the folder for damaged ones, and log an error.

        Args:
            name: Name of its files without the suffix.
            reason: The damage.
        """
        self._damaged.mkdir(parents=True, exist_ok=True)
        for suffix in (".safetensors", ".json"):
            with suppress(FileNotFoundError):
                os.replace(self._entries / f"{name}{suffix}", self._damaged / f"{name}{suffix}")
        self.set_aside.append(name)
        logger.error("the journal entry %s cannot be used and was moved into %s: %s", name, self._damaged, reason)

    def data_file(self, entry: Entry) -> Path:
        """Return the file for the data of an entry."""
        return self._entries / f"{entry.name}.safetensors"

    def after(self, number: int) -> Iterator[Entry]:
        """Yield the entries after a number, in order; delete incomplete ones, and move damaged ones away."""
        self.depth = 0
        for unfinished in self._entries.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)
        for name, suffixes in sorted(self._names().items()):
            if _number(name) <= number:
                continue
            if ".json" not in suffixes:
                self.reject(name, "its JSON file is missing")
            elif (entry := self._read(name)) is not None:
                self.depth += 1
                yield entry

    def contained(self, depth: int) -> None:
        """Note that a snapshot contains the oldest ``depth`` of the entries that no snapshot contained before."""
        with self._lock:
            self.depth -= depth

    def delete_until(self, number: int) -> None:
        """Delete the entries up to a number, the oldest first, without reading them."""
        names = sorted(os.listdir(self._entries), key=lambda name: (name[:DIGITS], name.endswith(".json")))
        for name in names:  # the data of an entry before its JSON file
            if name[:DIGITS].isdigit() and _number(name) <= number:
                with suppress(FileNotFoundError):
                    os.unlink(self._entries / name)

    def is_complete(self) -> bool:
        """Return whether no entry was deleted yet, so that the buffer can be made from the journal alone."""
        return any(_number(name) == 1 for name in self._names())

    def _names(self) -> dict[str, set[str]]:
        """Return the suffixes of the files of each entry by its name."""
        names: dict[str, set[str]] = {}
        for file in os.listdir(self._entries):
            name, suffix = os.path.splitext(file)
            if file[:DIGITS].isdigit() and suffix in (".json", ".safetensors"):
                names.setdefault(name, set()).add(suffix)
        return names

    def _read(self, name: str) -> Entry | None:
        """Return an entry; None if its writing was interrupted, after deleting it, or if it is damaged."""
        file = self._entries / f"{name}.json"
        has_data, text = file.with_suffix(".safetensors").exists(), file.read_text(errors="replace")
        if not has_data and not text.endswith("}"):  # the process died in the middle of writing it
            logger.warning("deleting the journal entry %s, whose writing was interrupted", name)
            file.unlink()
            return None
        try:
            entry = _entry_of(name, text)
        except (ValueError, TypeError) as error:
            self.reject(name, error)
            return None
        if entry.has_data and not has_data:
            file.unlink()
            return None
        return entry


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
        return sorted((one for one in self._folder.iterdir() if one.name.isdigit()), key=_number_of, reverse=True)

    def read_state(self, folder: Path) -> dict[str, Any]:
        """Return the state of a snapshot, after comparing its files with their checksums.

        Raises:
            ValueError: If a file is missing or has changed; the message names it.
            OSError: If a file cannot be read.
        """
        if (folder / MANIFEST).exists():
            verify(folder)
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
        if CHECKED in state:
            read_manifest(folder)  # which raises if it is missing
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
        (self._hidden / STATE_FILE).write_text(json.dumps({**state, CHECKED: MANIFEST}))

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
        folder = self._folder / f"{max(map(_number_of, others), default=0) + 1:012d}"
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


def _entry_of(name: str, text: str) -> Entry:
    """Return the entry in a JSON file; its name counts if the number or the attempt in the file is a different one.

    Raises:
        ValueError: If the text has changed since it was written.
        TypeError: If it does not have the fields of an entry.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError(f"its JSON file must contain an object, got {text[:100]!r}")
    checksum = content.pop(CHECKSUM, None)
    run_id, _, seq = name[DIGITS + 1 :].rpartition("_")
    named = {"number": _number(name), "run_id": run_id, "seq": int(seq)}
    if different := sorted(key for key, value in named.items() if content.get(key) != value):
        logger.warning(
            "the journal entry %s has another %s in its file: its name counts", name, " and ".join(different)
        )
    content |= named
    if checksum is not None and checksum != zlib.crc32(json.dumps(content).encode()):
        raise ValueError("its JSON file has changed since it was written")
    return Entry(**renamed(content, newest_version="policy_version"))


def _number(name: str) -> int:
    """Return the number of an entry from the name of its files."""
    return int(name[:DIGITS])


def _number_of(folder: Path) -> int:
    """Return the number of a snapshot."""
    return int(folder.name)


def _write(file: Path, text: str) -> None:
    """Write a file with few system calls, each of which may be slow in a shared folder."""
    left = memoryview(text.encode())
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while left:
            left = left[os.write(number, left) :]
    finally:
        os.close(number)
