"""The folder of one checkpoint: the names of its files, writing them, and finding the newest folder.

A checkpoint is a folder next to a second name of its newest ``run.ckpt``::

    last.ckpt               the newest run.ckpt
    last-64/                <filename>-<env_step>
        manifest.json       sizes and checksums of all other files; written last
        run.ckpt            Lightning's checkpoint: weights, optimizers, counters, callbacks
        rank_0/             one folder for each rank, written by the datamodule (``save_rank_state``)
            rng.pt
            collecting.pt
            own_state.pt            attributes of a subclass of the policy, except on rank 0
            buffer.safetensors
            buffer_of_demonstrations.safetensors    with demonstrations and priorities

Another file of the whole run is written in :meth:`RunFolder.write`, another file of each rank in ``save_rank_state``.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Trainer

from lightning_ding import __version__
from lightning_ding.checkpoints.files import replace_by_link, sync, sync_tree
from lightning_ding.checkpoints.lightning_file import on_every_rank, write_lightning_file
from lightning_ding.checkpoints.manifest import (
    MANIFEST,
    TornCheckpointError,
    forget_files,
    read_manifest,
    verify,
    write_manifest,
)
from lightning_ding.utils.protocols import run_data

logger = logging.getLogger(__name__)

SaveBuffer = Literal["never", "last", "always"]
RUN_FILE = "run.ckpt"
RANK_FOLDER = "rank_{}"
"""Name of the folder of a rank, with its number."""
RNG_FILE = "rng.pt"
COLLECTING_FILE = "collecting.pt"
OWN_STATE_FILE = "own_state.pt"
BUFFER_FILE = "buffer.safetensors"
DEMONSTRATIONS_FILE = "buffer_of_demonstrations.safetensors"
BUFFER_FILES = "rank_*/buffer*"
SEARCH_DEPTH = 5  # levels below the searched folder, as in name/version_0/checkpoints/last-64
FOLDER_NAME = re.compile(r".+-\d+(-\d+)?")


class RunFolder:
    """Write a checkpoint to a hidden folder, and rename it to ``<filename>-<env_step>`` once all of it is on the disk.

    Args:
        parent: Folder of all checkpoints of a run.
        filename: Prefix of the names of its checkpoints; ``<filename>.ckpt`` is a link to the newest ``run.ckpt``.
        name: Name of this checkpoint's folder, from :meth:`free_name`.
    """

    def __init__(self, parent: Path, filename: str, name: str) -> None:
        self.parent, self.filename, self.name = parent, filename, name
        self.temporary = parent / f".{name}.tmp"
        self.link = parent / f"{filename}.ckpt"

    @staticmethod
    def free_name(parent: Path, filename: str, env_step: int) -> str:
        """Return ``<filename>-<env_step>``, followed by a number if that name is in use."""
        names = (f"{filename}-{env_step}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
        return next(name for name in names if not (parent / name).exists())

    def begin(self) -> None:
        """Make the folder, and remove incomplete folders of runs that were killed."""
        self.parent.mkdir(parents=True, exist_ok=True)
        for folder in self.parent.glob(f".{self.filename}-*.tmp"):
            shutil.rmtree(folder)
        self.temporary.mkdir()

    def write(self, trainer: Trainer, with_buffer: bool) -> None:
        """Write all files except the manifest. All ranks must call it.

        Raises:
            OSError: On all ranks, if one of them could not write.
        """
        data = run_data(trainer)

        def write_rank() -> None:
            own = self.temporary / RANK_FOLDER.format(trainer.global_rank)
            own.mkdir()
            data.save_rank_state(own, with_buffer)
            sync_tree(own)

        if data.has_rank_state:
            on_every_rank(trainer, write_rank)
            data.rank_folder = self.name
        try:
            write_lightning_file(trainer, self.temporary / RUN_FILE)
        finally:
            data.rank_folder = None
        data.note_written(self.temporary)

    def publish(self, facts: Mapping[str, Any]) -> Path:
        """Write the manifest with facts such as ``world_size``, read all files back, rename the folder, and return it.

        Raises:
            OSError: If a file cannot be written, has changed since it was written, or the data of a rank are missing.
        """
        ranks, world_size = len(list(self.temporary.glob(RANK_FOLDER.format("*")))), facts["world_size"]
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
        replace_by_link(self.link, folder / RUN_FILE)
        return folder

    def discard(self) -> None:
        """Remove the hidden folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def retire_older(self, keep_last: int, save_buffer: SaveBuffer) -> None:
        """Keep the newest ``keep_last`` >= 1 checkpoints, the older ones without buffers unless ``"always"``."""
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


def save_run(trainer: Trainer, parent: Path, filename: str, save_buffer: SaveBuffer, keep_last: int) -> Path:
    """Write a checkpoint to ``parent``, remove older ones, and return ``<filename>.ckpt``. All ranks must call it.

    Raises:
        OSError: On all ranks, if one of them could not write; nothing of the checkpoint is left then.
    """
    progress: Any = trainer.lightning_module.progress
    facts = {"version": __version__, "world_size": trainer.world_size}
    facts |= {"env_step": progress.env_step, "train_iter": progress.train_iter}
    name = trainer.strategy.broadcast(RunFolder.free_name(parent, filename, progress.position))
    folder = RunFolder(parent, filename, name)
    try:
        on_every_rank(trainer, folder.begin, only_zero=True)
        folder.write(trainer, save_buffer != "never")
        on_every_rank(trainer, lambda: folder.publish(facts), only_zero=True)
    except BaseException:
        if trainer.is_global_zero:
            folder.discard()
        raise
    if trainer.is_global_zero:
        try:
            folder.retire_older(keep_last, save_buffer)
        except (OSError, TornCheckpointError) as error:
            logger.warning("older checkpoints could not be removed from %s: %s", parent, error)
    return folder.link


def _saved_at(folder: Path) -> float:
    """Return when a checkpoint was written, in seconds since 1970; 0 without a manifest."""
    try:
        return float(read_manifest(folder).get("saved_at", 0.0))
    except TornCheckpointError:
        return 0.0


def last_checkpoint(folder: str | Path) -> Path | None:
    """Return ``run.ckpt`` of the newest complete checkpoint, or None if there is none.

    Every byte is read. A newer checkpoint that is not complete is skipped with a warning that gives the reason.

    Args:
        folder: Folder with checkpoints, or any folder above it, such as the folder with all versions of a logger.

    Example:
        >>> last_checkpoint("nowhere") is None
        True
    """
    for candidate in _newest_first(Path(folder)):
        try:
            verify(candidate)
        except (TornCheckpointError, OSError) as error:
            logger.warning("skipping an incomplete checkpoint: %s", error)
            continue
        return candidate / RUN_FILE
    return None


def is_newest(checkpoint: Path) -> bool:
    """Return whether a file is the newest checkpoint of its run: its ``run.ckpt``, or the link to it.

    False for a checkpoint that is no folder, such as ``best.ckpt``.
    """
    within = checkpoint.parent.parent if checkpoint.name == RUN_FILE else checkpoint.parent
    found = [
        folder for folder in within.iterdir() if FOLDER_NAME.fullmatch(folder.name) and (folder / RUN_FILE).is_file()
    ]
    if not found:
        return False
    newest = max(found, key=_written_at)
    is_link = checkpoint.parent == within and newest.name.startswith(f"{checkpoint.stem}-")
    return is_link or checkpoint.parent == newest


def other_checkpoint(folder: Path, than: Path, fits: Callable[[Path], bool] = Path.exists) -> Path | None:
    """Return ``run.ckpt`` of the newest complete checkpoint in a folder other than one, or None if there is none.

    Args:
        folder: Folder with checkpoints.
        than: Folder of the checkpoint to leave out.
        fits: Function that returns whether a complete checkpoint, given by its ``run.ckpt``, will do.
    """
    for candidate in _newest_first(folder):
        try:
            if candidate != than and verify(candidate) and fits(candidate / RUN_FILE):
                return candidate / RUN_FILE
        except (TornCheckpointError, OSError):
            continue
    return None


def _newest_first(folder: Path) -> list[Path]:
    found = sorted(((_written_at(one), one) for one in _candidates(folder)), reverse=True)
    return [candidate for _, candidate in found]


def _candidates(folder: Path) -> set[Path]:
    return {path.parent for path in _named(folder, RUN_FILE)} | {
        path.parent for path in _named(folder, MANIFEST) if FOLDER_NAME.fullmatch(path.parent.name)
    }


def _named(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files of a name, except those in hidden folders, which are not complete."""
    for depth in range(SEARCH_DEPTH + 1):
        for path in folder.glob("*/" * depth + name):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path


def _written_at(folder: Path) -> float:
    """Return when a checkpoint was written, in seconds since 1970; without a manifest, when its folder changed."""
    try:
        return float(read_manifest(folder)["saved_at"])
    except (TornCheckpointError, OSError, KeyError):
        return folder.stat().st_mtime


def find_rank_folder(checkpoint: Path, rank_folder: str) -> Path | None:
    """Return the folder that contains ``rank_0`` and so on of a checkpoint, or None if there is none.

    Args:
        checkpoint: ``last.ckpt`` next to the folder, or ``run.ckpt`` in it; the folder may have been renamed since.
        rank_folder: Name of the folder when it was written, which the checkpoint contains.
    """
    inside, beside = checkpoint.parent, checkpoint.parent / rank_folder
    candidates = [inside, beside] if checkpoint.name == RUN_FILE else [beside]
    return next((folder for folder in candidates if (folder / RANK_FOLDER.format(0)).is_dir()), None)
