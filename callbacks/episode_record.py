"""A table of the episodes of training: one row for each."""

from __future__ import annotations

import csv
import io
import logging
import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding.callbacks.shared_folder import run_folder
from lightning_ding.checkpoints.files import replace_text
from lightning_ding.config import require
from lightning_ding.utils.protocols import run_data
from lightning_ding.utils.ranks import gather_bytes
from lightning_ding.worker.episodes import SUCCESS_RATE

logger = logging.getLogger(__name__)

COLUMNS = ("env_step", "return", "length", "seconds")


class EpisodeRecord(Callback):
    """Write a row for each episode that ends in training to a CSV file: ``episodes.csv`` in the folder of the run.

    The columns are ``env_step``, the env steps of the run when the episode ended; ``return``; ``length`` in env steps;
    ``seconds`` since the start of the run, without breaks; ``success_rate``, ``info["is_success"]`` at its end; and one
    for each number of the datamodule's ``info_keys``. A field is empty where the env gave no number. Rows are written
    at the end of each round, those of all ranks by rank zero. With several ranks, ``env_step`` takes the others to have
    made as many steps of the round as the rank of the episode.

    A resumed run continues the file: rows after the position of the checkpoint are removed. If the run has a new folder
    now, a copy of the earlier rows begins the file there. A file of another run is never changed; the name of the new
    one then has a number. If the file cannot be written, an error is logged once and the rows are written later.

    Args:
        dirpath: Folder; None means that of the first logger, or else ``default_root_dir`` of the Trainer.
        filename: Name of the file, ending in ``.csv``.
    """

    def __init__(self, dirpath: str | Path | None = None, filename: str = "episodes.csv") -> None:
        require(filename.endswith(".csv"), "filename", "a name that ends in .csv", filename)
        self.dirpath = dirpath
        self.filename = filename
        self.file: Path | None = None
        """Path of the file; None before the first fit and on all ranks but the first."""
        self._rows = 0  # that were made, of which the last ones may still be pending
        self._size = 0  # bytes of the file
        self._pending = b""
        self._resumed: dict[str, Any] | None = None
        self._began = 0.0
        self._seconds = 0.0  # before this fit
        self._has_failed = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Find or continue the file.

        Raises:
            ValueError: If the datamodule collects no episodes, or one of its ``info_keys`` has the name of a column.
            OSError: If the file cannot be made.
        """
        data = run_data(trainer)
        data.keep_records()
        taken = sorted({*COLUMNS} & {*data.info_keys})
        require(not taken, "info_keys", f"names other than {', '.join(COLUMNS)} with EpisodeRecord", taken)
        self._began = time.monotonic()
        self._seconds = self._seconds if self._resumed is None else self._resumed["seconds"]
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._open(Path(self.dirpath) if self.dirpath is not None else run_folder(trainer), list(data.info_keys))
        self._resumed = None

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the episodes of the round."""
        seconds = round(self._elapsed(), 3)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for env_step, episode_return, length, *infos in run_data(trainer).pop_records():
            numbers = ["" if math.isnan(number) else number for number in infos]
            writer.writerow([int(env_step), episode_return, int(length), seconds, *numbers])
        lines = b"".join(gather_bytes(text.getvalue().encode()))
        if self.file is not None and lines:
            self._rows += lines.count(b"\n")
            self._pending += lines
            self._write(self.file)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write rows that could not be written before, and stop the clock."""
        if self.file is not None and self._pending:
            self._write(self.file)
        self._seconds, self._began = self._elapsed(), 0.0

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the file, its number of rows, and the duration of the run in seconds."""
        if self._resumed is not None:
            return self._resumed
        return {"file": str(self.file or ""), "rows": self._rows, "seconds": self._elapsed()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the file that ``state_dict`` returned."""
        self._resumed = dict(state_dict)

    def _elapsed(self) -> float:
        return self._seconds + (time.monotonic() - self._began if self._began else 0.0)

    def _open(self, folder: Path, info_keys: list[str]) -> None:
        """Make the file of this fit, with the rows of the run so far."""
        folder.mkdir(parents=True, exist_ok=True)
        earlier, count = self.file, self._rows  # of an earlier fit with this callback
        if self._resumed is not None:
            earlier, count = Path(self._resumed["file"]), self._resumed["rows"]
        rows = [] if earlier is None else _read(earlier, count)
        continues = earlier is not None and earlier.is_file() and earlier.resolve().parent == folder.resolve()
        self.file = earlier if earlier is not None and continues else _unused(folder / self.filename)
        columns = dict.fromkeys([*COLUMNS, SUCCESS_RATE, *info_keys, *(name for row in rows[:1] for name in row)])
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_text(self.file, text.getvalue())
        self._rows, self._size, self._pending = len(rows), self.file.stat().st_size, b""

    def _write(self, file: Path) -> None:
        """Append the rows that wait; if that fails, log the error once and keep them."""
        try:
            with file.open("r+b") as opened:
                opened.seek(self._size)  # a failed attempt may have written the beginning of these rows
                opened.write(self._pending)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.error("%s could not be written: %s; its rows are kept and written later", file, error)
            return
        self._size += len(self._pending)
        self._pending, self._has_failed = b"", False


def _unused(file: Path) -> Path:
    """Return a path that no file has: this one, or else one with a number."""
    found, number = file, 0
    while found.exists():
        number += 1
        found = file.with_stem(f"{file.stem}-{number}")
    if found != file:
        logger.info("%s is of another run: the episodes of this one go to %s", file, found)
    return found


def _read(file: Path, rows: int) -> list[dict[str, str]]:
    """Return the first rows of a file; log it if there are fewer."""
    found: list[dict[str, str]] = []
    if file.is_file():
        whole_lines = file.read_text().rpartition("\n")[0]
        found = list(csv.DictReader(io.StringIO(whole_lines), restval=""))
    if len(found) < rows:
        logger.warning("%d of the %d episodes before the checkpoint are missing in %s", rows - len(found), rows, file)
    return found[:rows]
