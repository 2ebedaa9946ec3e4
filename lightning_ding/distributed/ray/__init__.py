"""The transport over Ray: coordinator, learner and collectors are actors, and tensors are in Ray's object store.

Ray trusts every process in its cluster: it uses pickle, so each process can run code in the others. Ray decides which
processes may join; its newer versions require a token, older ones nothing. Run a cluster in a separate network.
Ray itself is imported only when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

COORDINATOR = "coordinator"
"""Name of the coordinator's actor in the namespace of the run."""


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        ImportError: If Ray is not installed; the message explains how to install it.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError('the transport "ray" needs Ray: pip install lightning_ding[ray]') from error
    return ray


def namespace_of(exp_name: str) -> str:
    """Return the Ray namespace of a run, made from its folder, so that runs in one cluster stay separate."""
    return f"lightning_ding:{Path(exp_name).resolve()}"
