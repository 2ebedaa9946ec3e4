"""The episodes that each env runs in an evaluation, and their returns.

Shapes: N envs, E episodes, P players.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_ding.config import require
from lightning_ding.worker.evaluator.config import EvaluatorConfig

if TYPE_CHECKING:
    from lightning_ding.worker.evaluator.monitor import VectorEvalMonitor


class EpisodePlan:
    """Deals E episodes out to N envs, and adds up their rewards.

    Env i runs the episodes at the positions i, i + N, ... An episode that an env fault cut short is run again after the
    other episodes of its env, with the same seed.

    Args:
        config: Config of the evaluator.
        episodes: Numbers of the episodes, E >= 1; they determine the seeds.
        num_envs: Number of envs N.
        seed: Seed of the evaluator.
        number: Number of the evaluation, from 0.
        players: (P,) for P players; () for no axis of players.

    Raises:
        ValueError: If ``episodes`` is empty.
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        episodes: Sequence[int],
        num_envs: int,
        seed: int,
        number: int,
        players: tuple[int, ...] = (),
    ) -> None:
        require(len(episodes) >= 1, "n_episode", ">= 1", len(episodes))
        self._config = config
        self.episodes = episodes
        self.seeds = [int(np.random.SeedSequence([seed, episode, number]).generate_state(1)[0]) for episode in episodes]
        """Seeds of the E episodes."""
        self._seed_at: dict[int | None, int | None] = {None: None, **dict(enumerate(self.seeds))}
        self.returns = np.zeros((len(episodes), *players))
        """Returns of the episodes that ended, shape (E,) or (E, P)."""
        self.lengths = np.zeros(len(episodes), dtype=np.int64)
        """Env steps of the episodes that ended, shape (E,)."""
        self.infos: dict[str, NDArray[np.float64]] = {}
        """Numbers of their infos by name, shape (E,); NaN where the env gave none."""
        self._return = np.zeros((num_envs, *players))
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._waiting = [deque(range(env_id, len(episodes), num_envs)) for env_id in range(num_envs)]
        self.running: list[int | None] = [waiting.popleft() if waiting else None for waiting in self._waiting]
        """Position of the episode that each env runs; None after its last one."""
        self._faults = 0

    @property
    def is_finished(self) -> bool:
        """Whether all episodes were run."""
        return self.running.count(None) == len(self.running)

    @property
    def is_too_long(self) -> NDArray[np.bool_]:
        """Whether the episode of each env has reached ``max_episode_steps``, shape (N,)."""
        limit = self._config.max_episode_steps
        return np.zeros(len(self._steps), dtype=bool) if limit is None else self._steps >= limit

    def drawn(self) -> list[int]:
        """Return the envs whose frames a video needs now, by index."""
        shows_all = self._config.render.episodes == "all"
        return [i for i, position in enumerate(self.running) if position == 0 or (shows_all and position is not None)]

    def first_seeds(self) -> list[int | None]:
        """Return the seed of the episode that each env runs; None for an env without an episode."""
        return list(map(self._seed_at.__getitem__, self.running))

    def next_seeds(self) -> list[int | None]:
        """Return the seed of the episode that each env runs next, after an end or a fault; None after its last one."""
        return [
            self._seed_at[waiting[0] if waiting else running]  # its last episode is only run again after a fault
            for waiting, running in zip(self._waiting, self.running, strict=True)
        ]

    def add(self, reward: NDArray[np.float64], made_step: NDArray[np.bool_]) -> None:
        """Add the rewards of a step to the running episodes.

        Args:
            reward: Rewards, shape (N,) or (N, P).
            made_step: Whether each env made a step of its episode, shape (N,).
        """
        self._return += (reward.T * made_step).T
        self._steps += made_step

    def record(
        self,
        ended: NDArray[np.bool_],
        abnormal: NDArray[np.bool_],
        fault_of: Callable[[int], str | None],
        monitor: VectorEvalMonitor | None = None,
        infos: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> None:
        """Record the episodes that ended in a step, plan again those that a fault cut short, and start the next ones.

        Args:
            ended: Whether the episode of each env ended, shape (N,).
            abnormal: Whether each env reported a fault, shape (N,).
            fault_of: Function that returns the description of an env's fault.
            monitor: Records of the videos; None if there are none.
            infos: Numbers of the infos of the episodes that ended, by name, shape (N,); None for no names.

        Raises:
            RuntimeError: After more than E faults.
        """
        for env_id in np.flatnonzero(ended).tolist():
            position = self.running[env_id]
            if position is None:
                continue
            if abnormal[env_id]:
                self._count_fault(env_id, fault_of)
                self._waiting[env_id].append(position)
                if monitor:
                    monitor.drop_video(env_id)
            else:
                self.returns[position], self.lengths[position] = self._return[env_id], self._steps[env_id]
                for name, values in (infos or {}).items():
                    self.infos.setdefault(name, np.full(len(self.seeds), np.nan))[position] = values[env_id]
                if monitor:
                    monitor.update_reward(env_id, self._return[env_id])
            waiting = self._waiting[env_id]
            self.running[env_id] = waiting.popleft() if waiting else None
        self._return[ended] = 0
        self._steps[ended] = 0

    def _count_fault(self, env_id: int, fault_of: Callable[[int], str | None]) -> None:
        self._faults += 1
        if self._faults > len(self.seeds):
            raise RuntimeError(
                f"the envs reported {self._faults} faults in an evaluation of {len(self.seeds)} episodes, "
                f"the last one in env {env_id}: {fault_of(env_id)}"
            )
