"""The transport over Ray: coordinator, learner and collectors are actors, and tensors are in Ray's object store.

Ray trusts every process in its cluster: it uses pickle, so each process can run code in the others. Ray decides which
processes may join; its newer versions require a token, older ones nothing. Run a cluster in a separate network.
Ray itself is imported only when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_ding.distributed.transport import ANSWERED_AT_ONCE, DATA, HEARTBEAT

COORDINATOR = "coordinator"
"""Name of the coordinator's actor in the namespace of the run."""
THREADS_OF_MESSAGES = {HEARTBEAT: 4, DATA: 8}
"""Threads of the coordinator's actor that only answer messages of one name, so that these do not wait for others.

With 24 threads for data, answers to 1,000 collectors took longer than with 8 (docs/scaling.md).
"""


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


def coordinator_class(actor: type, namespace: str, **options: Any) -> Any:
    """Return a class of actors that answer the messages of workers; its method ``remote`` starts one.

    Args:
        actor: Class with a method ``handle``.
        namespace: Namespace of the run.
        options: Further options of Ray, for example ``num_cpus``.
    """
    others = ANSWERED_AT_ONCE - sum(THREADS_OF_MESSAGES.values())
    threads = {"max_concurrency": others, "concurrency_groups": THREADS_OF_MESSAGES}
    return import_ray().remote(**threads)(actor).options(name=COORDINATOR, namespace=namespace, **options)


def namespace_of(exp_name: str) -> str:
    """Return the Ray namespace of a run, made from its folder, so that runs in one cluster stay separate."""
    return f"lightning_ding:{Path(exp_name).resolve()}"
