"""The coordinator: keeps the data and says who does what; workers come to it and ask.

Whatever it tells a worker is in the folder of the run before, so one that was killed is followed by another that goes
on, and workers hardly notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from lightning_ding.config import ConfigLike, resolve
from lightning_ding.distributed import fields
from lightning_ding.distributed.channel import Message, Store
from lightning_ding.distributed.collector_desk import CollectorDesk
from lightning_ding.distributed.commander import BaseParallelCommander, create_parallel_commander
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.learner_desk import LearnerDesk
from lightning_ding.distributed.periodic import Periodic
from lightning_ding.distributed.replay_settings import ReplaySettings
from lightning_ding.distributed.run_state import RunState
from lightning_ding.distributed.worker_desk import WorkerDesk

logger = logging.getLogger(__name__)

SWEEPS = 20  # in the time of a lease
MOST_TASKS = 1000  # collecting at a time that messages may ask for


class Coordinator(WorkerDesk, CollectorDesk, LearnerDesk):
    """The one that all workers talk to, through :meth:`handle`; safe to use from several threads.

    Args:
        cfg: Of the run.
        store: Where blocks of tensors lie between workers and this process.
        resume: Go on with the run in ``main.exp_name``, if there is one.
        commander: Says what is to be done; None for the one that the config names.
        clock: Returns seconds, for leases.

    Raises:
        ValueError: If the config does not fit, or the folder holds a run that is not over and ``resume`` is false.
    """

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig],
        store: Store,
        resume: bool = False,
        *,
        commander: BaseParallelCommander | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config: ParallelConfig = resolve(ParallelConfig, cfg)
        settings = ReplaySettings.of(self.config)
        made = commander if commander is not None else create_parallel_commander(self.config)
        super().__init__(RunState(self.config, settings, made, store, resume, clock))
        self._is_closed = False
        section = self.config.system.coordinator
        self._threads = [
            Periodic("leases", min(0.5, section.lease / SWEEPS), self.sweep, self.give_up),
            Periodic("snapshots", section.snapshot_interval, self.save, self.give_up),
        ]
        self._methods: dict[str, Callable[[Message], Message]] = {
            "connect": self.deal_with_connect,
            "heartbeat": self.deal_with_heartbeat,
            "task": self.deal_with_task,
            "collector_data_task": self.deal_with_collector_send_data,
            "collector_close_task": self.deal_with_collector_finish_task,
            "get_policy": self.deal_with_get_policy,
            "learner_get_data_task": self.deal_with_learner_get_data,
            "learner_learn_task": self.deal_with_learner_send_info,
            "learner_send_policy": self.deal_with_learner_send_policy,
            "learner_close_task": self.deal_with_learner_finish_task,
            "fail": self.deal_with_fail,
            "disconnect": self.deal_with_disconnect,
            "status": lambda message: self.status(),
            "increase_collector": self.deal_with_increase_collector,
            "decrease_collector": self.deal_with_decrease_collector,
            "shutdown": self.deal_with_shutdown,
        }

    def handle(self, name: str, message: Message) -> Message:
        """Return the answer to a message.

        Raises:
            Refusal: If it cannot be taken; everything is as if it had not come.
        """
        method = self._methods.get(name)
        if method is None:
            raise Refusal(404, f"there is no message {name[:100]!r}; known: {', '.join(self._methods)}")
        if not isinstance(message, Mapping):
            raise Refusal(400, f"a message must be an object, got {type(message).__name__}")
        return method(message)

    # ------------------------------------------------------------------ life

    @property
    def system_shutdown_flag(self) -> bool:
        """Whether the run is over, or was given up."""
        return self.scheduler.is_over

    @property
    def error(self) -> str | None:
        """Why the run was given up, None if it was not."""
        return self.scheduler.error

    def start(self) -> None:
        """Make the first tasks, and begin to look after leases and snapshots."""
        self.sweep()
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over and all workers know, or lost their lease; return whether it is so.

        Args:
            timeout: Seconds; None for as long as it takes.
        """
        with self.run.lock:
            return self.run.lock.wait_for(self.scheduler.all_told, timeout)

    def close(self) -> None:
        """Stop; write the result and tidy up if the run is over, else write down all that a later start needs."""
        if self._is_closed:
            return
        self._is_closed = True
        for thread in self._threads:
            thread.stop()
        if self.scheduler.is_over:
            self.run.write_result()
        if self.scheduler.is_over and self.error is None:
            self.run.remove()
        else:
            self.save()

    def sweep(self) -> None:
        """Take the tasks of workers whose lease is over, and look for what is to be done."""
        with self.run.lock:
            before = self._owners()
            self.scheduler.sweep()
            if self._owners() != before:
                self.run.changed()

    def save(self) -> None:
        """Write buffers and tasks to the disk."""
        self.run.save()

    def give_up(self, why: str) -> None:
        """End the run with an error."""
        with self.run.lock:
            self.scheduler.give_up(why)
            self.run.changed()

    def status(self) -> dict[str, Any]:
        """Return how far the run is."""
        return self.run.status()

    def state_dict(self) -> dict[str, Any]:
        """Return tasks, owners, results and what the commander knows, as builtins; data are in the folder."""
        return self.run.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` returned."""
        self.run.load_state_dict(state)

    # ------------------------------------------------------------------ anybody

    def deal_with_increase_collector(self, message: Message) -> Message:
        """Let there be ``n`` more collecting tasks at a time."""
        return self._change_space(fields.whole({"n": 1, **message}, "n", least=1))

    def deal_with_decrease_collector(self, message: Message) -> Message:
        """Let there be ``n`` fewer collecting tasks at a time, and close those that are too many."""
        return self._change_space(-fields.whole({"n": 1, **message}, "n", least=1))

    def deal_with_shutdown(self, message: Message) -> Message:
        """End the run."""
        with self.run.lock:
            self.scheduler.end()
            self.run.changed()
        return {}

    # ------------------------------------------------------------------ helpers

    def _change_space(self, amount: int) -> Message:
        with self.run.lock:
            space = self.scheduler.commander.collector_task_space.size
            if amount > 0 and space + amount > MOST_TASKS:
                raise Refusal(400, f"at most {MOST_TASKS} collecting tasks are allowed, there are {space}")
            space = self.scheduler.change_space(amount)
            self.run.changed()
        return {"collector_task_space": space}
