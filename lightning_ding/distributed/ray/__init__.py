"""The transport over Ray: coordinator, learner and collectors are actors, and tensors lie in Ray's object store.

Ray trusts whoever has joined its cluster: it pickles, so each of its processes can run code in the others. Who may join
is Ray's affair: its newer versions ask for a token, older ones for nothing. A cluster belongs on a network of its own.
Ray itself is imported when it is needed, not before.
"""

from __future__ import annotations

from typing import Any

COORDINATOR = "coordinator"
"""Name of the coordinator's actor in the namespace of its run."""


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        ImportError: If it is not installed; the message says how to get it.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError('the transport "ray" needs Ray: pip install lightning_ding[ray]') from error
    return ray


def namespace_of(exp_name: str) -> str:
    """Return the Ray namespace of a run, by its folder, so that runs on one cluster do not meet."""
    from pathlib import Path

    return f"lightning_ding:{Path(exp_name).resolve()}"
