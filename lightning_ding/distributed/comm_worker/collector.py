"""A collecting worker: does the tasks of the coordinator with a parallel collector, over any transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from typing_extensions import override

from lightning_ding.distributed.collector.base import BaseParallelCollector, create_parallel_collector
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.comm_worker.role import CommRole
from lightning_ding.distributed.published_weights import fetch_weights
from lightning_ding.distributed.transport import DISK_WAIT, Message, Refusal, Role

logger = logging.getLogger(__name__)

LONGEST_WAIT = 10.0  # seconds between two attempts to send data
TICK = 1.0  # seconds between two checks of the lease during a wait


class CommCollector(CommRole):
    """Collects and evaluates for a coordinator until the run is over. See the base class for the arguments."""

    role: ClassVar[Role] = "collector"
    on_stall: Callable[[float], None] | None = None
    """Function that is called with the seconds without progress once the task is lost; None calls nothing."""
    _collector: BaseParallelCollector | None = None

    def _begin_task(self) -> None:
        self._seq, self._waited = 0, 0.0
        self._serials: dict[str, int] = {}  # numbers of the fetched weights, by policy id
        self._latest: Message | None = None  # the coordinator's latest answer to a message with data

    @property
    @override
    def _stall_timeout(self) -> float | None:
        return self.config.system.collector.stall_timeout

    @override
    def _do_tasks(self, worker: CommWorker) -> int:
        if (threads := self.config.system.collector.num_threads) is not None:
            torch.set_num_threads(threads)
        worker.on_stall = self.on_stall
        return worker.run(self._work)

    @override
    def _stop(self) -> None:
        if self._collector is not None:
            self._collector.close()

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end."""
        worker = self._connected()
        self._begin_task()
        self._collector = collector = self._create_collector(task.task_info)
        worker.on_close = collector.close
        if self._is_closed:
            collector.close()
        try:
            collector.start()
            worker.call("collector_close_task", info=collector.get_finish_info())
        finally:
            self._collector = None

    def _create_collector(self, task_info: Mapping[str, Any]) -> BaseParallelCollector:
        """Return the collector for a task, with the functions of this worker."""
        collector = create_parallel_collector(task_info["collector_cfg"])
        collector.get_policy_update_info, collector.ask = self.fetch, self.ask
        collector.send_stepdata, collector.send_metadata = self.store, self.send
        collector.tick = lambda: self._connected().tick()
        collector.is_attached = True
        return collector

    def fetch(self, policy_id: str, serial: int = -1) -> Message | None:
        """Return the newest weights of a policy, see :func:`fetch_weights`."""
        found = fetch_weights(self._connected(), policy_id, serial, self._latest)
        if found is not None:
            self._serials[policy_id] = int(found["serial"])
        return found

    def store(self, data: Any) -> Any:
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

    def send(self, metadata: Mapping[str, Any]) -> Message:
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
        fields = {"seq": self._seq, "data_id": metadata["data_id"], "metadata": about, "serials": self._serials}
        try:
            while True:
                self._latest = answer = worker.call("collector_data_task", **fields)
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

    def ask(self) -> Message:
        """Return new settings of the task; wait before, if the collector has to wait for newer weights."""
        self._latest = answer = self._connected().call("collector_settings", serials=self._serials)
        if answer["hold"] and not answer["close"]:
            self._wait(float(answer["wait"]))
        return answer

    def _wait(self, seconds: float) -> None:
        left = min(max(seconds, 0.001), LONGEST_WAIT)
        while left > 0:
            self._connected().tick()
            time.sleep(min(left, TICK))
            self._waited += min(left, TICK)
            left -= TICK

    def _delete(self, handle: Any) -> None:
        if handle is not None:
            self._connected().channel.store.delete(handle)
