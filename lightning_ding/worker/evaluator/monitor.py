"""Records of the first episodes of each env, for videos.

The first E episodes that end in any env would mostly be short ones, because an env whose episodes are short delivers
more of them. With a quota fixed beforehand, every env delivers the same number, however long they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.worker.episodes import share_out

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


def _plain(value: Any) -> Any:
    return nested.apply(lambda x: x.tolist() if isinstance(x, (Tensor, np.ndarray, np.generic)) else x, value)
