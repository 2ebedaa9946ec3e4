"""Comm collectors in DI-engine's form, the comm workers of each transport, and functions that make them.

The workers of :mod:`lightning_ding.distributed.comm_worker` do the work. The classes here add methods that a subclass
may replace, the config of a single worker, and ``start`` in the background.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import ConfigLike, to_dict
from lightning_ding.di_engine.comm_learner import BaseCommLearner
from lightning_ding.di_engine.comm_role import BaseCommRole
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.loop import AssignedTask
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.transport import TRANSPORTS, Channel, Message
from lightning_ding.registry import COMM_COLLECTOR_REGISTRY, COMM_LEARNER_REGISTRY
from lightning_ding.worker.base import get_class


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


class BaseCommCollector(BaseCommRole, CommCollector):
    """Collects and evaluates for a coordinator until the run is over.

    A subclass may replace the way of the data: ``get_policy_update_info(path)`` returns the newest weights,
    ``send_stepdata(data_id, stepdata)`` stores a transition, and ``send_metadata(metadata)`` sends its metadata. Each
    of them may call the method of the base class, which communicates with the coordinator; only transitions whose data
    and metadata it gets reach the coordinator's buffer. Tasks and counts reach the coordinator in any case. See the
    base class for the arguments.
    """

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig] | Mapping[str, Any] = None,
        channel: Channel | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(cfg, channel, host=host, port=port)
        self._begin_task()
        self._message = _Message()
        self._reported = 0  # transitions of the task that earlier messages have reported

    @property
    def collector_uid(self) -> str:
        """Random id of this worker."""
        return self._uid

    @override
    def _work(self, task: AssignedTask) -> None:
        self._message, self._reported = _Message(), 0
        super()._work(task)

    @override
    def _create_collector(self, task_info: Mapping[str, Any]) -> Any:
        collector: Any = super()._create_collector(task_info)
        names = ("get_policy_update_info", "send_stepdata", "send_metadata")
        for name in names:
            setattr(collector, name, getattr(self, name))
        collector.is_attached = not self._overrides(*names)
        collector.report = self._report
        return collector

    def get_policy_update_info(self, path: str, serial: int = -1) -> Message | None:
        """Return the newest weights of a policy, see :func:`fetch_weights`."""
        return self.fetch(path, serial)

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
            self._message.block = self.store(path)
            return self._message.block
        self._message.kept[str(path)] = stepdata
        return None

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
        self._message.answer = self.send(metadata)
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
        handle = self.store(nested.stack(rows)) if rows else None
        return self.send({**metadata, "data_id": handle, "samples_elsewhere": elsewhere})


class FlaskFileSystemCollector(BaseCommCollector):
    """A BaseCommCollector over the transport ``flask_fs``. See the base class for the arguments."""

    transport: ClassVar[str | None] = "flask_fs"


class FlaskFileSystemLearner(BaseCommLearner):
    """A BaseCommLearner over the transport ``flask_fs``. See the base class for the arguments.

    ``get_data`` returns functions, each of which returns a transition.
    """

    transport: ClassVar[str | None] = "flask_fs"

    @override
    def _item(self, transition: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        return functools.partial(dict, transition)


RayCollector = BaseCommCollector.over("ray", "RayCollector", __name__)
RayLearner = BaseCommLearner.over("ray", "RayLearner", __name__)


def _register_transports() -> None:
    """Register a comm collector and a comm learner for each transport, by its name."""
    kinds: Any = (
        (COMM_COLLECTOR_REGISTRY, BaseCommCollector, (FlaskFileSystemCollector, RayCollector)),
        (COMM_LEARNER_REGISTRY, BaseCommLearner, (FlaskFileSystemLearner, RayLearner)),
    )
    for registry, base, exported in kinds:
        known = {one.transport: one for one in exported}
        for transport in TRANSPORTS:
            registry.register(transport)(known.get(transport) or base.over(transport, base.__name__, base.__module__))


_register_transports()


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
