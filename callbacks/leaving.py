"""Ending a process that cannot end by itself, and what it has started."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

STDERR = 2  # the descriptor: sys.stderr may be something that only looks like a file
BACKSTOP = 5.0  # seconds for the words and stacks of a process that ends
SHOWING = 1.0  # seconds in which the others write their stacks


def show_stacks() -> None:
    """Write the stacks of all threads of this process and of its env processes to stderr.

    An env process shows them when it gets SIGUSR1; one that does not know that signal is ended by it, so this is only
    for a run that is about to end.
    """
    with suppress(OSError, ValueError, AttributeError):  # it is closed, nobody reads it, or there is none
        sys.stderr.flush()
    _write_stacks()
    for child in multiprocessing.active_children():
        if child.pid is not None and hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
    time.sleep(SHOWING)


def _write_stacks() -> None:
    """Write the stacks of all threads, by way of a file: ``faulthandler`` keeps the interpreter while it writes.

    Nothing goes on then if nobody reads stderr, and so nothing would ever end the process.
    """
    with suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
        while text:
            text = text[os.write(STDERR, text) :]


def leave_within(seconds: float, code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """Call :func:`leave` after that time from a thread of its own, whatever becomes of the caller.

    Whoever ends a process calls it first: a main thread that writes to a stderr that nobody reads (Ctrl-S) holds the
    lock of ``logging``, and the caller's own words would wait for it.
    """
    timer = threading.Timer(seconds, leave, (code, started))
    timer.daemon = True
    timer.start()


def leave(code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> NoReturn:
    """End this process at once, its env processes and the ranks that it has started.

    Args:
        code: Exit code.
        started: Processes of ranks.
    """
    try:
        processes: list[Any] = [*multiprocessing.active_children(), *started]
        for process in processes:
            with suppress(OSError, ValueError):
                process.kill()
    finally:
        os._exit(code)
