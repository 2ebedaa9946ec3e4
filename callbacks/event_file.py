"""Write TensorBoard's event files without a thread, so that a full disk costs some events and nothing else."""

from __future__ import annotations

import io
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)


class EventFile:
    """Appends events to a file of TensorBoard, in place of its ``EventFileWriter``.

    The thread of an ``EventFileWriter`` (TensorBoard 2.21) prints a traceback at the first error, and every later call
    raises that error. Here an event that cannot be written is left out, and the error is logged once until an event can
    be written again. A part of an event is removed from the file, because a reader would stop there.

    Args:
        path: The file, which contains only whole events.
    """

    def __init__(self, path: Path) -> None:
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
        RecordWriter(record).write(event.SerializeToString())
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


def write_without_thread(writer: SummaryWriter) -> None:
    """Replace the part of a ``SummaryWriter`` that writes its local file by an :class:`EventFile`."""
    files = writer._get_file_writer()  # opens a file again after ``close``, as Lightning does
    events = files.event_writer
    if isinstance(events, EventFileWriter) and "://" not in events.get_logdir():
        path = Path(os.fsdecode(events._file_name))
        events.close()
        files.event_writer = EventFile(path)
