"""A whole distributed run on this machine: its processes are started, started again, and ended together."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_ding.config import to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.flask_fs.token import VARIABLE, make_token
from lightning_ding.distributed.run_folder import check_folder, holds_run
from lightning_ding.entry.child import Child
from lightning_ding.entry.coordinate import require_no_coordinator
from lightning_ding.exit_codes import BY_SIGNAL, GIVEN_UP

LOOK = 0.1  # seconds between two looks at the processes
LEAVE = 30.0  # seconds that they have to end, after a signal or when the run is over
HOPELESS = (2, GIVEN_UP)  # exit codes after which another start would end in the same way

logger = logging.getLogger(__name__)


class RunFailedError(RuntimeError):
    """A distributed run ended before it was finished."""


class Supervisor:
    """Keeps the processes of a run alive until the coordinator says that it is over.

    None of them outlives this process, however it dies. Each may die ``system.restarts`` times.

    Args:
        cfg: Of the run, with ``system.transport`` ``"flask_fs"``.
        resume: Go on with the run in ``main.exp_name``.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is false, or it holds none and ``resume`` is true, or a
            coordinator works in it.
    """

    def __init__(self, cfg: ParallelConfig, resume: bool = False) -> None:
        self._restarts = cfg.system.restarts
        self._folder = Path(cfg.main.exp_name)
        require_no_coordinator(self._folder)
        check_folder(self._folder, resume)
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        if cfg.system.coordinator.token_file is None and VARIABLE not in os.environ:
            make_token(self._folder)  # or every user of this machine could speak to the coordinator
        config = self._folder / "config.json"
        config.write_text(json.dumps(to_dict(cfg), indent=1))
        self._result_file = self._folder / "result.json"
        self._result_file.unlink(missing_ok=True)
        (self._folder / "coordinator.json").unlink(missing_ok=True)

        def child(role: str, number: int) -> Child:
            name = f"{role}-{number}"
            return Child(name, [role, "--config", str(config)], logs / f"{name}.log")

        self.coordinator = child("coordinator", 0)
        self.coordinator.arguments += ["--resume"] * resume
        self.workers = [child("learner", 0), *(child("collector", n) for n in range(cfg.system.collector.num))]
        self._heard: list[int] = []

    def run(self) -> dict[str, Any]:
        """Start everything, wait for the end, and return what stands in ``result.json``.

        Raises:
            RunFailedError: If the coordinator gave the run up, or a process died too often.
            SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal, when all have saved and ended.
        """
        with _signals(self._heard):
            try:
                for child in self._all():
                    child.start()
                while not self._is_over():
                    time.sleep(LOOK)
                self._wait_for_workers()
            finally:
                self._end()
        if self._heard:
            logger.warning("the run was stopped; --resume goes on with it")
            raise SystemExit(BY_SIGNAL + self._heard[0])
        return self._result()

    def _all(self) -> list[Child]:
        return [self.coordinator, *self.workers]

    def _is_over(self) -> bool:
        for child in self._all():
            child.show_news()
            code = child.poll()
            if child is self.coordinator and code is not None and (code == 0 or self._result_file.exists()):
                return True
            if code == 0:  # told to go; should the coordinator die now, a new one will need it
                child.has_left = True
            elif code is not None:
                self._bury(child, code)
            if child is not self.coordinator or not child.is_running:
                child.start_if_due()
        return bool(self._heard)

    def _bury(self, child: Child, code: int) -> None:
        if self._heard:
            return
        if code in HOPELESS or child.deaths >= self._restarts:
            child.show_last_words()
            why = "" if code in HOPELESS else f" after {child.deaths} restarts"
            last = next((line for line in reversed(child.last_words()) if line.strip()), "")
            raise RunFailedError(f"{child.name} ended with {_meaning(code)}{why}, see {child.log}: {last}")
        if code > 0:
            child.show_last_words()
        child.bury()
        logger.warning("%s: ended with %s; start %d of %d", child.name, _meaning(code), child.deaths, self._restarts)
        if child is self.coordinator:
            self._prepare_restart_of_coordinator()

    def _prepare_restart_of_coordinator(self) -> None:
        if "--resume" not in self.coordinator.arguments and holds_run(self._folder):
            self.coordinator.arguments.append("--resume")
        for worker in self.workers:
            worker.has_left = False

    def _wait_for_workers(self) -> None:
        if self._heard:
            return
        deadline = time.monotonic() + LEAVE
        while time.monotonic() < deadline and not self._heard and any(worker.is_running for worker in self.workers):
            time.sleep(LOOK)
            for worker in self.workers:
                worker.poll()

    def _end(self) -> None:
        """End the workers, whose last messages the coordinator still takes, and then the coordinator."""
        deadline = time.monotonic() + LEAVE
        asked = len(self._heard)
        for group in (self.workers, [self.coordinator]):
            for child in group:
                child.send(signal.SIGTERM)
            while len(self._heard) <= asked and not all(child.wait(time.monotonic() + LOOK) for child in group):
                if time.monotonic() > deadline:
                    break
        for child in self._all():
            child.kill()
            child.show_news()

    def _result(self) -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(self._result_file.read_text())
        except (OSError, ValueError) as error:
            raise RunFailedError(f"the run is over but left no result: {error}") from error
        if result.get("error") is not None:
            raise RunFailedError(f"the run was given up, see {self.coordinator.log.parent}: {result['error']}")
        return result


def _meaning(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


@contextmanager
def _signals(heard: list[int]) -> Iterator[None]:
    """Collect Ctrl-C and SIGTERM; in another thread than the main one they go where they went before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
