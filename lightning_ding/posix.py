"""What needs a POSIX system: processes that are forked or signalled, and files that are locked."""

from __future__ import annotations

import os
import sys


def require_posix(what: str, instead: str) -> None:
    """Raise on a system without POSIX processes, such as Windows.

    Args:
        what: What the user asked for.
        instead: What works there.

    Raises:
        ValueError: If the system has no ``fork``.
    """
    if not hasattr(os, "fork"):
        raise ValueError(f"{what} needs Linux or macOS (WSL on Windows), got {sys.platform}; {instead} works here")


def require_posix_for_distributed() -> None:
    """Raise where neither coordinator nor workers of a distributed run can be supervised.

    Raises:
        ValueError: If the system has no ``fork``.
    """
    require_posix("a distributed run", "a Trainer with a ReplayDataModule or RolloutDataModule")
