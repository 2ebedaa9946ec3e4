"""Requests to the processes of a vector env, and the handling of failures: raising them or replacing processes.

Shapes: N envs.
"""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_ding.envs.answers import BrokenEnvError
from lightning_ding.envs.process.env_process import EnvProcess, Limits
from lightning_ding.envs.process.errors import OnEnvError
from lightning_ding.envs.process.processes import FATAL, EnvProcesses, error_of
from lightning_ding.envs.state.memo import NotPlainError

Info = dict[str, Any]
log = logging.getLogger(__name__)


class ProcessSupervisor:
    """Sends requests to the processes, and raises their failures or replaces those that fail.

    Args:
        processes: Processes, already started.
        num_envs: Number of envs in them.
        on_env_error: Whether failures are raised or processes are replaced.
        budget: Maximum number of faults of an env without a complete episode between them, >= 0.
        reset_timeout: Seconds for all requests but steps; None for no limit.
    """

    def __init__(
        self,
        processes: EnvProcesses,
        num_envs: int,
        on_env_error: OnEnvError,
        budget: int,
        reset_timeout: float | None,
    ) -> None:
        self.faults = FaultBudget(num_envs, budget)
        """Counts of the handled faults."""
        self._processes = processes
        self._no_seeds: list[int | None] = [None] * num_envs
        self._restarts = on_env_error == "restart"
        self.give_up_on = () if self._restarts else FATAL
        """Kinds of failures after which no other process is awaited."""
        self._limits: Limits = (reset_timeout, None)
        self._last_action: Callable[[int], Any] | None = None

    def reset(self, chosen: Sequence[int], seeds: Sequence[int | None], options: Info | None) -> None:
        """Reset some envs; with restarts, a process that fails is replaced until its reset succeeds.

        Raises:
            EnvProcessError: If an env fails and is not or no longer replaced.
        """
        for env_id in chosen:
            self.faults.seeded(env_id, seeds[env_id])
        self._last_action = None
        asked = [process for process in self._processes.all if _chosen_in(process, chosen)]
        failed = self._reset(asked, chosen, seeds, options)
        why = {process.env_ids: process.failure for process in failed}
        if failed:
            self.recover(failed, chosen, options)
        for process in self._processes.all:  # the other envs of a replaced process lost their episodes
            if process.env_ids in why and len(_chosen_in(process, chosen)) < len(process.env_ids):
                process.lost = why[process.env_ids]

    def send_step(self, actions: Any, rows: list[Any] | None) -> None:
        """Ask all processes to step their envs.

        Args:
            actions: Actions as passed to the vector env, for errors.
            rows: Actions by env; None if they are in the shared memory.
        """
        self._last_action = functools.partial(_row, actions) if rows is None else rows.__getitem__
        processes = self._processes.all
        asked = [process for process in processes if process.is_alive and process.lost is None]
        data = [None if rows is None else ForkingPickler.dumps(("step", rows[process.rows])) for process in asked]
        for process, request in zip(asked, data, strict=True):
            process.send("step()", request)
        for process in processes:
            process.failure = process.failure or process.lost

    def ask_all(self, operation: str, requests: Sequence[tuple[Any, ...] | None], can_wait: bool = False) -> None:
        """Send a request to each process, wait for the answers, and raise if a process fails.

        Args:
            operation: Name of the operation in errors.
            requests: A request for each process; None for a process that is not asked.
            can_wait: Accept that a dead process does not answer if it will be replaced.
        """
        asked = []
        for process, request in zip(self._processes.all, requests, strict=True):
            if request is None:
                continue
            asked.append(process)
            if process.is_alive:
                process.ask(operation, request)
        failed = self._processes.gather(asked, self._limits, self.give_up_on)
        if can_wait and self._restarts:
            failed = [process for process in failed if process.is_alive]
        if failed:
            self._raise(failed)

    def states(self) -> list[Info]:
        """Return the state of the envs in each process.

        Raises:
            NotPlainError: If the state of an env cannot be read, or a process has failed and will be replaced.
        """
        self.ask_all("state()", [("state",)] * len(self._processes.all), can_wait=True)
        for process in self._processes.all:
            failure = process.failure or process.lost
            if failure is not None or isinstance(process.answer, str):
                raise NotPlainError(process.answer if failure is None else failure.describe())
        return [ForkingPickler.loads(process.answer) for process in self._processes.all]

    def load_states(self, states: Sequence[Info]) -> None:
        """Restore what ``states`` returned.

        Raises:
            NotPlainError: If a state belongs to different envs.
        """
        now, then = len(self._processes.all), len(states)
        if now != then:
            raise NotPlainError(f"the number of env processes must be as saved, {then}, got {now}: num_workers sets it")
        self.ask_all("load_state()", [("load_state", pickle.dumps(state)) for state in states])
        for process in self._processes.all:
            if process.answer is not None:
                raise NotPlainError(process.answer)

    def finish_pending(self) -> None:
        """Wait for the answers to requests of a call that was interrupted, e.g. by Ctrl-C."""
        if any(process.is_pending for process in self._processes.all):
            self._processes.gather(self._processes.all, self._limits)

    def recover(self, failed: Sequence[EnvProcess], chosen: Sequence[int], options: Info | None = None) -> None:
        """Replace failed processes until all of them work and the chosen envs in them are reset.

        Raises:
            EnvProcessError: If processes are not replaced, an env fails too often, or a replacement does not answer in
                time either: each further attempt would wait as long.
        """
        while failed:
            ids = [env_id for process in failed for env_id in process.env_ids]
            if not self._restarts or not self.faults.add(ids):
                self._raise(failed)
            log.warning("%s\nthe processes of the envs %s are replaced", error_of(failed, self._details(failed)), ids)
            fresh = self._processes.replace(failed, self.faults.seeds())
            asked = [process for process in fresh if process.failure is None and _chosen_in(process, chosen)]
            self._reset(asked, chosen, self._no_seeds, options)
            failed = [process for process in fresh if process.failure is not None]
            if any(process.failure is not None and process.failure.kind == "hung" for process in failed):
                self._raise(failed, "a replacement did not answer either")

    def _reset(
        self, asked: Sequence[EnvProcess], chosen: Sequence[int], seeds: Sequence[int | None], options: Info | None
    ) -> list[EnvProcess]:
        for process in asked:
            ids = _chosen_in(process, chosen)
            if process.is_alive:
                process.lost = process.lost if len(ids) < len(process.env_ids) else None
                mask = np.isin(process.env_ids, ids)
                sent = options if mask.all() else {**(options or {}), "reset_mask": mask}  # {} stays {}
                process.ask("reset()", ("reset", seeds[process.rows], sent))
        return self._processes.gather(asked, self._limits, self.give_up_on)

    def _raise(self, failed: Sequence[EnvProcess], reason: str | None = None) -> None:
        """Raise the failures, and end all processes if a process is lost and not replaced, for the given reason."""
        error = error_of(failed, self._details(failed))
        kinds = [process.failure.kind for process in failed if process.failure is not None]
        is_lost = any(kind in FATAL for kind in kinds)
        if (self.faults.in_a_row > self.faults.budget).any():
            reason = f"more than {self.faults.budget} faults without a complete episode in between"
        if reason is not None:
            error.args = (f"{reason}: {error}",)
        if reason is not None or (not self._restarts and is_lost):
            self._processes.kill()
        first = next((process.failure for process in failed if process.failure is not None), None)
        if first is not None and isinstance(first.refusal, BrokenEnvError) and reason is None and not is_lost:
            raise first.refusal from None  # as without processes: the remote traceback only shows the check
        raise error

    def _details(self, failed: Sequence[EnvProcess]) -> dict[int, str]:
        texts = {}
        for env_id in (env_id for process in failed for env_id in process.env_ids):
            texts[env_id] = self.faults.last_reset(env_id)
            if self._last_action is not None:
                texts[env_id] += f", last action {self._last_action(env_id)}"
        return texts


def _chosen_in(process: EnvProcess, chosen: Sequence[int]) -> list[int]:
    return [env_id for env_id in process.env_ids if env_id in chosen]


def _row(actions: Any, env_id: int) -> Any:
    """Return the action of one env from a batch whose leaves have a leading axis N."""
    if isinstance(actions, dict):
        return {name: _row(below, env_id) for name, below in actions.items()}
    if isinstance(actions, (tuple, list)):
        return tuple(_row(below, env_id) for below in actions)
    return actions[env_id]


class FaultBudget:
    """Counts the faults of N envs, and draws seeds for their replacements.

    ``budget`` is the maximum number of faults of an env without a complete episode between them, >= 0.
    """

    def __init__(self, num_envs: int, budget: int) -> None:
        self.budget = budget
        self.total: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        """Number of all faults of each env, shape (N,)."""
        self.in_a_row: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        """Number of faults of each env since its last complete episode, shape (N,)."""
        self._seeds: list[int | None] = [None] * num_envs
        self._since_seed = [0] * num_envs

    def seeded(self, env_id: int, seed: int | None) -> None:
        """Record the seed of a reset; if None, the last seed is kept."""
        if seed is not None:
            self._seeds[env_id], self._since_seed[env_id] = seed, 0

    def add(self, env_ids: Iterable[int]) -> bool:
        """Count a fault of each of these envs, and return whether all envs are within the budget."""
        for env_id in env_ids:
            self.total[env_id] += 1
            self.in_a_row[env_id] += 1
            self._since_seed[env_id] += 1
        return bool((self.in_a_row <= self.budget).all())

    def ended(self, episodes: NDArray[np.bool_]) -> None:
        """Record the envs in which a complete episode ended, shape (N,)."""
        if self.in_a_row.any():
            self.in_a_row[episodes] = 0

    def seeds(self) -> list[int]:
        """Return for each env the seed of its replacement."""
        drawn = []
        for seed, number in zip(self._seeds, self._since_seed, strict=True):
            sequence = np.random.SeedSequence(seed, spawn_key=(number,))
            drawn.append(int(sequence.generate_state(1)[0]))
        return drawn

    def state_dict(self) -> Info:
        """Return all counts and seeds."""
        counts = {"total": self.total.copy(), "in_a_row": self.in_a_row.copy()}
        return {**counts, "seeds": list(self._seeds), "since_seed": list(self._since_seed)}

    def load_state_dict(self, state: Info) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.total[:], self.in_a_row[:] = state["total"], state["in_a_row"]
        self._seeds, self._since_seed = list(state["seeds"]), list(state["since_seed"])

    def last_reset(self, env_id: int) -> str:
        """Return a description of the last seeded reset of an env."""
        seed = self._seeds[env_id]
        return "never reset with a seed" if seed is None else f"last reset with seed {seed}"
