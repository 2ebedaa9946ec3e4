"""Leaving at once when a SIGTERM comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Leave(BaseException):
    """A SIGTERM came; no Exception, lest an env's barrier takes it for a fault of the env."""


@contextmanager
def raised_on_sigterm() -> Iterator[None]:
    """Raise ``Leave`` at the first SIGTERM, whatever the main thread is doing; other threads cannot hear signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:  # the second one shall not disturb the leaving
            came = True
            raise Leave

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
