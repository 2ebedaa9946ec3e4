"""The processes of a vector env: starting, waiting for, replacing and ending them."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from lightning_ding.envs.answers import layout_of
from lightning_ding.envs.process.env_process import EnvProcess, Limits, gather
from lightning_ding.envs.process.errors import EnvProcessError
from lightning_ding.envs.process.shared_memory import SharedArrays

START_SECONDS = 120.0  # until a new process answers; it mostly imports gymnasium and numpy
FATAL = ("died", "hung")
ANYTHING = ("raised", "died", "hung")
MAKING = "the function that makes it"
PRELOADED = ["lightning_ding.envs.vector"]
"""Modules that the fork server imports, so that env processes have them."""
_owner: list[int] = []  # the process that started the fork server, once it has
log = logging.getLogger(__name__)
EnvDescription = tuple[Any, Any, "dict[str, Any]", "str | None", str]
"""Observation space, action space, metadata, render mode and name of an env."""


class EnvProcesses:
    """Processes with one or more envs each; the arguments are those of ``ProcessVectorEnv``.

    Args:
        makers: Functions that create the envs.
        num_workers: Number of processes, at most one for each env.
        mode: Autoreset mode.
        context: Start method of processes.
        timeout: Seconds for creating an env; None for no limit.

    Raises:
        EnvProcessError: If a function cannot be pickled.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], gym.Env[Any, Any]]],
        num_workers: int,
        mode: AutoresetMode,
        context: str,
        timeout: float | None,
    ) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._timeout = timeout
        self.is_closed = False
        """Whether all processes were ended."""
        bounds = [-(-len(makers) * worker // num_workers) for worker in range(num_workers + 1)]
        self._groups = [range(*pair) for pair in itertools.pairwise(bounds)]
        self._setups = [_pickle_makers(makers, group, mode) for group in self._groups]
        self.settings: dict[str, list[tuple[Any, ...]]] = {}
        """Requests that have set something in the envs, one for each process, which replacements get too; by what they
        set, in the order in which it was last set."""
        self._shape: tuple[Any, Any] = (None, None)
        self.all: list[EnvProcess] = []
        """The processes in the order of their envs."""
        if context == "forkserver":
            if getattr(forkserver._forkserver, "_preload_modules", None) == ["__main__"]:  # not chosen by the user
                self._context.set_forkserver_preload(PRELOADED)
            _owner[:] = [os.getpid()]

    def start(self) -> EnvDescription:
        """Start all processes, create the envs, and return the description of the first env.

        Raises:
            EnvProcessError: If an env cannot be created, or its spaces differ from those of the first. All processes
                are ended in this case.
        """
        try:
            _raise(self._make(range(len(self._groups)), ANYTHING))
            descriptions: list[EnvDescription] = [one for process in self.all for one in process.answer.fn]
            for what, place in (("observation", 0), ("action", 1)):
                first = descriptions[0][place]
                for env_id, one in enumerate(descriptions):
                    if one[place] != first:
                        found = f"got {first} of env 0 and {one[place]} of env {env_id}"
                        raise EnvProcessError(f"all envs must have the same {what} space, {found}", (env_id,))
            self._shape = (layout_of(descriptions[0][0]), layout_of(descriptions[0][1]))
            self._share(self.all)
            _raise(self.gather(self.all, (self._timeout, None), ANYTHING))
        except BaseException:
            self.kill()
            raise
        return descriptions[0]

    def gather(self, asked: Sequence[EnvProcess], limits: Limits, give_up_on: Sequence[str] = ()) -> list[EnvProcess]:
        """Wait for answers, and return the processes that failed."""
        gather(asked, limits, give_up_on)
        return [process for process in asked if process.failure is not None]

    def replace(self, broken: Sequence[EnvProcess], seeds: Sequence[int]) -> list[EnvProcess]:
        """Replace failed processes by new ones, and return the new ones, which may have failed too.

        Args:
            broken: The failed processes.
            seeds: Seed of each env of the vector env, for the first reset of its replacement without a seed.

        Raises:
            EnvProcessError: If a process cannot be started at all.
        """
        numbers = [self.all.index(process) for process in broken]
        for process in broken:
            process.kill()
        self._make(numbers, ())
        fresh = [self.all[number] for number in numbers]
        self._share(working := _working(fresh))
        gather(working, (self._timeout, None))
        for process in (working := _working(fresh)):
            number = self.all.index(process)
            settings = [requests[number] for requests in self.settings.values()]
            process.ask(MAKING, ("resume", seeds[process.rows], settings))
        gather(working, (self._timeout, None))
        return fresh

    def close(self, seconds: float) -> None:
        """Close the envs and end their processes.

        Args:
            seconds: Time limit of each of two phases: pending requests, and closing and ending.
        """
        gather(self.all, (seconds, 0.0))
        start = time.monotonic()
        asked = [process for process in self.all if process.is_alive]
        for process in asked:
            process.ask("close()", ("close",))
        failed = self.gather(asked, (seconds, 0.0))
        for process in asked:
            if not process.end(max(seconds - (time.monotonic() - start), 0.1)):
                log.warning("the process of the envs %s did not end and was killed", list(process.env_ids))
        for process in failed:
            if process.failure is not None:
                log.warning("%s", process.failure.describe())

    def kill(self) -> None:
        """End all processes immediately."""
        self.is_closed = True
        for process in self.all:
            process.kill()

    def _make(self, numbers: Sequence[int], give_up_on: Sequence[str]) -> list[EnvProcess]:
        """Start processes, create their envs, and return the processes that failed."""
        fresh: list[EnvProcess] = []
        for number in numbers:
            process = _start(self._context, self._groups[number])
            fresh.append(process)
            self.all[number : number + 1] = [process]
        failed = self.gather(fresh, (START_SECONDS, None), give_up_on)
        if not (failed and give_up_on):
            for process in (working := _working(fresh)):
                process.send(MAKING, self._setups[self.all.index(process)])
            most = max(map(len, self._groups))
            limit = None if self._timeout is None else self._timeout * most
            failed += self.gather(working, (limit, None), give_up_on)
        return failed

    def _share(self, processes: Sequence[EnvProcess]) -> None:
        for process in processes:
            process.share(SharedArrays(len(process.env_ids), *self._shape))


def _raise(failed: Sequence[EnvProcess]) -> None:
    if failed:
        raise error_of(failed, {})


def error_of(failed: Sequence[EnvProcess], details: Mapping[int, str]) -> EnvProcessError:
    """Return one error that describes all failed processes, with the last operation of each env."""
    failures = [process.failure for process in failed if process.failure is not None]
    texts = [failure.describe(details) for failure in failures]
    env_ids = [env_id for failure in failures for env_id in failure.env_ids]
    refusal = next((failure.refusal for failure in failures if failure.refusal is not None), None)
    return EnvProcessError("\n".join(texts), env_ids, refusal)


def _start(context: BaseContext, group: range) -> EnvProcess:
    try:
        return EnvProcess(context, group)
    except (OSError, EOFError, RuntimeError) as error:
        raise EnvProcessError(
            f"no process could be started for the envs {list(group)}: {type(error).__name__}: {error}",
            group,
        ) from error


def _working(processes: Sequence[EnvProcess]) -> list[EnvProcess]:
    return [process for process in processes if process.failure is None]


def _pickle_makers(makers: Sequence[Callable[[], Any]], group: range, mode: AutoresetMode) -> Any:
    chosen: Any = [makers[env_id] for env_id in group]
    try:
        return ForkingPickler.dumps(("make", CloudpickleWrapper(chosen), mode, group.start))
    except Exception as error:  # pickling a user's function may raise any exception
        raise EnvProcessError(
            f"the functions that make the envs {list(group)} cannot be sent to another process: "
            f"{type(error).__name__}: {error}",
            group,
        ) from error


def end_fork_server() -> None:
    """End the fork server of this process, unless it has children, or the user has chosen its imports.

    ``multiprocessing`` keeps it until Python ends, and has no public function for this. It starts a new one as soon as
    one is needed. The server is killed, because it ignores SIGTERM, and ends by itself only when no process, such as a
    worker of a data loader, has a copy of its pipe.
    """
    server = forkserver._forkserver
    number, stop = getattr(server, "_forkserver_pid", None), getattr(server, "_stop", None)
    is_ours = getattr(server, "_preload_modules", None) == PRELOADED and _owner == [os.getpid()]
    if number is None or stop is None or not is_ours or multiprocessing.active_children():
        return
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    stop()
