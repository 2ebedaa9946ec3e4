"""End a process that cannot end by itself, together with the processes that it has started."""

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

import torch
from lightning.pytorch import Trainer

from lightning_ding.utils.ranks import gather_rows

STDERR = 2  # the descriptor, because sys.stderr may not be backed by a file
BACKSTOP = 5.0  # seconds for a process to write its messages and stacks before it is killed
SHOWING = 1.0  # seconds for env processes to write their stacks


def show_stacks() -> None:
    """Write the stacks of all threads of this process and of its env processes to stderr.

    An env process writes its stacks on SIGUSR1. A child process that does not handle that signal is ended by it, so
    call this only in a run that is about to end.
    """
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, is a broken pipe, or is None
        sys.stderr.flush()
    _write_stacks()
    for child in multiprocessing.active_children():
        if child.pid is not None and hasattr(signal, "SIGUSR1"):
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
    time.sleep(SHOWING)


def show_stacks_at_signal() -> bool:
    """Make SIGUSR1, which would end this process, write the stacks of its threads to stderr instead.

    Returns:
        Whether it does so now: not on Windows, which has no such signal, nor if the program handles the signal itself.
    """
    if not hasattr(signal, "SIGUSR1") or signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        return False
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True)
    return True


def _write_stacks() -> None:
    """Write the stacks of all threads to stderr by way of a temporary file.

    ``faulthandler`` holds the interpreter lock while it writes. If it wrote to a full pipe that is not read, the whole
    process would block, and nothing could end it.
    """
    with suppress(OSError), tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
        while text:
            text = text[os.write(STDERR, text) :]


def leave_within(seconds: float, code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """Call :func:`leave` after a delay, in another thread, which the caller cannot block.

    Call this before writing the last messages of a process: if stderr is blocked, for example by Ctrl-S, a main thread
    that writes to it holds the lock of ``logging``, and the caller's messages would wait for that lock.
    """
    timer = threading.Timer(seconds, leave, (code, started))
    timer.daemon = True
    timer.start()


def leave(code: int, started: Sequence[subprocess.Popen[Any]] = ()) -> NoReturn:
    """End this process immediately, together with its env processes and the other ranks that it has started.

    Args:
        code: Exit code.
        started: Processes of other ranks, to be killed.
    """
    try:
        processes: list[Any] = [*multiprocessing.active_children(), *started]
        for process in processes:
            with suppress(OSError, ValueError):
                process.kill()
    finally:
        os._exit(code)


def started_here(trainer: Trainer) -> list[subprocess.Popen[Any]]:
    """Return the processes of the ranks that this process has started.

    The launcher of ``strategy="ddp"`` starts one process for each further rank of the machine. Lightning 2.6 keeps them
    in its attribute ``procs`` and has no public name for them. There are none if torchrun or SLURM started the ranks.
    """
    return list(getattr(trainer.strategy.launcher, "procs", ()))


def is_started_by_a_rank(trainer: Trainer) -> bool:
    """Return whether the process of another rank started this one. All ranks must call it."""
    numbers = gather_rows(torch.tensor([os.getpid()])).flatten().tolist()
    first_here = trainer.global_rank - trainer.local_rank
    return trainer.local_rank > 0 and numbers[first_here] == os.getppid()
