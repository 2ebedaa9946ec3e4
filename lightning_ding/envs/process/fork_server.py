"""The fork server of ``multiprocessing`` that starts env processes: its imports, and its end."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

MODULES = ["lightning_ding.envs.vector"]
"""Modules that the fork server imports, so that env processes have them."""
_owner: list[int] = []  # the process that started the fork server, once it has


def preload(context: BaseContext) -> None:
    """Make a new fork server import this package first, unless the user has chosen its imports."""
    if getattr(forkserver._forkserver, "_preload_modules", None) == ["__main__"]:
        context.set_forkserver_preload(MODULES)
    _owner[:] = [os.getpid()]


def end_fork_server() -> None:
    """End the fork server of this process, unless it has children, or the user has chosen its imports.

    ``multiprocessing`` keeps it until Python ends, and has no public function for this. It starts a new one as soon as
    one is needed. The server is killed, because it ignores SIGTERM, and ends by itself only when no process, such as a
    worker of a data loader, has a copy of its pipe.
    """
    server = forkserver._forkserver
    number, stop = getattr(server, "_forkserver_pid", None), getattr(server, "_stop", None)
    is_ours = getattr(server, "_preload_modules", None) == MODULES and _owner == [os.getpid()]
    if number is None or stop is None or not is_ours or multiprocessing.active_children():
        return
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    stop()
