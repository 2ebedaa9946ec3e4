"""The coordinator: keeps the data of a run and hands out its tasks.

It writes every change to the disk before it answers. After a crash, a restarted coordinator therefore resumes the run,
and workers only notice a delay.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from easydict import EasyDict

from lightning_ding.checkpoints.files import replace_text
from lightning_ding.config import ConfigLike, require, to_easydict
from lightning_ding.distributed import messages
from lightning_ding.distributed.commander.base import BaseParallelCommander, create_parallel_commander
from lightning_ding.distributed.config import CoordinatorConfig, ParallelConfig, read_run
from lightning_ding.distributed.coordinator.endpoints import CollectorEndpoint, LearnerEndpoint, WorkerEndpoint
from lightning_ding.distributed.coordinator.folder import check_start, locked
from lightning_ding.distributed.coordinator.run_state import RunState
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from lightning_ding.distributed.transport import (
    ADDRESS_FILE,
    DATA,
    HEARTBEAT,
    MESSAGES,
    Message,
    Refusal,
    Server,
    Store,
    get_transport,
)
from lightning_ding.utils.foreign import foreign

logger = logging.getLogger(__name__)

SWEEPS = 20  # checks of the leases during one lease
GOODBYE = 3.0  # seconds for the workers of a run that is over to disconnect
MAX_TASKS = 1000  # concurrent collecting tasks that messages may request


class Coordinator(WorkerEndpoint, CollectorEndpoint, LearnerEndpoint):
    """Answers the messages of all workers through :meth:`handle`; may be used from several threads.

    Callers in the same process may also use the methods ``deal_with_...``.

    Args:
        cfg: Config of the run, also in the format that :func:`read_run` translates.
        store: Store for blocks of tensors that workers and this process exchange. If None, the transport of the run
            makes it, and from :meth:`start` on this coordinator listens for workers itself.
        resume: Whether to resume the run in ``main.exp_name``.
        commander: Commander that decides on tasks; None means the one in the config.
        clock: Function that returns the time in seconds, for leases.

    Raises:
        ValueError: If the config does not fit, the folder holds files of another run and ``resume`` is false, or no
            run that can be continued and ``resume`` is true, or, without ``store``, another coordinator uses the
            folder.
    """

    def __init__(
        self,
        cfg: ConfigLike[ParallelConfig],
        store: Store | None = None,
        resume: bool = False,
        *,
        commander: BaseParallelCommander | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config: ParallelConfig = read_run(cfg)
        self._held = ExitStack()  # the lock of the folder
        self._server: Server | None = None
        self._listens = store is None
        try:
            store = self._prepare_to_listen(resume) if store is None else store
            settings = ReplaySettings.of(self.config)
            made = commander if commander is not None else create_parallel_commander(self.config)
            super().__init__(RunState(settings, made, store, resume, clock))
        except Exception:
            self._held.close()
            raise
        self._is_closed = False
        section = self.config.system.coordinator
        self._threads = [
            Periodic("leases", min(0.5, section.lease / SWEEPS), self.sweep, self.give_up),
            Periodic(
                "snapshots", section.snapshot_interval, self.run.save, self.give_up, self.run.delete_saved_entries
            ),
            Periodic("forgotten data", section.lease, self.run.delete_unannounced, self.give_up),
        ]
        self._methods: dict[str, Callable[[Message], Message]] = {
            name: getattr(self, f"answer_{name}") for name in MESSAGES
        }

    def handle(self, name: str, message: Message) -> Message:
        """Return the answer to a message.

        Raises:
            Refusal: If the message is refused; then nothing has changed.
        """
        method = self._methods.get(name)
        if method is None:
            raise Refusal(404, f"there is no message {name[:100]!r}; known: {', '.join(self._methods)}")
        if not isinstance(message, Mapping):
            raise Refusal(400, f"a message must be an object, got {type(message).__name__}")
        answer = method(message)
        if name != HEARTBEAT:  # which changes nothing, and must not wait for a slow disk
            self.run.commit(others=name != DATA)  # blocks do not depend on changes of others
        return answer

    _direct_calls: Any = None

    # ------------------------------------------------------------------ start and end

    @property
    def system_shutdown_flag(self) -> bool:
        """Whether the run is over or was given up."""
        return self.scheduler.is_over

    @property
    def failure(self) -> str | None:
        """The reason why the run was given up; None if it was not."""
        return self.scheduler.error

    @classmethod
    def default_config(cls) -> EasyDict:
        """Return the defaults of the section ``system.coordinator`` as an ``EasyDict``."""
        return EasyDict(to_easydict(CoordinatorConfig()), cfg_type=f"{cls.__name__}Dict")

    def start(self) -> None:
        """Make the first tasks, and start checking leases and writing snapshots.

        Raises:
            OSError: If this coordinator listens itself, and its address is in use.
        """
        if self._listens:
            transport = get_transport(self.config.system.transport)
            self._server = transport.serve(self.config, self.handle, self.run.store)
            self._server.start()
            announce(Path(self.config.main.exp_name), self._server)
        self.sweep()
        for thread in self._threads:
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over and each worker has been notified or has lost its lease; return False on timeout.

        Args:
            timeout: Longest time to wait, in seconds; None for no limit.
        """
        with self.run.lock:
            return self.run.lock.wait_for(self.scheduler.is_known_to_all, timeout)

    def part(self) -> None:
        """If the run is over, wait until its workers have disconnected, but at most 3 s."""
        with self.run.lock:
            self.run.lock.wait_for(lambda: not (self.scheduler.is_over and self.scheduler.book.workers), GOODBYE)

    def close(self) -> None:
        """Stop. If the run is over, write the result; keep what a later start needs, see ``main.keep_data``.

        A coordinator that listens itself first waits until the workers of a run that is over have been notified.

        Raises:
            OSError: If a file cannot be written; the folder is released all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._server is not None:
            if self.scheduler.is_over:
                self.wait()
            self.part()
            self._server.close()
        for thread in self._threads:
            thread.stop()
        for replay in self.run.replays.values():
            replay.close()
        try:
            if self.scheduler.is_over:
                self.run.write_result()
            if self.scheduler.is_over and self.failure is None:
                self.run.finish()
            else:
                self.save()
        finally:
            self.run.database.end()  # over Ray, messages may still come
            self._held.close()

    def _prepare_to_listen(self, resume: bool) -> Store:
        """Return the store of the transport, after checking its settings and the folder."""
        transport = get_transport(self.config.system.transport)
        allowed = f"given with the transport {self.config.system.transport!r}, which starts all processes itself"
        require(not transport.runs_alone, "store", allowed, None)
        transport.check(self.config)
        check_start(self.config, resume, may_have_learner=True)
        self._held.enter_context(locked(Path(self.config.main.exp_name)))
        transport.make_secret(self.config)
        return transport.make_store(self.config)

    def sweep(self) -> None:
        """Release the tasks of workers whose lease has expired, and look for new tasks."""
        with self.run.lock:
            before = self._owners()
            self.scheduler.sweep()
            if self._owners() != before:
                self.run.changed()
        self.run.commit()

    def save(self) -> None:
        """Write buffers and tasks to the disk, and empty the journals."""
        self.run.save()
        self.run.delete_saved_entries()

    def give_up(self, why: str) -> None:
        """End the run with an error."""
        with self.run.lock:
            self.scheduler.give_up(why)
            self.run.changed()
        self.run.commit()

    def status(self) -> dict[str, Any]:
        """Return the progress of the run."""
        return self.run.status()

    def state_dict(self) -> dict[str, Any]:
        """Return tasks, owners, results and the state of the commander as builtins; data are in the folder."""
        return self.run.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.run.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        """Return a method for callers in this process, see :mod:`lightning_ding.di_engine.direct_calls`."""
        if not (name.startswith("deal_with_") or name in ("info", "error")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self._direct_calls is None:
            self._direct_calls = foreign("direct_calls").DirectCalls(self)
        return getattr(self._direct_calls, name)

    # ------------------------------------------------------------------ messages of any sender

    def answer_status(self, message: Message) -> Message:
        """Answer with the progress of the run."""
        return self.status()

    def answer_increase_collector(self, message: Message) -> Message:
        """Allow ``n`` more concurrent collecting tasks."""
        return self._change_space(messages.whole({"n": 1, **message}, "n", least=1))

    def answer_decrease_collector(self, message: Message) -> Message:
        """Allow ``n`` fewer concurrent collecting tasks, and close the surplus."""
        return self._change_space(-messages.whole({"n": 1, **message}, "n", least=1))

    def answer_set_collectors(self, message: Message) -> Message:
        """Allow ``n`` concurrent collecting tasks, and close the surplus; the same message again changes nothing."""
        number = messages.whole(message, "n")
        with self.run.lock:
            return self._change_space(number - self.scheduler.spaces["collector"])

    def answer_shutdown(self, message: Message) -> Message:
        """End the run."""
        with self.run.lock:
            self.scheduler.end("shutdown")
            self.run.changed()
        return {}

    def _change_space(self, amount: int) -> Message:
        with self.run.lock:
            space = self.scheduler.spaces["collector"]
            if amount > 0 and space + amount > MAX_TASKS:
                raise Refusal(400, f"at most {MAX_TASKS} collecting tasks are allowed, got {space} + {amount}")
            space = self.scheduler.change_space(amount)
            self.run.changed()
        return {"collector_task_space": space}


def announce(folder: Path, server: Server) -> None:
    """Write the address of a server into the folder of the run, in which workers look for it."""
    text = json.dumps({**server.address, "pid": os.getpid()})
    replace_text(folder / ADDRESS_FILE, text, is_synced=False)


LARGEST_SHARE = 0.05  # share of the time that the function may take


class Periodic:
    """Calls a function regularly in a thread, and less often if the function takes long.

    After an ``OSError``, for example because the disk is full, the function is called again at the usual time. After
    any other error, ``on_error`` is called once and the thread ends.

    Args:
        name: Name of the thread.
        seconds: Seconds between two calls, > 0.
        function: Function to call.
        on_error: Function that is called with the description of an error.
        afterwards: Function that is called after each call of ``function``. Its time does not make the calls rarer,
            because work that is postponed would only add up.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        function: Callable[[], None],
        on_error: Callable[[str], None],
        afterwards: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._function = function
        self._on_error = on_error
        self._afterwards = afterwards
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first call is after ``seconds``."""
        self._thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        """Stop after the current call; may be called repeatedly."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = self._seconds
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                try:
                    self._function()
                finally:
                    pause = max(self._seconds, (time.monotonic() - began) / LARGEST_SHARE)
                self._afterwards()
            except OSError as error:
                logger.error("%s: %s; trying again later", self._name, error)
            except Exception as error:
                logger.exception("%s failed", self._name)
                self._on_error(f"{self._name} failed: {error!r}")
                return
