"""The lock of a run's folder, which only one coordinator has at a time."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from typing_extensions import Self

LOCK_FILE = "coordinator.lock"
PAUSE = 0.1  # seconds between two attempts


class FolderInUseError(ValueError):
    """Another coordinator uses the folder of a run."""


class FolderLock:
    """A lock of a folder against other coordinators, in this process and in others.

    The kernel releases it at the end of the process, however it ends.

    Args:
        folder: Folder of the run, which is made if it does not exist.
        patience: Seconds to wait for a coordinator that is ending, >= 0.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self._folder = folder
        self._patience = patience
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Lock the folder.

        Raises:
            FolderInUseError: If another coordinator uses it.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = (self._folder / LOCK_FILE).open("w")
        deadline = time.monotonic() + self._patience
        while not _has_locked(self._file):
            if time.monotonic() >= deadline:
                self.release()
                raise _in_use(self._folder)
            time.sleep(PAUSE)

    def release(self) -> None:
        """Unlock the folder, if it is locked."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def require_unused(folder: Path) -> None:
    """Check that no coordinator uses a folder.

    Raises:
        FolderInUseError: If one does.
    """
    with suppress(FileNotFoundError), (folder / LOCK_FILE).open("r+") as file:
        if not _has_locked(file):
            raise _in_use(folder)


def _in_use(folder: Path) -> FolderInUseError:
    return FolderInUseError(f"another coordinator uses {str(folder)!r}; choose another main.exp_name")


def _has_locked(file: IO[str]) -> bool:
    import fcntl  # not available on Windows

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
