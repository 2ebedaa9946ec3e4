"""Ending a process that cannot end by itself, and what it has started."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

STDERR = 2  # the descriptor: sys.stderr may be something that only looks like a file
SHOWING = 1.0  # seconds in which the others write their stacks


def show_stacks() -> None:
    """Write the stacks of all threads of this process and of its env processes to stderr.

    An env process shows them when it gets SIGUSR1; one that does not know that signal is ended by it, so this is only
    for a run that is about to end.
    """
    sys.stderr.flush()
    faulthandler.dump_traceback(STDERR, all_threads=True)
    for child in multiprocessing.active_children():
        if child.pid is not None and hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
    time.sleep(SHOWING)


def leave(code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> NoReturn:
    """End this process at once, its env processes and the ranks that it has started.

    Args:
        code: Exit code.
        started: Processes of ranks.
    """
    for child in multiprocessing.active_children():
        child.kill()
    for process in started:
        process.kill()
    os._exit(code)
