"""The claim of a run to the folder of its checkpoints, until its first checkpoint marks the folder."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

CLAIM_FILE = ".claim"


class FolderClaim:
    """A lock that keeps other new runs out of a folder, in this process and in others.

    Two runs that start at the same moment both find a folder without checkpoints; only one of them gets the claim. The
    kernel releases it at the end of the process, however that ends, so a killed run leaves no claim behind.

    Args:
        folder: The claimed folder.
        file: The locked file in it.
    """

    def __init__(self, folder: Path, file: IO[str]) -> None:
        self.folder = folder
        self._file = file

    @classmethod
    def take(cls, folder: Path) -> FolderClaim | None:
        """Claim an existing folder, or return None if another run has claimed it.

        Raises:
            OSError: If no file can be made in the folder.
        """
        path = folder / CLAIM_FILE
        while True:
            file = path.open("a")
            if not _lock(file):
                file.close()
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return cls(folder, file)
            file.close()  # the run that held the lock removed this file before it released the lock

    def release(self) -> None:
        """Let other runs claim the folder. Calling it again changes nothing."""
        if self._file.closed:
            return
        with suppress(OSError):  # Windows removes no open file; a folder may have become read-only
            (self.folder / CLAIM_FILE).unlink()
        self._file.close()


def _lock(file: IO[str]) -> bool:
    """Return whether a file is locked by this call, and not by another run."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s cannot be locked (%s): do not start two runs in its folder at once", file.name, error)
    return True
