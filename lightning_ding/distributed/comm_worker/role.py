"""The base class of the processes that do tasks of a coordinator."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from typing import ClassVar

from lightning_ding.config import ConfigLike, require
from lightning_ding.distributed.comm_worker.loop import CommWorker
from lightning_ding.distributed.config import ParallelConfig, resolve_run
from lightning_ding.distributed.transport import Channel, Role, get_transport


class CommRole(ABC):
    """A process that does tasks of a coordinator until the run is over: a collector or a learner.

    Args:
        cfg: Config of the run.
        channel: Channel to the coordinator, which the caller closes; if None, one is created with the transport of the
            run.
        host: Address of the coordinator; None means that it is taken from the config or the folder of the run.
        port: Port of the coordinator, given if and only if ``host`` is.

    Raises:
        ValueError: If only one of ``host`` and ``port`` is given, or a key or a setting of the transport is wrong.
        OSError: If a file that the transport needs cannot be read.
    """

    role: ClassVar[Role]

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        self.config = resolve_run(cfg)
        require((host is None) == (port is None), "host and port", "given together or not at all", (host, port))
        self.worker: CommWorker | None = None
        """Connection to the coordinator; None before ``start``."""
        self._uid = uuid.uuid4().hex
        self._address = (host, port)
        self._channel = channel
        self._owns_channel = channel is None
        self._is_closed = False
        self._transport = get_transport(self.config.system.transport)
        self._transport.check(self.config)

    def start(self) -> int:
        """Do tasks until the run is over, SIGTERM arrives, the coordinator is gone, or ``close`` is called.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`.

        Raises:
            Refusal: If the coordinator refuses this worker, for example because of its version.
        """
        if self._channel is None:
            self._channel = self._make_channel()
        worker = self.worker = CommWorker(self._channel, self.role, self._stall_timeout, self._uid)
        if self._is_closed:
            worker.leave()
        try:
            return self._do_tasks(worker)
        finally:
            self._disconnect()

    def run(self) -> int:
        """Do tasks as :meth:`start` does, in this thread even if a subclass starts in the background."""
        return self.start()

    def close(self) -> None:
        """End the current task, after which ``start`` returns; may be called from any thread and repeatedly."""
        self._is_closed = True
        if self.worker is not None:
            self.worker.leave()
        self._stop()

    @property
    def _stall_timeout(self) -> float | None:
        """Seconds without progress after which the task is given to another worker; None for never."""
        return None

    @abstractmethod
    def _do_tasks(self, worker: CommWorker) -> int:
        """Do tasks until the run is over, and return the exit code of the process."""

    @abstractmethod
    def _stop(self) -> None:
        """End the current task, if there is one."""

    def _make_channel(self) -> Channel:
        """Return a channel to the coordinator."""
        return self._transport.connect(self.config, *self._address)

    def _disconnect(self) -> None:
        """Disconnect from the coordinator, and close the channel that was made here; may be called repeatedly."""
        if self.worker is not None:
            self.worker.close()
        if self._channel is not None and self._owns_channel:
            self._channel.close()
            self._channel = None

    def _connected(self) -> CommWorker:
        if self.worker is None:
            raise RuntimeError(f"{type(self).__name__} is not started: call start()")
        return self.worker
