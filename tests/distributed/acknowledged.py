"""Writes down which transitions a coordinator has acknowledged, as its collectors see it.

A collector that imports this module (``system.collector.import_names``) appends the rows of each accepted block to the
file ``acknowledged`` in the folder above that of the run. The coordinator's own counts could not show that it lost data
together with its counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.distributed.comm_worker.collector import CommCollector

FILE = "acknowledged"
PARTS = ("obs", "action", "next_obs")
_store, _send = CommCollector.store, CommCollector.send


def as_rows(data: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return observation, action and next observation of each transition in one row."""
    size = len(data["obs"])
    return np.concatenate([np.asarray(data[name], np.float32).reshape(size, -1) for name in PARTS], axis=1)


def read(folder: Path, columns: int) -> set[bytes]:
    """Return the rows that the collectors of a run were told to be accepted."""
    content = (folder / FILE).read_bytes()
    size = 4 * columns
    return {content[start : start + size] for start in range(0, len(content) - size + 1, size)}


def store(self: Any, data: Any) -> Any:
    """Store a block as the collector does, and keep its rows until it is accepted."""
    handle = _store(self, data)
    self.rows_of = {**getattr(self, "rows_of", {}), str(handle): as_rows(data)}
    return handle


def send(self: Any, metadata: Mapping[str, Any]) -> Any:
    """Send a message as the collector does, and append the rows of its block if they are accepted."""
    answer = _send(self, metadata)
    rows = getattr(self, "rows_of", {}).pop(str(metadata["data_id"]), None)
    if rows is not None and answer["accepted"]:
        with suppress(OSError):  # a test may fill the disk
            file = Path(self.config.main.exp_name).parent / FILE
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(opened, rows.tobytes())
            os.close(opened)
    return answer


CommCollector.store, CommCollector.send = store, send  # type: ignore[method-assign]
