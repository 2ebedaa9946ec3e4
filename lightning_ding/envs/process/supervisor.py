"""Asking the processes of a vector env, and replacing those that fail or raising what they did."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from lightning_ding.envs.process.arguments import OnEnvError
from lightning_ding.envs.process.faults import Faults
from lightning_ding.envs.process.group import FATAL, EnvProcesses, error_of
from lightning_ding.envs.process.link import EnvProcess, Limits

Info = dict[str, Any]
log = logging.getLogger(__name__)


class Supervisor:
    """Sends requests to all processes and decides what becomes of those that fail.

    Args:
        processes: Which have been started.
        num_envs: How many envs are in them.
        on_env_error: Whether failures are raised, or processes replaced.
        budget: Faults of an env without a whole episode between that are borne, >= 0.
        reset_timeout: Seconds for everything but steps; None is no limit.
    """

    def __init__(
        self,
        processes: EnvProcesses,
        num_envs: int,
        on_env_error: OnEnvError,
        budget: int,
        reset_timeout: float | None,
    ) -> None:
        self.faults = Faults(num_envs, budget)
        """The faults that were borne."""
        self._processes = processes
        self._no_seeds: list[int | None] = [None] * num_envs
        self._restarts = on_env_error == "restart"
        self._give_up_on = () if self._restarts else FATAL
        self._limits: Limits = (reset_timeout, None)
        self._last_action: Callable[[int], Any] | None = None

    def reset(self, chosen: Sequence[int], seeds: Sequence[int | None], options: Info | None) -> None:
        """Reset some envs; a process that fails is replaced until it does not.

        Raises:
            EnvProcessError: If an env fails and that is not borne.
        """
        for env_id in chosen:
            self.faults.seeded(env_id, seeds[env_id])
        self._last_action = None
        asked = [process for process in self._processes.all if _chosen_in(process, chosen)]
        failed = self._reset(asked, chosen, seeds, options)
        why = {process.env_ids: process.failure for process in failed}
        if failed:
            self.survive(failed, chosen, options)
        for process in self._processes.all:  # in a process with more envs, those that were not to be reset lost theirs
            if process.env_ids in why and len(_chosen_in(process, chosen)) < len(process.env_ids):
                process.lost = why[process.env_ids]

    def step(self, actions: Any, rows: list[Any] | None, limits: Limits) -> list[EnvProcess]:
        """Step all envs and return the processes that failed.

        Args:
            actions: What errors show.
            rows: Actions by env; None if they are in the shared memory.
            limits: How long a process has.
        """
        self._last_action = functools.partial(_row, actions) if rows is None else rows.__getitem__
        processes = self._processes.all
        asked = [process for process in processes if process.is_alive and process.lost is None]
        data = [None if rows is None else ForkingPickler.dumps(("step", rows[process.rows])) for process in asked]
        for process, request in zip(asked, data, strict=True):
            process.send("step()", request)
        for process in processes:
            process.failure = process.failure or process.lost
        return self._processes.gather(processes, limits, self._give_up_on)

    def ask_all(self, doing: str, requests: Sequence[tuple[Any, ...]], can_wait: bool = False) -> None:
        """Send a request to each process and wait for the answers.

        Args:
            doing: What errors call it.
            requests: One for each process.
            can_wait: Whether it is enough to do it once a dead process is replaced, if it will be.

        Raises:
            EnvProcessError: If one fails.
        """
        for process, request in zip(self._processes.all, requests, strict=True):
            if process.is_alive:
                process.ask(doing, request)
        failed = self._processes.gather(self._processes.all, self._limits, self._give_up_on)
        if can_wait and self._restarts:
            failed = [process for process in failed if process.is_alive]
        if failed:
            self._raise(failed)

    def settle(self) -> None:
        """Take what an interrupted call has left."""
        self._processes.settle(self._limits)

    def survive(self, failed: Sequence[EnvProcess], chosen: Sequence[int], options: Info | None = None) -> None:
        """Replace processes until none is broken and the chosen envs in them are reset.

        Raises:
            EnvProcessError: If that is not wanted, or an env fails too often.
        """
        while failed:
            self._bear(failed)
            fresh = self._processes.replace(failed, self.faults.seeds())
            asked = [process for process in fresh if process.failure is None and _chosen_in(process, chosen)]
            self._reset(asked, chosen, self._no_seeds, options)
            failed = [process for process in fresh if process.failure is not None]

    def _reset(
        self, asked: Sequence[EnvProcess], chosen: Sequence[int], seeds: Sequence[int | None], options: Info | None
    ) -> list[EnvProcess]:
        for process in asked:
            ids = _chosen_in(process, chosen)
            if process.is_alive:
                process.lost = process.lost if len(ids) < len(process.env_ids) else None
                numbers = [env_id - process.env_ids.start for env_id in ids]
                process.ask("reset()", ("reset", numbers, [seeds[env_id] for env_id in ids], options))
        return self._processes.gather(asked, self._limits, self._give_up_on)

    def _bear(self, failed: Sequence[EnvProcess]) -> None:
        ids = [env_id for process in failed for env_id in process.env_ids]
        if not self._restarts or not self.faults.add(ids):
            self._raise(failed)
        log.warning("%s\nnew processes take the places of the envs %s", error_of(failed, self._details(failed)), ids)

    def _raise(self, failed: Sequence[EnvProcess]) -> None:
        """Raise, and end everything if a process is lost for good."""
        error = error_of(failed, self._details(failed))
        kinds = [process.failure.kind for process in failed if process.failure is not None]
        worn_out = bool((self.faults.in_a_row > self.faults.budget).any())
        if worn_out:
            error.args = (f"more than {self.faults.budget} faults without a whole episode between: {error}",)
        if worn_out or (not self._restarts and any(kind in FATAL for kind in kinds)):
            self._processes.kill()
        raise error

    def _details(self, failed: Sequence[EnvProcess]) -> dict[int, str]:
        told = {}
        for env_id in (env_id for process in failed for env_id in process.env_ids):
            told[env_id] = self.faults.last_reset(env_id)
            if self._last_action is not None:
                told[env_id] += f", last action {self._last_action(env_id)}"
        return told


def _chosen_in(process: EnvProcess, chosen: Sequence[int]) -> list[int]:
    return [env_id for env_id in process.env_ids if env_id in chosen]


def _row(actions: Any, env_id: int) -> Any:
    """Return the action of one env from a batch whose leaves are what the space says, each with a leading axis N."""
    if isinstance(actions, dict):
        return {name: _row(below, env_id) for name, below in actions.items()}
    if isinstance(actions, (tuple, list)):
        return tuple(_row(below, env_id) for below in actions)
    return actions[env_id]
