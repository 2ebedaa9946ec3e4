"""Collecting SIGTERM and Ctrl-C for a loop that polls them, or raising them in the main thread.

Only the main thread can handle signals. In other threads the context managers of this module do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal(BaseException):
    """A SIGTERM was received; no ``Exception``, so that no env wrapper takes it for a fault of the env."""


@contextmanager
def handled(handler: Callable[[int], None], numbers: Iterable[int] = STOP_SIGNALS) -> Iterator[None]:
    """Call a function with the number of each signal, and restore the previous handlers at the end.

    Args:
        handler: Function to call in the main thread.
        numbers: Signals to handle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda received, frame: handler(received)) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def collected(numbers: Iterable[int] = STOP_SIGNALS) -> Iterator[list[int]]:
    """Yield a list to which the numbers of received signals are appended."""
    received: list[int] = []
    with handled(received.append, numbers):
        yield received


@contextmanager
def raised_once(error: Callable[[int], BaseException], numbers: Iterable[int] = STOP_SIGNALS) -> Iterator[None]:
    """Raise an error in the main thread at the first signal, and ignore further ones, so that cleaning up can end.

    Args:
        error: Function that returns the error for the number of the signal.
        numbers: Signals to handle.
    """
    is_raised = False

    def leave(number: int) -> None:
        nonlocal is_raised
        if not is_raised:
            is_raised = True
            raise error(number)

    with handled(leave, numbers):
        yield
