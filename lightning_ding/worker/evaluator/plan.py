"""Which episode each env runs, and what came of it.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_ding.envs import EnvStepper, Timestep
from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor


def episode_seeds(episodes: Sequence[int], seed: int, number: int) -> list[int]:
    """Return the seed of each of E episodes.

    Args:
        episodes: Numbers of the episodes within their evaluation.
        seed: Of the evaluator.
        number: Number of the evaluation, from 0.
    """
    return [int(np.random.SeedSequence([seed, episode, number]).generate_state(1)[0]) for episode in episodes]


class EpisodePlan:
    """Deals E episodes out to N envs and puts what is recorded of them back into their order.

    Env i runs the episodes at i, i + N, ... An episode that a fault of its env cut short is run again behind the env's
    other ones, with the seed it had.

    Args:
        episodes: Numbers from which the seeds come.
        stepper: Of the envs.
        seed: Of the evaluator.
        number: Number of the evaluation, from 0.
    """

    def __init__(self, episodes: Sequence[int], stepper: EnvStepper, seed: int, number: int = 0) -> None:
        num_envs = stepper.env.num_envs
        self.monitor = VectorEvalMonitor(num_envs, len(episodes))
        self._seeds = episode_seeds(episodes, seed, number)
        self._waiting = [deque(range(env_id, len(episodes), num_envs)) for env_id in range(num_envs)]
        self._running = [waiting.popleft() if waiting else None for waiting in self._waiting]
        self._recorded: list[list[int]] = [[] for _ in range(num_envs)]
        self._faults = 0

    def first_seeds(self) -> list[int | None]:
        """Return a seed for the first episode of each env; None for an env that has no quota."""
        return [None if running is None else self._seeds[running] for running in self._running]

    def next_seeds(self) -> list[int | None]:
        """Return a seed for what each env runs when its episode ends, be it by a fault; None behind its quota."""
        following = [
            waiting[0] if waiting else running  # behind its last episode only that one, after a fault
            for waiting, running in zip(self._waiting, self._running, strict=True)
        ]
        return [None if position is None else self._seeds[position] for position in following]

    def record(self, timestep: Timestep, totals: NDArray[np.float64], steps: NDArray[np.int64]) -> None:
        """Record the episodes that ended in a step, but for those that a fault cut short.

        Args:
            timestep: The step.
            totals: Returns so far, shape (N,).
            steps: Steps so far, shape (N,).

        Raises:
            RuntimeError: After more than E faults.
        """
        for env_id in np.flatnonzero(timestep.terminated | timestep.truncated).tolist():
            running, waiting = self._running[env_id], self._waiting[env_id]
            if running is None:
                continue
            if timestep.abnormal[env_id]:
                self._count_fault(timestep.fault(env_id))
                self.monitor.drop_video(env_id)
                waiting.append(running)
            else:
                self._recorded[env_id].append(running)
                self.monitor.update_info(env_id, {"length": steps[env_id]})
                self.monitor.update_reward(env_id, totals[env_id])
            self._running[env_id] = waiting.popleft() if waiting else None

    def results(self) -> tuple[list[float], list[int]]:
        """Return the E returns and lengths in the order of the episodes."""
        order = np.argsort(np.concatenate(self._recorded)).astype(np.intp)
        returns, info = np.array(self.monitor.get_episode_return()), self.monitor.get_episode_info() or {}
        return returns[order].tolist(), np.array(info["length"])[order].tolist()

    def _count_fault(self, fault: str) -> None:
        self._faults += 1
        if self._faults > len(self._seeds):
            raise RuntimeError(
                f"the envs reported {self._faults} faults in an evaluation of {len(self._seeds)} episodes, "
                f"the last one: {fault}"
            )
