"""Write files that are on the disk when the function returns, with ``OSError`` for every error of the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import torch


class UnwritableFolderError(OSError):
    """A run cannot write to one of its folders; raised when the run starts, with advice to the user."""


class _Tap:
    """A file for ``torch.save`` that stores an ``OSError`` instead of raising it.

    ``torch.save`` (torch 2.13) would turn the error into a RuntimeError without its reason, or raise a second error
    while it closes its archive.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes; after an error, do nothing."""
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Do nothing, because :func:`save_object` flushes the file once it is complete."""


def save_object(content: Any, file: Path) -> None:
    """Write tensors and builtins in the format of ``torch.load``, synced to the disk, without a copy in memory.

    Raises:
        OSError: If the file cannot be written; an incomplete file may remain.
    """
    with file.open("wb") as opened:
        tap: Any = _Tap(opened)
        torch.save(content, tap)
        if tap.error is not None:
            raise tap.error
        opened.flush()
        os.fsync(opened.fileno())


def replace_text(file: Path, text: str, is_synced: bool = True) -> None:
    """Replace the content of a text file atomically: readers see either the old content or the new one.

    Args:
        file: File to write; it need not exist.
        text: New content.
        is_synced: Whether the new content must survive a power failure, which makes the call much slower.

    Raises:
        OSError: If the file cannot be written; it then has its old content.
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
    """Make ``file`` a hard link to ``target``, or a copy on a file system without hard links.

    Raises:
        OSError: If the link or copy cannot be written; ``file`` is then unchanged.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(target, temporary)
    except OSError:  # not every file system has hard links
        shutil.copyfile(target, temporary)
        sync(temporary)
    os.replace(temporary, file)
    sync(file.parent)


def check_writable(folder: Path) -> None:
    """Check that a file can be written in a folder, or where the folder would be made; nothing is left there.

    Raises:
        OSError: If the disk is read-only or full, the folder belongs to somebody else, or a file has its name.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"0")
            file.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(existing)) from error  # not the name of the temporary file


def sync(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # Windows cannot open folders, and writes their lists of names itself
    # Windows can sync only a file that is open for writing
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
