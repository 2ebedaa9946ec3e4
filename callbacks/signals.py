"""Hearing signals whatever the main thread is waiting for."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

WAKE = b"\0"  # no signal has this number

_listening: SignalListener | None = None


class SignalListener:
    """Calls a function, in a thread of its own, with the number of each signal that comes.

    Python runs a signal's handler in the main thread, between two of its instructions. A main thread that waits for
    another rank in a collective does not get there. But the number of the signal is written to a socket at once
    (``signal.set_wakeup_fd``), and a thread reads it there.

    Behind a fit that failed ``signal.getsignal`` still gives the handler of this class, because Lightning puts back
    what it found, behind its last hook; the first signal then brings the old handler back and goes to it.

    Args:
        signals: Numbers of the signals; their handlers are replaced while this listens. One that is ignored stays so,
            as SIGINT is in what a shell runs in the background.
        hear: Gets the number of the signal.
    """

    def __init__(self, signals: Iterable[int], hear: Callable[[int], None]) -> None:
        self._signals = tuple(number for number in signals if signal.getsignal(number) != signal.SIG_IGN)
        self._hear = hear
        self._old: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; only the main thread may call this."""
        global _listening  # one process has one such socket
        self._ours, theirs = socket.socketpair()
        self._theirs = theirs
        theirs.setblocking(False)
        self._old = {number: signal.getsignal(number) for number in self._signals}
        self._old_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        _listening = self
        self.take_over()

    def take_over(self) -> None:
        """Take the handlers, from whoever has set others meanwhile; only the main thread may call this."""
        for number in self._signals:
            signal.signal(number, self._handle)

    def stop(self) -> None:
        """Give the handlers back; only the main thread may call this, any number of times."""
        global _listening
        if self._thread is None:
            return
        _listening = None
        self._give_back()
        self._theirs.send(WAKE)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._thread = None
        self._ours.close()
        self._theirs.close()

    def forget(self) -> None:
        """Listen no more in a process that was forked off, where there is no thread."""
        self._thread = None
        self._give_back()

    def _give_back(self) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, old in self._old.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._thread is None:  # Lightning put this handler back behind an exception
            self._give_back_one(number)

    def _give_back_one(self, number: int) -> None:
        signal.signal(number, self._old[number] or signal.SIG_DFL)
        signal.raise_signal(number)

    def _listen(self) -> None:
        while True:
            for number in self._ours.recv(64):
                if number == WAKE[0]:
                    return
                if number in self._signals:
                    self._hear(number)


def _forget_in_child() -> None:
    global _listening
    if _listening is not None:
        _listening.forget()
        _listening = None


if hasattr(os, "register_at_fork"):  # else a signal to a forked env process would be written to its parent's socket
    os.register_at_fork(after_in_child=_forget_in_child)
