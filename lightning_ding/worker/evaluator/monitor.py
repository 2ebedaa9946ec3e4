"""The episodes that each env runs in an evaluation, and their records.

The first E episodes that end in any env would mostly be short ones, because an env whose episodes are short delivers
more of them. With a quota fixed beforehand, every env delivers the same number, however long they take.

Shapes: N envs, E episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.worker.episodes import share_out
from lightning_ding.worker.evaluator.config import EvaluatorConfig

if TYPE_CHECKING:
    from lightning_ding.worker.evaluator.video import EpisodeVideo


class VectorEvalMonitor:
    """Records the first episodes of each env, up to its quota, and ignores the later ones.

    The quota of env i is ``n_episode // env_num``, and one more for the first ``n_episode % env_num`` envs.

    The median episodes are known only at the end, so the frames of all episodes are kept, compressed without loss. A
    drawn frame shrinks to about a hundredth; a frame of a camera hardly shrinks.

    Args:
        env_num: Number of envs, >= 1.
        n_episode: Episodes to record, >= 1.

    Example:
        >>> monitor = VectorEvalMonitor(env_num=2, n_episode=3)
        >>> for env_id, episode_return in [(1, 5.0), (1, 99.0), (0, 1.0), (0, 3.0)]:
        ...     monitor.update_reward(env_id, episode_return)
        >>> monitor.is_finished(), monitor.get_episode_return()
        (True, [1.0, 3.0, 5.0])
    """

    def __init__(self, env_num: int, n_episode: int) -> None:
        from lightning_ding.worker.evaluator.video import EpisodeVideo

        require(env_num >= 1, "env_num", ">= 1", env_num)
        self.quota = share_out(n_episode, env_num)
        self._returns: list[list[float]] = [[] for _ in range(env_num)]
        self._infos: list[list[Mapping[str, Any]]] = [[] for _ in range(env_num)]
        self._videos: list[list[EpisodeVideo]] = [[EpisodeVideo()] for _ in range(env_num)]  # the last is unfinished

    def is_finished(self) -> bool:
        """Return whether every env has delivered its quota."""
        return self.get_current_episode() == int(self.quota.sum())

    def wants(self, env_id: int) -> bool:
        """Return whether an episode of this env still counts."""
        return len(self._returns[env_id]) < int(self.quota[env_id])

    def update_reward(self, env_id: int, reward: Any) -> None:
        """Record the return of an episode, which ends it, unless the env's quota is full."""
        from lightning_ding.worker.evaluator.video import EpisodeVideo

        if self.wants(env_id):
            self._returns[env_id].append(float(reward))
            self._videos[env_id].append(EpisodeVideo())

    def update_info(self, env_id: int, info: Mapping[str, Any]) -> None:
        """Record further values of an episode, unless the env's quota is full; call it before ``update_reward``.

        Tensors and arrays are kept as plain Python.
        """
        if len(self._infos[env_id]) < self.quota[env_id]:
            self._infos[env_id].append({name: _plain(value) for name, value in info.items()})

    def update_video(self, frames: Mapping[int, Any]) -> None:
        """Append a frame to the running episode of each of some envs, unless the env's quota is full.

        Args:
            frames: Frame of each of some envs, by its index; each uint8 of shape (H, W, C), the same for all.

        Raises:
            ValueError: If a frame is something else.
        """
        for env_id, frame in frames.items():
            if self.wants(env_id):
                self._videos[env_id][-1].append(frame)

    def drop_video(self, env_id: int) -> None:
        """Delete the frames of an env's running episode, which will not be recorded."""
        from lightning_ding.worker.evaluator.video import EpisodeVideo

        self._videos[env_id][-1] = EpisodeVideo()

    def get_episode_return(self) -> list[float]:
        """Return the recorded returns, env after env."""
        return [value for returns in self._returns for value in returns]

    def get_latest_reward(self, env_id: int) -> float:
        """Return the newest return of an env.

        Raises:
            IndexError: If the env has no recorded return.
        """
        return self._returns[env_id][-1]

    def get_current_episode(self) -> int:
        """Return the number of recorded episodes."""
        return sum(len(returns) for returns in self._returns)

    def get_episode_info(self) -> dict[str, Any] | None:
        """Return lists of the further values, and ``<name>_mean`` of numbers; None if nothing was recorded.

        An entry that only some episodes have counts only for these.
        """
        infos = [info for kept in self._infos for info in kept]
        if not infos:
            return None
        names = dict.fromkeys(name for info in infos for name in info)
        lists: dict[str, Any] = {name: [info[name] for info in infos if name in info] for name in names}
        numbers = {
            name: values
            for name, values in lists.items()
            if all(np.isscalar(v) and not isinstance(v, str) for v in values)
        }
        return lists | {f"{name}_mean": float(np.mean(values)) for name, values in numbers.items()}

    def get_video(self, max_frames: int | None = None) -> NDArray[np.uint8] | None:
        """Return the videos of the worst, the median and the best episode among those that have frames.

        Four and more episodes give four videos, with two medians; of an odd number these are the median and the one
        below it. Up to three episodes give a video of each.

        Args:
            max_frames: Maximum number of frames of a video, >= 1. Of longer videos every n-th frame is returned, the
                same n for all.

        Returns:
            Shape (V, T, C, H, W), from the worst to the best, short videos padded with their last frame; None if no
            recorded episode has frames.

        Raises:
            ValueError: If the frames differ in shape.
        """
        require(max_frames is None or max_frames >= 1, "max_frames", ">= 1 or None", max_frames)
        recorded = [
            (episode_return, video)
            for returns, videos in zip(self._returns, self._videos, strict=True)
            for episode_return, video in zip(returns, videos, strict=False)  # the unfinished one has no return
            if len(video)
        ]
        if not recorded:
            return None
        videos = [video for _, video in sorted(recorded, key=lambda pair: pair[0])]
        if len(videos) > 4:
            videos = [videos[0], videos[len(videos) // 2 - 1], videos[len(videos) // 2], videos[-1]]
        longest = max(map(len, videos))
        stride = 1 if max_frames is None else -(-longest // max_frames)
        return np.stack([video.frames(stride, -(-longest // stride)) for video in videos])


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
        return all(position is None for position in self.running)

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
        return [None if running is None else self.seeds[running] for running in self.running]

    def next_seeds(self) -> list[int | None]:
        """Return the seed of the episode that each env runs next, after an end or a fault; None after its last one."""
        following = [
            waiting[0] if waiting else running  # after its last episode only that one, and only if it had a fault
            for waiting, running in zip(self._waiting, self.running, strict=True)
        ]
        return [None if position is None else self.seeds[position] for position in following]

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


def _plain(value: Any) -> Any:
    return nested.apply(lambda x: x.tolist() if isinstance(x, (Tensor, np.ndarray, np.generic)) else x, value)
