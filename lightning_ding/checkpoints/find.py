"""Find the checkpoint to go on from."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from lightning_ding.checkpoints.manifest import MANIFEST, TornCheckpointError, read_manifest, verify
from lightning_ding.checkpoints.rank_folder import RUN_FILE

DEPTH = 5  # name/version_0/checkpoints/last-64 in a folder of loggers' folders
NAME = re.compile(r".+-\d+(-\d+)?")

logger = logging.getLogger(__name__)


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return ``run.ckpt`` of the newest checkpoint that is whole, or None if there is none.

    Every byte is read. A newer one that is not whole is passed over with a warning that names what is wrong.

    Args:
        folder: That of checkpoints, or any above it, such as that of all versions of a logger.

    Example:
        >>> last_checkpoint("nowhere") is None
        True
    """
    candidates = sorted(((_saved_at(one), one) for one in _candidates(Path(folder))), reverse=True)
    for _, candidate in candidates:
        try:
            verify(candidate)
        except (TornCheckpointError, OSError) as error:
            logger.warning("passing over a checkpoint that is not whole: %s", error)
            continue
        return candidate / RUN_FILE
    return None


def _candidates(folder: Path) -> set[Path]:
    return {path.parent for path in _named(folder, RUN_FILE)} | {
        path.parent for path in _named(folder, MANIFEST) if NAME.fullmatch(path.parent.name)
    }


def _named(folder: Path, name: str) -> Iterator[Path]:
    """Yield files of a name, in no hidden folder: those are not finished."""
    for depth in range(DEPTH + 1):
        for path in folder.glob("*/" * depth + name):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path


def _saved_at(folder: Path) -> float:
    """Return when a checkpoint was written, in seconds since 1970; without a manifest it is when its folder changed."""
    try:
        return float(read_manifest(folder)["saved_at"])
    except (TornCheckpointError, OSError, KeyError):
        return folder.stat().st_mtime
