"""The snapshots of a buffer: the two newest ones, each with the checksums of its files.

A snapshot is a folder with the state up to some entry of the journal. It is written under a hidden name and renamed
when it is complete and on the disk. The entries after the older snapshot are kept, so that nothing is lost if the newer
one is damaged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_ding.checkpoints.files import sync, sync_tree
from lightning_ding.checkpoints.manifest import MANIFEST, read_manifest, verify, write_manifest

STATE_FILE = "state.json"
CHECKED = "manifest"
"""Key of the state that names the file with the checksums; snapshots of earlier versions have neither."""


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
        return sorted((one for one in self._folder.iterdir() if one.name.isdigit()), key=_number, reverse=True)

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
        folder = self._folder / f"{max(map(_number, others), default=0) + 1:012d}"
        os.replace(self._hidden, folder)
        sync(self._folder)
        before, self._newest = self._newest, (folder, number)
        for other in others:
            if before is None or other != before[0]:
                shutil.rmtree(other, ignore_errors=True)
        self.superfluous = 0 if before is None else before[1]


def _number(folder: Path) -> int:
    return int(folder.name)
