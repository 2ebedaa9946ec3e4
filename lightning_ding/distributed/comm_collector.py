"""A collecting worker: it does the coordinator's tasks with a parallel collector, over any channel."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lightning_ding.config import ConfigLike, resolve
from lightning_ding.distributed.channel import DISK_WAIT, Channel, Message
from lightning_ding.distributed.collector.base import BaseParallelCollector
from lightning_ding.distributed.collector.factory import create_parallel_collector
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.worker_loop import CommWorker, Task

logger = logging.getLogger(__name__)

LONGEST_WAIT = 1.0  # seconds between two attempts to hand data over; the lease wants a sign of life


class BaseCommCollector(ABC):
    """Collects and evaluates for a coordinator, until the run is over; a subclass says how it is reached.

    Args:
        cfg: The whole run's config.
        channel: The way to the coordinator, which stays its maker's to close; None makes one with ``_make_channel``.
    """

    def __init__(self, cfg: ConfigLike[ParallelConfig] = None, channel: Channel | None = None) -> None:
        self.config: ParallelConfig = resolve(ParallelConfig, cfg)
        self.on_stall: Callable[[float], None] | None = None
        """What to do when nothing has gone on for so many seconds that the task is lost; None for nothing."""
        self._channel = channel
        self._owns_channel = channel is None
        self._worker: CommWorker | None = None
        self._is_closed = False
        self._collector: BaseParallelCollector | None = None
        self._seq = 0
        self._waited = 0.0

    @abstractmethod
    def _make_channel(self) -> Channel:
        """Return a way to the coordinator."""

    @property
    def collector_uid(self) -> str | None:
        """Random name of this worker; None before the start."""
        return None if self._worker is None else self._worker.worker_id

    # ------------------------------------------------------------------ life

    def start(self) -> int:
        """Do tasks until the run is over, a SIGTERM comes, the coordinator is gone, or another thread calls ``close``.

        Returns:
            The exit code of the process, see :meth:`CommWorker.run`.

        Raises:
            Refusal: If the coordinator does not want this worker, as one of another version.
        """
        section = self.config.system.collector
        if section.num_threads is not None:
            torch.set_num_threads(section.num_threads)
        if self._channel is None:
            self._channel = self._make_channel()
        self._worker = worker = CommWorker(self._channel, "collector", section.stall_timeout)
        worker.on_stall = self.on_stall
        if self._is_closed:
            worker.leave()
        try:
            return worker.run(self._work)
        finally:
            if self._owns_channel:
                self._channel.close()
                self._channel = None

    def close(self) -> None:
        """Break the task off and let ``start`` return; from any thread, any number of times."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.leave()
        if self._collector is not None:
            self._collector.close()

    # ------------------------------------------------------------------ what a parallel collector needs

    def get_policy_update_info(self, path: str, serial: int = -1) -> Message | None:
        """Return the newest weights of a policy.

        Args:
            path: Policy id.
            serial: Number of the newest publication that is known; -1 for none.

        Returns:
            ``model``, a state dict; ``iter``, the updates that made it; ``serial``, the number of its publication; and
            where observations are normalised ``normaliser``, a state dict too. None if there are none that are newer,
            or they have just been replaced.

        Raises:
            LeaseLostError: If the task has gone to another.
        """
        worker = self._connected()
        try:
            answer = worker.call("get_policy", policy_id=path, serial=serial)
            if answer["handle"] is None:
                return None
            tensors = worker.channel.store.get(answer["handle"]).tensors
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            return None  # nothing was published yet, or a newer publication came between
        state = tensors if "model" in tensors else {"model": tensors}
        return {**state, "iter": answer["version"], "serial": answer["serial"]}

    def send_stepdata(self, data: Any) -> Any:
        """Store transitions, a nested dict of tensors with the transitions' leading axis, and return their handle.

        As long as there is no room for them, it waits.

        Raises:
            LeaseLostError: If the task has gone to another collector meanwhile.
        """
        worker = self._connected()
        while True:
            try:
                return worker.channel.store.put("data", data)
            except OSError as error:
                logger.error("the disk does not take the transitions, trying again: %s", error)
            worker.tick()
            time.sleep(DISK_WAIT)

    def send_metadata(self, metadata: Mapping[str, Any]) -> Message:
        """Send what is said of a message, and wait as long as the coordinator does not take it.

        Args:
            metadata: See ``BaseParallelCollector``; ``data_id`` is the handle of the transitions, or None.

        Returns:
            The coordinator's answer; if it closes the task without taking the message, the transitions are deleted.

        Raises:
            LeaseLostError: If the task has gone to another.
            Refusal: If the message is not as it should be.
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

    def _create_collector(self, task_info: Mapping[str, Any]) -> BaseParallelCollector:
        """Return the parallel collector of a task."""
        return create_parallel_collector(
            task_info["collector_cfg"],
            get_policy_update_info=self.get_policy_update_info,
            send_stepdata=self.send_stepdata,
            send_metadata=self.send_metadata,
            tick=self._connected().tick,
        )

    def _work(self, task: Task) -> None:
        """Do a task and say that it is over."""
        worker = self._connected()
        self._seq, self._waited = 0, 0.0
        self._collector = collector = self._create_collector(task.task_info)
        worker.on_close = collector.close
        if self._is_closed:
            collector.close()
        try:
            collector.start()
            worker.call("collector_close_task", info=collector.get_finish_info())
        finally:
            self._collector = None

    def _connected(self) -> CommWorker:
        if self._worker is None:
            raise RuntimeError("the comm collector is not started: call start()")
        return self._worker
