"""The processes of a vector env: starting them, asking all of them at once, replacing those that broke, ending them."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from lightning_ding.envs.process.error import EnvProcessError, Failure
from lightning_ding.envs.process.link import EnvProcess, Limits, gather
from lightning_ding.envs.process.memory import Block
from lightning_ding.envs.process.space import layout_of

START_SECONDS = 120.0  # until a process answers requests; most of it is the import of gymnasium and numpy
FATAL = ("died", "hung")
ANYTHING = ("raised", "died", "hung")
MAKING = "the call that makes it"
log = logging.getLogger(__name__)
Said = tuple[Any, Any, "dict[str, Any]", "str | None"]
"""Observation space, action space, metadata and render mode of an env."""


class EnvProcesses:
    """Processes with one env each, or more.

    Args:
        makers: What makes the envs.
        envs_per_process: How many of them share a process.
        mode: When an env whose episode ended is reset.
        context: How processes are started: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
        timeout: Seconds for making the envs of a process; None is no limit.

    Raises:
        EnvProcessError: If an env cannot be made in a process.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], gym.Env[Any, Any]]],
        envs_per_process: int,
        mode: AutoresetMode,
        context: str,
        timeout: float | None,
    ) -> None:
        self._context: BaseContext = multiprocessing.get_context(context)
        self._timeout = timeout
        self._are_over = False
        ids = range(len(makers))
        self._groups = [ids[start : start + envs_per_process] for start in ids[::envs_per_process]]
        self._setups = [_pickled(makers, group, mode) for group in self._groups]
        self._attributes: dict[str, list[Any]] = {}
        self._shape: tuple[Any, Any] = (None, None)
        self.all: list[EnvProcess] = []
        """In the order of their envs."""
        if context == "forkserver":
            _preload(self._context)

    def start(self) -> Said:
        """Start all processes, make the envs, and return what the first one says.

        Raises:
            EnvProcessError: If an env cannot be made, or has other spaces than the first; no process is left then.
        """
        try:
            self._raise_any(self._make(range(len(self._groups)), ANYTHING))
            said: list[Said] = [one for process in self.all for one in process.answer.fn]
            _check_spaces(said)
            self._shape = (layout_of(said[0][0]), layout_of(said[0][1]))
            self._share(self.all)
            self._raise_any(self.gather(self.all, (self._timeout, None), ANYTHING))
        except BaseException:
            self.kill()
            raise
        return said[0]

    def gather(self, asked: Sequence[EnvProcess], limits: Limits, give_up_on: Sequence[str] = ()) -> list[EnvProcess]:
        """Wait for answers and return the processes with which something went wrong."""
        gather(asked, limits, give_up_on)
        return [process for process in asked if process.failure is not None]

    def settle(self, limits: Limits) -> None:
        """Take the answers to what was asked before somebody, with Ctrl-C perhaps, broke off waiting for them."""
        if any(process.owes for process in self.all):
            gather(self.all, limits)

    def replace(self, broken: Sequence[EnvProcess], seeds: Sequence[int]) -> list[EnvProcess]:
        """Put new processes into the places of broken ones and return the new ones, which may be broken too.

        Args:
            broken: Which.
            seeds: For the first reset of every env of this vector env if that comes without one.

        Raises:
            EnvProcessError: If a process cannot be started at all.
        """
        numbers = [self.all.index(process) for process in broken]
        for process in broken:
            process.kill()
        self._make(numbers, ())
        fresh = [self.all[number] for number in numbers]
        for process in (good := _good(fresh)):
            attributes = {name: values[process.rows] for name, values in self._attributes.items()}
            process.ask(MAKING, ("resume", seeds[process.rows], attributes))
        gather(good, (self._timeout, None))
        self._share(good := _good(fresh))
        gather(good, (self._timeout, None))
        return fresh

    def remember(self, name: str, values: list[Any]) -> None:
        """Keep an attribute of the envs for those that take their places."""
        self._attributes[name] = values

    @property
    def are_over(self) -> bool:
        """Whether all of them were ended for good."""
        return self._are_over

    def close(self, seconds: float) -> None:
        """Let the envs be closed, and end their processes whatever comes of it.

        Args:
            seconds: For what an interrupted call has left to do, and again for closing and ending.
        """
        gather(self.all, (seconds, 0.0))
        start = time.monotonic()
        asked = [process for process in self.all if process.is_alive]
        for process in asked:
            process.ask("close()", ("close",))
        failed = self.gather(asked, (seconds, 0.0))
        for process in asked:
            if not process.end(max(seconds - (time.monotonic() - start), 0.1)):
                log.warning("the process of the envs %s had to be killed, it did not end", list(process.env_ids))
        for process in failed:
            if process.failure is not None:
                log.warning("%s", process.failure.tell())

    def kill(self) -> None:
        """End all processes at once, for good."""
        self._are_over = True
        for process in self.all:
            process.kill()

    def _make(self, numbers: Sequence[int], give_up_on: Sequence[str]) -> list[EnvProcess]:
        """Start processes, make their envs, and return the processes with which something went wrong."""
        fresh: list[EnvProcess] = []
        for number in numbers:
            process = _start(self._context, self._groups[number])
            fresh.append(process)
            self.all[number : number + 1] = [process]
        failed = self.gather(fresh, (START_SECONDS, None), give_up_on)
        if not (failed and give_up_on):
            for process in (good := _good(fresh)):
                process.send(MAKING, self._setups[self.all.index(process)])
            failed += self.gather(good, (self._timeout, None), give_up_on)
        return failed

    def _share(self, processes: Sequence[EnvProcess]) -> None:
        for process in processes:
            process.share(Block(len(process.env_ids), *self._shape))

    def _raise_any(self, failed: Sequence[EnvProcess]) -> None:
        if failed:
            raise error_of(failed, {})


def error_of(failed: Sequence[EnvProcess], details: Mapping[int, str]) -> EnvProcessError:
    """Return the one error that tells of all processes that failed.

    Args:
        failed: At least one.
        details: By env, what was last done to it.
    """
    failures = [process.failure for process in failed if process.failure is not None]
    told = [failure.tell(_detail(failure, details)) for failure in failures]
    env_ids = [env_id for failure in failures for env_id in failure.env_ids]
    return EnvProcessError("\n".join(told), env_ids, [failure.summary for failure in failures])


def _start(context: BaseContext, group: range) -> EnvProcess:
    try:
        return EnvProcess(context, group)
    except (OSError, EOFError, RuntimeError) as error:
        raise EnvProcessError(
            f"no process could be started for the envs {list(group)}: {type(error).__name__}: {error}",
            group,
        ) from error


def _good(processes: Sequence[EnvProcess]) -> list[EnvProcess]:
    return [process for process in processes if process.failure is None]


def _detail(failure: Failure, details: Mapping[int, str]) -> str:
    told = [details[env_id] for env_id in failure.env_ids if env_id in details]
    return f" ({'; '.join(told)})" if told else ""


def _pickled(makers: Sequence[Callable[[], Any]], group: range, mode: AutoresetMode) -> Any:
    chosen: Any = [makers[env_id] for env_id in group]
    try:
        return ForkingPickler.dumps(("make", CloudpickleWrapper(chosen), mode))
    except Exception as error:  # a factory may hold anything, and pickling it raise anything
        raise EnvProcessError(
            f"what makes the envs {list(group)} cannot be sent to another process: {type(error).__name__}: {error}",
            group,
        ) from error


def _check_spaces(said: Sequence[Said]) -> None:
    for what, place in (("observation", 0), ("action", 1)):
        for env_id, one in enumerate(said):
            if one[place] != said[0][place]:
                raise EnvProcessError(
                    f"all envs must have the same {what} space, got {said[0][place]} of env 0 and {one[place]} of env "
                    f"{env_id}",
                    (env_id,),
                )


def _preload(context: BaseContext) -> None:
    """Let a fork server that is yet to be started import this first, unless somebody chose what it imports."""
    if getattr(forkserver._forkserver, "_preload_modules", None) == ["__main__"]:
        context.set_forkserver_preload(["lightning_ding.envs.vector"])
