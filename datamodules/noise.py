"""Warnings of Lightning that are wrong for a run of reinforcement learning."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager

NOISE = (
    r"The number of training batches \(\d+\) is smaller than the logging interval",  # MetricsLogger counts over epochs
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # what Lightning 2.6 calls of torch 2.13
)


class Noise:
    """Leaves the warnings out while Lightning prepares a loader, and only then."""

    def __init__(self) -> None:
        self._left_out: AbstractContextManager[object] | None = None

    def leave_out(self) -> None:
        """Begin to leave them out."""
        if self._left_out is None:
            self._left_out = warnings.catch_warnings()
            self._left_out.__enter__()
            for message in NOISE:
                warnings.filterwarnings("ignore", message)

    def end(self) -> None:
        """Show them again; calling it again changes nothing."""
        if self._left_out is not None:
            self._left_out.__exit__(None, None, None)
            self._left_out = None
