"""Errors for features that need a POSIX system: forking, sending signals, and locking files."""

from __future__ import annotations

import os
import sys


def require_posix(what: str, instead: str) -> None:
    """Raise on a system without POSIX processes, such as Windows.

    Args:
        what: Name of the requested feature.
        instead: Name of an alternative that works on such a system.

    Raises:
        ValueError: If the system has no ``fork``.
    """
    if not hasattr(os, "fork"):
        raise ValueError(f"{what} needs Linux or macOS (WSL on Windows), got {sys.platform}; {instead} works here")


def require_posix_for_distributed() -> None:
    """Raise on a system on which the processes of a distributed run cannot be supervised.

    Raises:
        ValueError: If the system has no ``fork``.
    """
    require_posix("a distributed run", "a Trainer with a ReplayDataModule or RolloutDataModule")
