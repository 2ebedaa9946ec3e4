"""Processes that do not outlive their parent, however it dies.

A parent holds the only writing end of a pipe, its lifeline, into which nobody ever writes. When it is gone the kernel
closes that end and sends SIGKILL to everyone who asked for that. Nothing needs to run in the child for it, so it also
ends one that hangs in C and holds Python's lock. ``PR_SET_PDEATHSIG`` would not do: a child of a fork server has
another parent, and one that was forked would die with the thread that forked it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import threading
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from lightning_ding.envs.process.signals import stay_on_sigterm

_ends: list[Connection] = []  # the reading and the writing end of this process's lifeline, once it has one
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def lifeline() -> Connection:
    """Return the reading end of this process's lifeline, to be given to its children."""
    if not _ends:
        _ends.extend(Pipe(duplex=False))
    return _ends[0]


def _let_go() -> None:
    """Close the writing end that a fork has copied, or the lifeline would last as long as the fork does."""
    if _ends:
        _ends[1].close()
        _ends.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where there are no env processes
    os.register_at_fork(after_in_child=_let_go)


def close_at_exit(env: Any) -> None:
    """Close an env when Python ends, if it is still there and nobody has."""
    _open.add(env)


def _close_open() -> None:
    for env in list(_open):
        env.close()


atexit.register(_close_open)  # multiprocessing registered its own before, and so joins its processes after this


def settle_in(parent: Connection) -> None:
    """Make this process a child that dies with its parent, lets Ctrl-C go to it, and shows its stacks on SIGUSR1.

    Args:
        parent: The parent's lifeline.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stay_on_sigterm()
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    die_with(parent)


def die_with(parent: Connection) -> None:
    """Let the kernel end this process as soon as its parent is gone.

    Args:
        parent: The parent's lifeline.
    """
    try:
        _ask_kernel(parent)
    except (AttributeError, ImportError, OSError):  # not Linux
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _ask_kernel(parent: Connection) -> None:
    import fcntl  # Windows has none

    # An end of one's own: who is to be told, and with what, belongs to what is open and not to the descriptor.
    end = os.open(f"/proc/self/fd/{parent.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    hung_up = select.poll()
    hung_up.register(end, 0)
    if hung_up.poll(0):  # the parent was gone before the kernel was asked
        os._exit(1)


def _watch(parent: Connection) -> None:
    parent.poll(None)  # nothing ever comes but the end
    os.kill(os.getpid(), signal.SIGKILL)
