"""The base class of comm workers in DI-engine's form: the config of a single worker, and start in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import Self, override

from lightning_ding.config import ConfigLike
from lightning_ding.di_engine.parallel_config import run_of_worker
from lightning_ding.distributed.comm_worker.role import CommRole
from lightning_ding.distributed.config import ParallelConfig, resolve_run
from lightning_ding.distributed.transport import Channel

logger = logging.getLogger(__name__)

CLOSING = 10.0  # seconds for the thread of a worker to end after ``close``
OWN = "lightning_ding."  # modules whose classes are no user's


class BaseCommRole(CommRole):
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

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] | Mapping[str, Any] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self._cfg = cfg
        whole = {"main", "system", "type", "import_names"}  # keys of the config of a whole run
        self._has_worker_config = isinstance(cfg, Mapping) and len(cfg) > 0 and not cfg.keys() <= whole
        is_users = not type(self).__module__.startswith(OWN)
        run = run_of_worker(cfg, is_users) if self._has_worker_config else resolve_run(cfg)  # type: ignore[arg-type]
        if self.transport is not None:
            run = replace(run, system=replace(run.system, transport=self.transport))
        super().__init__(run, channel, host=host, port=port)
        self._end_flag = True
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

    @property
    def starts_in_background(self) -> bool:
        """Whether ``start`` returns at once.

        It does with the config of a worker, and in a class that overrides ``start``, which continues after ``super()``.
        """
        return self._has_worker_config or type(self).start is not BaseCommRole.start

    @override
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
            return super().start()
        if not self._runs_in_caller and self._thread is None:
            self._thread = threading.Thread(target=self._start_here, name=f"{self.role} tasks", daemon=True)
            self._thread.start()
        return 0

    @override
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
            return super().start()
        finally:
            self.close()

    @override
    def close(self) -> None:
        """Stop the task and end ``start``; may be called from any thread and repeatedly."""
        self._end_flag = True
        super().close()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING)
            self._disconnect()

    def _start_here(self) -> None:
        try:
            super().start()
        except Exception:
            logger.exception("the %s ends", self.role)

    def _overrides(self, *names: str) -> bool:
        """Return whether a user's class has its own method or property of one of some names."""
        owners = [next(one for one in type(self).__mro__ if name in vars(one)) for name in names]
        return any(not owner.__module__.startswith(OWN) for owner in owners)
