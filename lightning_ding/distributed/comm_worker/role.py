"""Comm collectors and comm learners: their base class, and functions that make the one that a config names."""

from __future__ import annotations

import logging
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from lightning_ding.config import ConfigLike, require, to_dict
from lightning_ding.distributed.comm_worker.loop import CommWorker
from lightning_ding.distributed.config import ParallelConfig, is_worker_config, resolve_run
from lightning_ding.distributed.transport import Channel, Role, get_transport
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
from lightning_ding.utils.foreign import foreign
from lightning_ding.worker.base import get_class

logger = logging.getLogger(__name__)

CLOSING = 10.0  # seconds for the thread of a worker to end after ``close``
OWN = "lightning_ding."  # modules whose classes are no user's


class BaseCommRole(ABC):
    """A process that does tasks of a coordinator until the run is over: a comm collector or a comm learner.

    A subclass may override ``start`` and ``close`` to start and end what it needs in addition.

    Args:
        cfg: Config of the whole run; or the config of a worker: ``path_data`` and ``path_policy``, folders in
            the folder of the run, ``multi_gpu``, and ``host`` and ``port``, at which nothing listens here. The config
            of a subclass may have further keys.
        channel: Channel to the coordinator, which the caller closes; if None, one is created with the transport of the
            run.
        host: Address of the coordinator; None means that it is taken from the config or the folder of the run.
        port: Port of the coordinator, given if and only if ``host`` is.

    Raises:
        ValueError: If only one of ``host`` and ``port`` is given, or a key or a setting of the transport is wrong.
        OSError: If a file that the transport needs cannot be read.
    """

    transport: ClassVar[str | None] = None
    """Name of the transport; None means ``system.transport``."""
    role: ClassVar[Role]

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] | Mapping[str, Any] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self._cfg = cfg
        self._has_worker_config = is_worker_config(cfg)
        self.config: ParallelConfig = (
            foreign("parallel_config").run_of_worker(cfg, not type(self).__module__.startswith(OWN))
            if self._has_worker_config
            else resolve_run(cfg)
        )
        require((host is None) == (port is None), "host and port", "given together or not at all", (host, port))
        self.worker: CommWorker | None = None
        """Connection to the coordinator; None before ``start``."""
        self._end_flag = True
        self._uid = uuid.uuid4().hex
        self._address = (host, port)
        self._channel = channel
        self._owns_channel = channel is None
        self._transport = get_transport(self.transport or self.config.system.transport)
        self._transport.check(self.config)
        self._thread: threading.Thread | None = None
        self._runs_in_caller = False

    @classmethod
    def over(cls, transport: str, name: str, module: str) -> type[Self]:
        """Return a subclass that uses one transport, whatever ``system.transport`` is.

        Args:
            transport: Name of the transport.
            name: Name of the subclass.
            module: Module that holds the subclass under this name, so that pickle finds it.
        """
        about = f"A {cls.__name__} over the transport ``{transport}``. See the base class for the arguments."
        names = {"__module__": module, "__qualname__": name, "__doc__": about}
        return type(name, (cls,), {**names, "transport": transport})

    # ------------------------------------------------------------------ start and end

    @property
    def starts_in_background(self) -> bool:
        """Whether ``start`` returns at once.

        It does with the config of a worker, and in a class that overrides ``start``, which continues after ``super()``.
        """
        return self._has_worker_config or type(self).start is not BaseCommRole.start

    def start(self) -> int:
        """Do tasks until the run is over, SIGTERM arrives, the coordinator is gone, or ``close`` is called.

        If :attr:`starts_in_background`, a thread does them, and this method returns at once.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`; 0 if a thread was started.

        Raises:
            Refusal: If the coordinator refuses this worker, for example because of its version.
        """
        self._end_flag = False
        if not self.starts_in_background:
            return self._do_tasks()
        if not self._runs_in_caller and self._thread is None:
            self._thread = threading.Thread(target=self._do_tasks_in_thread, name=f"{self.role} tasks", daemon=True)
            self._thread.start()
        return 0

    def run(self) -> int:
        """Start, do tasks in this thread until the run is over, close, and return the exit code of the process.

        Raises:
            Refusal: If the coordinator refuses this worker.
        """
        if not self.starts_in_background:
            return self.start()
        self._runs_in_caller = True
        try:
            self.start()
            return self._do_tasks()
        finally:
            self.close()

    def close(self) -> None:
        """Stop the task and end ``start``; may be called from any thread and repeatedly."""
        self._end_flag = True
        self._stop()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING)
            self._disconnect()

    @abstractmethod
    def _do_tasks(self) -> int:
        """Do tasks until the run is over, and return the exit code of the process."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the current task, and let no other follow."""

    def _do_tasks_in_thread(self) -> None:
        try:
            self._do_tasks()
        except Exception:
            logger.exception("the %s ends", self.role)

    # ------------------------------------------------------------------ the connection

    def _make_channel(self) -> Channel:
        """Return a channel to the coordinator."""
        return self._transport.connect(self.config, *self._address)

    def _make_worker(self, stall_timeout: float | None = None) -> CommWorker:
        """Return a worker on the channel, which is made first if it was not given."""
        if self._channel is None:
            self._channel = self._make_channel()
        self.worker = CommWorker(self._channel, self.role, stall_timeout, self._uid)
        return self.worker

    def _disconnect(self) -> None:
        """Disconnect from the coordinator, and close the channel that was made here; may be called repeatedly."""
        if self.worker is not None:
            self.worker.close()
        self._close_channel()

    def _close_channel(self) -> None:
        """Close the channel if it was made here; may be called repeatedly."""
        if self._channel is not None and self._owns_channel:
            self._channel.close()
            self._channel = None

    def _connected(self) -> CommWorker:
        if self.worker is None:
            raise RuntimeError(f"{type(self).__name__} is not started: call start()")
        return self.worker

    def _overrides(self, name: str) -> bool:
        """Return whether a user's class has its own method or property of a name."""
        owner = next(one for one in type(self).__mro__ if name in vars(one))
        return not owner.__module__.startswith(OWN)


def create_comm_collector(cfg: Any, **kwargs: Any) -> Any:
    """Return the comm collector that ``cfg.type`` names.

    In the config of a whole run, ``cfg.system.comm_collector`` names it, or ``cfg.system.transport``.

    Args:
        cfg: Config of the worker.
        kwargs: Further arguments of its constructor, such as ``host`` and ``port``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_class(COMM_COLLECTOR_REGISTRY, _named(cfg, "comm_collector"))(cfg, **kwargs)


def create_comm_learner(cfg: Any, **kwargs: Any) -> Any:
    """Return the comm learner that ``cfg`` names, as :func:`create_comm_collector` does."""
    return get_class(COMM_LEARNER_REGISTRY, _named(cfg, "comm_learner"))(cfg, **kwargs)


def _named(cfg: Any, kind: str) -> Any:
    """Return the mapping that holds the ``type``; in a whole distributed config it is the kind or the transport."""
    section = to_dict(cfg) if is_dataclass(cfg) and not isinstance(cfg, type) else cfg
    if not isinstance(section, Mapping) or "type" in section:
        return section
    system = section.get("system")
    if not isinstance(system, Mapping) or not ({"transport", kind} & system.keys()):
        return section
    name = system.get(kind) or system.get("transport")
    return {"type": name, "import_names": system.get("import_names", ())}
