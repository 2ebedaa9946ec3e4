"""Files that are on the disk when a function returns, and errors of the disk that come as ``OSError``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import torch


class _Tap:
    """Takes what ``torch.save`` writes, and keeps the disk's error for later.

    ``torch.save`` (torch 2.13) turns an error of a file into a RuntimeError that says nothing of the disk, or raises
    a second one while it puts an end to its archive. So it never sees one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, or nothing any more after an error."""
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is complete."""


def save_object(content: Any, file: Path) -> None:
    """Write tensors and builtins for ``torch.load``, straight to the disk and without a copy of it all in memory.

    Raises:
        OSError: If it cannot be written; what is there of it stays.
    """
    with file.open("wb") as opened:
        tap: Any = _Tap(opened)
        torch.save(content, tap)
        if tap.error is not None:
            raise tap.error
        opened.flush()
        os.fsync(opened.fileno())


def replace_text(file: Path, text: str, is_synced: bool = True) -> None:
    """Write a text file that is the old one or the new one at every moment, whatever process dies.

    Args:
        file: To write.
        text: What it is to hold.
        is_synced: Whether it is so after a power cut too, which takes longer than all the rest.

    Raises:
        OSError: If it cannot be written; then it is the old one.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    with temporary.open("w") as opened:
        opened.write(text)
        opened.flush()
        if is_synced:
            os.fsync(opened.fileno())
    os.replace(temporary, file)
    if is_synced:
        sync(file.parent)


def replace_by_link(file: Path, target: Path) -> None:
    """Make ``file`` a second name of ``target``, or a copy where a file can have only one.

    Raises:
        OSError: If it cannot be written; then ``file`` is what it was.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(target, temporary)
    except OSError:  # not every file system has links
        shutil.copyfile(target, temporary)
        sync(temporary)
    os.replace(temporary, file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders; it keeps their lists of names itself
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs only what can be written
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
