"""TensorBoard: show the returns of a run first, and write without a thread, which a full disk would end.

TensorBoard sorts names alphabetically.
"""

from __future__ import annotations

import io
import logging
import math
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

logger = logging.getLogger(__name__)

LAYOUT = {
    "returns": {
        "evaluations": ["Multiline", ["(.*-)?eval/return_mean$"]],
        "training episodes": ["Multiline", ["(.*-)?collect/return_mean$"]],
        "worst and best episode of an evaluation": ["Multiline", ["(.*-)?eval/return_(min|max)$"]],
    },
    "lengths of episodes": {
        "evaluations": ["Multiline", ["(.*-)?eval/length_mean$"]],
        "training episodes": ["Multiline", ["(.*-)?collect/length_mean$"]],
    },
    "learning": {"loss": ["Multiline", ["(.*-)?learn/.*loss$"]]},
    "speed": {"per second": ["Multiline", ["(.*-)?time/.*_per_second$"]]},
}
"""Charts of the tab Custom Scalars by category; names are regular expressions, since loggers can have a prefix."""

FIRST = {"Returns/evaluation": "eval/return_mean", "Returns/training": "collect/return_mean"}
"""Tags of TensorBoard alone, and the metrics that they repeat. TensorBoard sorts capital letters before all others."""

_laid_out: WeakSet[TensorBoardLogger] = WeakSet()
"""Loggers with a layout; a second one would have no effect."""


class TensorBoardReturns(Callback):
    """Give TensorBoard the returns first in its tabs Scalars and Custom Scalars, and the returns of runs in HParams.

    After each evaluation, the tags ``Returns/evaluation`` and ``Returns/training`` repeat ``eval/return_mean`` and
    ``collect/return_mean``, which TensorBoard sorts after ``buffer/...``. The metric of the tab HParams is
    ``hp_metric``: the mean return of the last evaluation.

    The events are written by :class:`EventFile`, which a full disk does not stop.
    """

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Make the loggers write without a thread, on rank zero."""
        for one in _loggers(trainer):
            write_without_thread(one.experiment)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the layout, on rank zero."""
        for one in _loggers(trainer):
            if one not in _laid_out:
                _laid_out.add(one)
                one.experiment.add_custom_scalars(LAYOUT)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the mean returns, on rank zero."""
        if trainer.state.fn != "fit":
            return
        tags = {**FIRST, "hp_metric": "eval/return_mean"}
        means = {tag: float(trainer.callback_metrics.get(name, math.nan)) for tag, name in tags.items()}
        known = {tag: mean for tag, mean in means.items() if math.isfinite(mean)}  # an aborted evaluation has no mean
        for one in _loggers(trainer):
            one.log_metrics(known, step=pl_module.progress.position)


def continue_events(one: TensorBoardLogger) -> None:
    """Prepare a logger that has not begun to write for a folder in which an earlier run has written.

    The layout and the hyper-parameters with their first ``hp_metric`` are there already.
    """
    _laid_out.add(one)
    one._default_hp_metric = False  # Lightning 2.6 then writes no hyper-parameters


def purge_events(one: TensorBoardLogger, position: int) -> None:
    """Make TensorBoard discard what earlier processes wrote after an env step (its ``purge_step``)."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    start = Event(step=position + 1, session_log=SessionLog(status=SessionLog.START))
    one.experiment._get_file_writer().add_event(start, position + 1)


def _loggers(trainer: Trainer) -> list[TensorBoardLogger]:
    """Return the loggers of TensorBoard, on rank zero."""
    return [one for one in trainer.loggers if isinstance(one, TensorBoardLogger)] if trainer.is_global_zero else []


class EventFile:
    """Appends events to a file of TensorBoard, in place of its ``EventFileWriter``.

    The thread of an ``EventFileWriter`` (TensorBoard 2.21) prints a traceback at the first error, and every later call
    raises that error. Here an event that cannot be written is left out, and the error is logged once until an event can
    be written again. A part of an event is removed from the file, because a reader would stop there.

    Args:
        path: The file, which contains only whole events.
    """

    def __init__(self, path: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # Lightning imports TensorBoard late, too

        self._record_writer = RecordWriter
        self._path = path
        self._file: io.FileIO | None = None
        self._size = path.stat().st_size  # bytes of whole events
        self._has_failed = False
        self._lock = threading.Lock()

    def get_logdir(self) -> str:
        """Return the folder of the file."""
        return str(self._path.parent)

    def add_event(self, event: Any) -> None:
        """Append an event, a protocol buffer; if that fails, log the error."""
        record = io.BytesIO()
        self._record_writer(record).write(event.SerializeToString())
        with self._lock:
            try:
                self._append(record.getbuffer())
            except OSError as error:
                self._close()
                if not self._has_failed:
                    text = "metrics could not be written to %s: %s; the run continues without them, and the next ones "
                    logger.error(text + "are tried again", self._path, error)
                self._has_failed = True
            else:
                self._has_failed = False

    def flush(self) -> None:
        """Do nothing, because every event is handed to the system at once."""

    def close(self) -> None:
        """Close the file; the next event opens it again."""
        with self._lock:
            self._close()

    def _append(self, record: memoryview) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            self._size = min(self._size, os.fstat(self._file.fileno()).st_size)  # smaller if it was deleted
            self._file.truncate(self._size)
        rest = record
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(record)

    def _close(self) -> None:
        """Close the file, without a part of an event at its end."""
        if self._file is not None:
            with suppress(OSError):  # tried again when the file is opened again
                self._file.truncate(self._size)
            with suppress(OSError):  # a network disk may report an error of an earlier write
                self._file.close()
        self._file = None


def write_without_thread(writer: Any) -> None:
    """Replace the part of a ``SummaryWriter`` that writes its local file by an :class:`EventFile`."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    files = writer._get_file_writer()  # opens a file again after ``close``, as Lightning does
    events = files.event_writer
    if isinstance(events, EventFileWriter) and "://" not in events.get_logdir():
        path = Path(os.fsdecode(events._file_name))
        events.close()
        files.event_writer = EventFile(_sorted_last(path))


def _sorted_last(path: Path) -> Path:
    """Rename a file of events if TensorBoard would read it before an older one of its folder; return its path.

    TensorBoard reads in the order of the names, which contain the second in which a file was made.
    """
    parts = path.name.split(".")  # events.out.tfevents.SECOND.HOST...
    newest = max(file.name for file in path.parent.glob("events.out.tfevents.*"))
    second = newest.split(".")[3]
    if newest == path.name or len(parts) < 4 or not second.isdigit():
        return path
    parts[3] = f"{int(second) + 1:010d}"
    return path.rename(path.with_name(".".join(parts)))
