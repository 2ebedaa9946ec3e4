"""The file of a ``CSVLogger``: rows are on the disk at once, and a resumed run keeps the earlier ones.

Lightning 2.6 deletes ``metrics.csv`` when a logger begins, keeps rows in memory until a step that is a multiple of
``flush_logs_every_n_steps``, which env steps may never be, and truncates the file when a new metric appears.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from typing_extensions import override

STEP = "step"
"""Column of the env step."""


class CsvRows(ExperimentWriter):
    """Append each row to ``metrics.csv`` at once, and replace the file atomically when a new metric appears.

    A row that cannot be written, for example because the disk is full, is written before the next one. A part of a row
    is removed from the file.

    Args:
        log_dir: Folder of the file.
        keeps: Whether the rows of an earlier run stay in the file; otherwise Lightning deletes them with a warning.
    """

    def __init__(self, log_dir: str, keeps: bool) -> None:
        self._keeps = keeps
        super().__init__(log_dir)
        self._file = Path(self.metrics_file_path)
        if keeps and self._file.is_file():
            self.metrics_keys, rows = self._read()
            if not self._file.read_bytes().endswith(b"\n"):  # a killed process or a full disk left a part of a row
                self._replace(self.metrics_keys, rows)

    def purge(self, steps: Mapping[str, int], position: int) -> None:
        """Remove the numbers that were written after a checkpoint, which a resumed run writes again.

        Args:
            steps: Step of the last number of each metric that was written before the checkpoint, by column.
            position: Env step of the checkpoint, the last step of all other metrics.

        Raises:
            OSError: If the file cannot be written; it is then unchanged.
        """
        if not self._file.is_file():
            return
        names, rows = self._read()
        kept = [row for row in (_before(row, steps, position) for row in rows) if row is not None]
        if kept != rows:
            self._replace(names, kept)

    @override
    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Write a row."""
        super().log_metrics(metrics_dict, step)
        self.save()

    @override
    def save(self) -> None:
        """Write the rows that are not in the file yet.

        Raises:
            OSError: If they cannot be written; the next call tries again.
        """
        if not self.metrics:
            return
        names = sorted({*self.metrics_keys, *(name for row in self.metrics for name in row)})
        if names == self.metrics_keys and self._file.is_file():
            self._append(_text(names, self.metrics))
        else:
            earlier = self._read()[1] if self._file.is_file() else []
            self._replace(names, [*earlier, *self.metrics])
        self.metrics_keys, self.metrics = names, []

    @override
    def _check_log_dir_exists(self) -> None:
        if not self._keeps:
            super()._check_log_dir_exists()

    def _read(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the columns and the whole rows of the file."""
        text = self._file.read_bytes()
        reader = csv.DictReader(io.StringIO(text[: text.rfind(b"\n") + 1].decode(), newline=""))
        return list(reader.fieldnames or []), list(reader)

    def _replace(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._file.with_name(f".{self._file.name}.tmp")
        header = io.StringIO(newline="")
        csv.DictWriter(header, names).writeheader()
        try:
            temporary.write_bytes(header.getvalue().encode() + _text(names, rows))
            os.replace(temporary, self._file)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _append(self, rows: bytes) -> None:
        with self._file.open("ab", buffering=0) as file:
            size, rest = os.fstat(file.fileno()).st_size, memoryview(rows)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise


def _text(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.DictWriter(text, names, extrasaction="ignore").writerows(rows)
    return text.getvalue().encode()


def _before(row: Mapping[str, Any], steps: Mapping[str, int], position: int) -> dict[str, Any] | None:
    """Return a row without the numbers after a checkpoint; None if it has no others."""
    try:
        step = int(row[STEP])
    except (KeyError, TypeError, ValueError):  # nothing says when it was written
        return dict(row)
    late = {name for name, value in row.items() if value and name != STEP and step > steps.get(name, position)}
    if not late:
        return dict(row)
    kept = {name: "" if name in late else value for name, value in row.items()}
    return kept if any(value for name, value in kept.items() if name != STEP) else None
