"""The folder of one checkpoint, from its first file until another takes its place."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_ding.checkpoints.files import replace_by_link, sync, sync_tree
from lightning_ding.checkpoints.manifest import (
    MANIFEST,
    TornCheckpointError,
    forget_files,
    read_manifest,
    verify,
    write_manifest,
)
from lightning_ding.checkpoints.rank_folder import RUN_FILE

SaveBuffer = Literal["never", "last", "always"]
BUFFER_FILES = "rank_*/buffer*"


class RunFolder:
    """Writes ``<filename>-<env_step>`` under a hidden name, which it loses when every byte of it is on the disk.

    Args:
        parent: The folder of all checkpoints of a run.
        filename: What its checkpoints are called; the newest one's ``run.ckpt`` is also ``<filename>.ckpt``.
        name: Of this one's folder; :meth:`free_name` finds one.
    """

    def __init__(self, parent: Path, filename: str, name: str) -> None:
        self.parent, self.filename, self.name = parent, filename, name
        self.temporary = parent / f".{name}.tmp"

    @staticmethod
    def free_name(parent: Path, filename: str, env_step: int) -> str:
        """Return ``<filename>-<env_step>``, with a number behind it where that is taken."""
        names = (f"{filename}-{env_step}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
        return next(name for name in names if not (parent / name).exists())

    def begin(self) -> None:
        """Make the folder, and remove what runs that were killed left half written."""
        self.parent.mkdir(parents=True, exist_ok=True)
        for folder in self.parent.glob(f".{self.filename}-*.tmp"):
            shutil.rmtree(folder)
        self.temporary.mkdir()

    def publish(self, facts: Mapping[str, Any]) -> Path:
        """Give the folder its name, and return it; nothing older is touched unless every byte can be read back.

        Args:
            facts: For the manifest; ``world_size`` of them says how many ranks there are.

        Raises:
            OSError: If it cannot be written, reads otherwise than it was written, or lacks what a rank wrote.
        """
        ranks, world_size = len(list(self.temporary.glob("rank_*"))), facts["world_size"]
        if ranks not in (0, world_size):
            raise OSError(f"{self.parent} must be on a disk that all ranks share, got data of {ranks} of {world_size}")
        saved_at = max([time.time(), *(_saved_at(folder) + 1e-3 for folder in self._all())])
        write_manifest(self.temporary, {**facts, "saved_at": saved_at})
        sync_tree(self.temporary)
        try:
            verify(self.temporary)
        except TornCheckpointError as error:
            raise OSError(str(error)) from error
        folder = self.temporary.rename(self.parent / self.name)
        sync(self.parent)
        replace_by_link(self.parent / f"{self.filename}.ckpt", folder / RUN_FILE)
        return folder

    def discard(self) -> None:
        """Remove what was written, so that its space is free again."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def retire_older(self, keep_last: int, save_buffer: SaveBuffer) -> None:
        """Remove older checkpoints but the newest of them, and from those what is not kept.

        Args:
            keep_last: Checkpoints that stay, this one included.
            save_buffer: Unless it is ``"always"``, those that stay lose their buffers.
        """
        older = sorted((folder for folder in self._all() if folder.name != self.name), key=_saved_at, reverse=True)
        for folder in older[keep_last - 1 :]:
            shutil.rmtree(folder.rename(self.parent / f".{folder.name}.tmp"))
        for folder in older[: keep_last - 1]:
            if save_buffer != "always" and (folder / MANIFEST).is_file():
                forget_files(folder, BUFFER_FILES)

    def _all(self) -> list[Path]:
        """Return the folders of this run's checkpoints."""
        own = re.compile(rf"{re.escape(self.filename)}-\d+(-\d+)?")
        return [folder for folder in self.parent.iterdir() if folder.is_dir() and own.fullmatch(folder.name)]


def _saved_at(folder: Path) -> float:
    """Return when a checkpoint was written, in seconds since 1970; one without a manifest is older than all others."""
    try:
        return float(read_manifest(folder).get("saved_at", 0.0))
    except TornCheckpointError:
        return 0.0
