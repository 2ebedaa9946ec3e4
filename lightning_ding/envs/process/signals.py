"""Env processes that SIGTERM does not end.

systemd and SLURM send it to every process of a run. The run wants to finish its round then, and needs for that its env
processes and the fork server that they come from. They leave when they are asked to over their pipes, or when the run
is gone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


@contextmanager
def sigterm_held_back() -> Iterator[None]:
    """Hold SIGTERM back from this thread for a moment, because what it starts meanwhile goes on like that."""
    resource_tracker.ensure_running()  # started with the first process, it would let SIGTERM through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stay_on_sigterm() -> None:
    """Let SIGTERM do nothing to this process; what an env starts gets it as ever."""
    signal.signal(signal.SIGTERM, _stay)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _stay(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike a signal that is ignored, a function is forgotten by the programs that are started."""
