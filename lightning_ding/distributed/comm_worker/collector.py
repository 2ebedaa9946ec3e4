"""A collecting worker: does the tasks of the coordinator with a parallel collector, over any transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_ding.distributed.collector.base import BaseParallelCollector, create_parallel_collector
from lightning_ding.distributed.comm_worker.loop import AssignedTask, BaseCommRole
from lightning_ding.distributed.published_weights import fetch_weights
from lightning_ding.distributed.transport import DISK_WAIT, Message, Refusal

logger = logging.getLogger(__name__)

LONGEST_WAIT = 1.0  # seconds between two attempts to send data, short enough to renew the lease


class BaseCommCollector(BaseCommRole):
    """Collects and evaluates for a coordinator until the run is over. See the base class for the arguments."""

    on_stall: Callable[[float], None] | None = None
    """Function that is called with the seconds without progress once the task is lost; None calls nothing."""
    _is_closed = False
    _collector: BaseParallelCollector | None = None
    _seq = 0
    _waited = 0.0

    @property
    def collector_uid(self) -> str | None:
        """Random id of this worker; None before ``start``."""
        return None if self.worker is None else self.worker.worker_id

    # ------------------------------------------------------------------ start and end

    def start(self) -> int:
        """Do tasks until the run is over, SIGTERM arrives, the coordinator is gone, or ``close`` is called.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`.

        Raises:
            Refusal: If the coordinator refuses this worker, for example because of its version.
        """
        section = self.config.system.collector
        if section.num_threads is not None:
            torch.set_num_threads(section.num_threads)
        worker = self._make_worker("collector", section.stall_timeout)
        worker.on_stall = self.on_stall
        if self._is_closed:
            worker.leave()
        try:
            return worker.run(self._work)
        finally:
            self._close_channel()

    def close(self) -> None:
        """Stop the task and make ``start`` return; may be called from any thread and repeatedly."""
        self._is_closed = True
        if self.worker is not None:
            self.worker.leave()
        if self._collector is not None:
            self._collector.close()

    # ------------------------------------------------------------------ callbacks of the parallel collector

    def get_policy_update_info(self, path: str, serial: int = -1) -> Message | None:
        """Return the newest weights of a policy, see :func:`fetch_weights`."""
        return fetch_weights(self._connected(), path, serial)

    def send_stepdata(self, data: Any) -> Any:
        """Store transitions and return their handle; wait while there is no space for them.

        Args:
            data: Nested dict of tensors, leading axis of transitions.

        Raises:
            LeaseLostError: If another worker got the task during the wait.
        """
        worker = self._connected()
        while True:
            try:
                return worker.channel.store.put("data", data)
            except OSError as error:
                logger.error("transitions cannot be written, trying again: %s", error)
            worker.tick()
            time.sleep(DISK_WAIT)

    def send_metadata(self, metadata: Mapping[str, Any]) -> Message:
        """Send the metadata of collected transitions, and wait until the coordinator accepts them.

        Args:
            metadata: Metadata of a ``BaseParallelCollector``; ``data_id`` is the handle of the transitions, or None.

        Returns:
            The coordinator's answer. If it closes the task without accepting, the transitions are deleted.

        Raises:
            LeaseLostError: If another worker has the task now.
            Refusal: If the message is malformed.
        """
        worker = self._connected()
        about = {name: value for name, value in metadata.items() if name != "data_id"}
        about["wait_time"], self._waited = self._waited, 0.0
        fields = {"seq": self._seq, "data_id": metadata["data_id"], "metadata": about}
        try:
            while True:
                answer = worker.call("collector_data_task", **fields)
                if answer["accepted"]:
                    self._seq += 1
                    return answer
                if answer["close"]:
                    break
                self._wait(float(answer["wait"]))
        except Refusal:
            self._delete(metadata["data_id"])
            raise
        self._delete(metadata["data_id"])
        return answer

    def _wait(self, seconds: float) -> None:
        pause = min(max(seconds, 0.001), LONGEST_WAIT)
        self._connected().tick()
        time.sleep(pause)
        self._waited += pause

    def _delete(self, handle: Any) -> None:
        if handle is not None:
            self._connected().channel.store.delete(handle)

    # ------------------------------------------------------------------ tasks

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end."""
        worker = self._connected()
        self._seq, self._waited = 0, 0.0
        self._collector = collector = create_parallel_collector(
            task.task_info["collector_cfg"],
            get_policy_update_info=self.get_policy_update_info,
            send_stepdata=self.send_stepdata,
            send_metadata=self.send_metadata,
            tick=worker.tick,
        )
        worker.on_close = collector.close
        if self._is_closed:
            collector.close()
        try:
            collector.start()
            worker.call("collector_close_task", info=collector.get_finish_info())
        finally:
            self._collector = None
