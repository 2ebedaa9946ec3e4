"""A collecting worker: does the tasks of the coordinator with a parallel collector, over any transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import ConfigLike
from lightning_ding.distributed.collector.base import BaseParallelCollector, create_parallel_collector
from lightning_ding.distributed.comm_worker.loop import AssignedTask
from lightning_ding.distributed.comm_worker.role import BaseCommRole
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.published_weights import fetch_weights
from lightning_ding.distributed.transport import DISK_WAIT, Channel, Message, Refusal, Role

logger = logging.getLogger(__name__)

LONGEST_WAIT = 10.0  # seconds between two attempts to send data
TICK = 1.0  # seconds between two checks of the lease during a wait


@dataclass
class _Message:
    """The parts of the current message that a subclass has passed to the methods of the base class."""

    kept: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Transitions by ``data_id``, whose metadata were not sent yet."""
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """Transitions whose metadata were sent, too."""
    block: Any = None
    """Handle of the stored columns."""
    answer: Message | None = None
    """The coordinator's answer, if the message was sent."""


class BaseCommCollector(BaseCommRole):
    """Collects and evaluates for a coordinator until the run is over.

    A subclass may replace the way of the data: ``get_policy_update_info(path)`` returns the newest weights,
    ``send_stepdata(data_id, stepdata)`` stores a transition, and ``send_metadata(metadata)`` sends its metadata. Each
    of them may call the method of the base class, which communicates with the coordinator; only transitions whose data
    and metadata it gets reach the coordinator's buffer. Tasks and counts reach the coordinator in any case. See the
    base class for the arguments.
    """

    role: ClassVar[Role] = "collector"
    on_stall: Callable[[float], None] | None = None
    """Function that is called with the seconds without progress once the task is lost; None calls nothing."""
    _is_closed = False
    _collector: BaseParallelCollector | None = None
    _seq = 0
    _waited = 0.0

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] | Mapping[str, Any] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(cfg, channel, host=host, port=port)
        self._message = _Message()
        self._reported = 0  # transitions of the task that earlier messages have reported
        self._serials: dict[str, int] = {}  # numbers of the fetched weights, by policy id
        self._latest: Message | None = None  # the coordinator's latest answer to a message with data

    @property
    def collector_uid(self) -> str:
        """Random id of this worker."""
        return self._uid

    # ------------------------------------------------------------------ start and end

    @override
    def _do_tasks(self) -> int:
        section = self.config.system.collector
        if section.num_threads is not None:
            torch.set_num_threads(section.num_threads)
        worker = self._make_worker(section.stall_timeout)
        worker.on_stall = self.on_stall
        if self._is_closed:
            worker.leave()
        try:
            return worker.run(self._work)
        finally:
            self._close_channel()

    @override
    def _stop(self) -> None:
        self._is_closed = True
        if self.worker is not None:
            self.worker.leave()
        if self._collector is not None:
            self._collector.close()

    # ------------------------------------------------------------------ callbacks of the parallel collector

    def get_policy_update_info(self, path: str, serial: int = -1) -> Message | None:
        """Return the newest weights of a policy, see :func:`fetch_weights`."""
        found = fetch_weights(self._connected(), path, serial, self._latest)
        if found is not None:
            self._serials[path] = int(found["serial"])
        return found

    def send_stepdata(self, path: Any, stepdata: Any = None) -> Any:
        """Store transitions and return their handle; wait while there is no space for them.

        Args:
            path: Nested dict of tensors, leading axis of transitions; or with ``stepdata`` the id of a transition.
            stepdata: A transition that is sent as soon as :meth:`send_metadata` gets its ``data_id``.

        Returns:
            The handle; None for a single transition.

        Raises:
            LeaseLostError: If another worker got the task during the wait.
        """
        if stepdata is None:
            self._message.block = self._store(path)
            return self._message.block
        self._message.kept[str(path)] = stepdata
        return None

    def _store(self, data: Any) -> Any:
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
            metadata: Metadata of a ``BaseParallelCollector``; ``data_id`` is the handle of the transitions, or None. Or
                the metadata of one transition, which is sent together with the others of its message.

        Returns:
            The coordinator's answer. If it closes the task without accepting, the transitions are deleted. For a single
            transition, an empty dict.

        Raises:
            LeaseLostError: If another worker has the task now.
            Refusal: If the message is malformed.
        """
        if "env_step" not in metadata:
            if (sample := self._message.kept.pop(str(metadata.get("data_id")), None)) is not None:
                self._message.rows.append(sample)
            return {}
        self._message.answer = self._send(metadata)
        return self._message.answer

    def _report(self, metadata: Mapping[str, Any]) -> Message:
        """Return the answer to a message of a subclass's own methods, after sending what is not sent yet.

        Args:
            metadata: Metadata of the message, without ``data_id``.
        """
        message, self._message = self._message, _Message()
        elsewhere = metadata["cur_sample"] - self._reported - len(message.rows)
        self._reported = metadata["cur_sample"]
        if message.answer is not None:
            return message.answer
        self._delete(message.block)  # its metadata went another way
        rows = [{name: value for name, value in row.items() if name != "done"} for row in message.rows]
        handle = self._store(nested.stack(rows)) if rows else None
        return self._send({**metadata, "data_id": handle, "samples_elsewhere": elsewhere})

    def _send(self, metadata: Mapping[str, Any]) -> Message:
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

    def _ask(self) -> Message:
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

    # ------------------------------------------------------------------ tasks

    def _create_collector(self, task_info: Mapping[str, Any]) -> BaseParallelCollector:
        """Return the collector for a task, with the functions of this worker.

        Args:
            task_info: Contents of the task, with ``collector_cfg``.

        Raises:
            KeyError: If its type is not registered.
            ValueError: If a key is unknown or a value out of range.
        """
        collector = create_parallel_collector(task_info["collector_cfg"])
        for name in ("get_policy_update_info", "send_stepdata", "send_metadata"):
            setattr(collector, name, getattr(self, name))
        if self.worker is not None:
            collector.tick, collector.report, collector.ask = self.worker.tick, self._report, self._ask
        return collector

    def _work(self, task: AssignedTask) -> None:
        """Do a task and report its end."""
        worker = self._connected()
        self._seq, self._waited, self._message, self._reported = 0, 0.0, _Message(), 0
        self._serials, self._latest = {}, None
        self._collector = collector = self._create_collector(task.task_info)
        worker.on_close = collector.close
        if self._is_closed:
            collector.close()
        try:
            collector.start()
            worker.call("collector_close_task", info=collector.get_finish_info())
        finally:
            self._collector = None
