"""Processes that end with their parent, however it ends, and do not end at SIGTERM.

A parent holds the only write end of a pipe, its lifeline, and never writes to it. When the parent ends, the kernel
closes the write end and sends SIGKILL to each child that has registered for that. The child does not need to run for
this, so it works for a child that hangs in C code and holds Python's GIL. ``PR_SET_PDEATHSIG`` is not an alternative:
the parent of a child of a fork server is the fork server, and a forked child would be killed when the thread that
forked it ends.

systemd and SLURM send SIGTERM to every process of a run. The run then finishes its round, for which it needs its env
processes and their fork server. They therefore ignore SIGTERM, and end on request over their pipes or when the run
ends.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, resource_tracker
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

_ends: list[Connection] = []  # the read end and the write end of this process's lifeline, once it exists
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def lifeline() -> Connection:
    """Return the read end of this process's lifeline, which is passed to its children."""
    if not _ends:
        _ends.extend(Pipe(duplex=False))
    return _ends[0]


def _close_in_fork() -> None:
    """Close the copy of the write end in a forked process; otherwise the lifeline would last as long as the fork."""
    if _ends:
        _ends[1].close()
        _ends.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no env processes
    os.register_at_fork(after_in_child=_close_in_fork)


def close_at_exit(env: Any) -> None:
    """Close an env at the end of Python if it has not been closed or deleted."""
    _open.add(env)


def _close_open() -> None:
    for env in list(_open):
        env.close()


atexit.register(_close_open)  # runs before the handler of multiprocessing, which joins all processes


def prepare_child(parent: Connection) -> None:
    """Set up the signals of a child process whose parent has this lifeline.

    The child ends with its parent, ignores SIGTERM, leaves Ctrl-C to the parent, and prints its stacks at SIGUSR1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_sigterm()
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    die_with(parent)


def die_with(parent: Connection) -> None:
    """End this process when the parent with this lifeline ends."""
    try:
        _ask_kernel(parent)
    except (AttributeError, ImportError, OSError):  # not Linux
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _ask_kernel(parent: Connection) -> None:
    import fcntl  # Windows has none

    # The file is opened again: owner and signal belong to the open file description, which a descriptor may share.
    end = os.open(f"/proc/self/fd/{parent.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    hung_up = select.poll()
    hung_up.register(end, 0)
    if hung_up.poll(0):  # the parent ended before the registration
        os._exit(1)


def _watch_parent(parent: Connection) -> None:
    parent.poll(None)  # returns only when the pipe is closed
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """InfoBlock SIGTERM in this thread while it starts processes, which inherit the signal mask."""
    resource_tracker.ensure_running()  # its start would unblock SIGTERM again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_sigterm() -> None:
    """Ignore SIGTERM in this process. Child processes started by an env still receive it."""
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing. In contrast to SIG_IGN, programs that are started do not inherit a handler."""
