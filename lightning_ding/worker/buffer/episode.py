"""Whole episodes, and windows of fixed length from them.

Shapes: E episodes pushed, T steps of an episode or a window, B episodes or windows of a minibatch, U minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.arguments import also_named
from lightning_ding.worker.buffer.columns import ENDS, Rows, ended, has_ends
from lightning_ding.worker.buffer.forms import to_sequences
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.buffer.sampling import check_sizes, draw, require_enough
from lightning_ding.worker.buffer.sequence import SequenceBufferConfig, masks


@dataclass(frozen=True)
class EpisodeBufferConfig(SequenceBufferConfig):
    """Keys of the episode buffer."""

    type: str = "episode"


@BUFFER_REGISTRY.register("episode")
class EpisodeReplayBuffer(RingBuffer):
    """Stores the newest whole episodes; see :class:`RingBuffer` for the arguments.

    ``replay_buffer_size`` counts transitions, as in every buffer. An episode whose beginning is overwritten leaves as a
    whole. With ``sequence_length`` a sample holds windows of that length, otherwise whole episodes.

    Example:
        >>> buffer = EpisodeReplayBuffer(seed=0)
        >>> step = {"terminated": torch.tensor(False), "truncated": torch.tensor(False)}
        >>> buffer.push([[step, step, {**step, "terminated": torch.tensor(True)}]])
        >>> buffer.count(), buffer.episode_len.tolist(), buffer.sample(1)["terminated"].flatten().tolist()
        (1, [3], [False, False, True])
    """

    gives_sequences = True
    config_class = EpisodeBufferConfig
    config: EpisodeBufferConfig

    def _set_up(self) -> None:
        self._begin: Rows = np.empty(0, dtype=np.int64)  # number of each episode's first transition, since the start
        self._length: Rows = np.empty(0, dtype=np.int64)

    @property
    def episode_len(self) -> NDArray[np.int64]:
        """Lengths of the stored episodes, the oldest first."""
        return self._length.copy()

    def count(self) -> int:
        """Return the number of stored episodes."""
        return len(self._length)

    def push(self, data: Any, cur_collector_envstep: int = -1) -> None:
        """Add episodes, which replace the oldest ones.

        Args:
            data: A list of E episodes, each a nested dict with leading axis T or a list of T dicts; or the transitions
                of whole episodes as one nested dict with ``episode_id``, those of an episode in chronological order.
            cur_collector_envstep: Environment steps so far, for the log.

        Raises:
            ValueError: If an episode does not end with its last transition, is longer than the buffer, or does not have
                the keys, shapes and types of the others. Then none of the episodes is added.
        """
        episodes = _by_id(data) if isinstance(data, Mapping) else [_columns(episode) for episode in data]
        if not episodes:
            return
        length = np.array([_check_episode(episode, self.config.replay_buffer_size) for episode in episodes])
        with self._lock:
            begin = self._storage.push_count + np.cumsum(length) - length
            super().push(nested.concatenate_arrays(episodes), cur_collector_envstep)
            self._begin, self._length = np.append(self._begin, begin), np.append(self._length, length)
            kept = self._begin >= self._storage.push_count - self._storage.count
            self._begin, self._length = self._begin[kept], self._length[kept]

    @also_named(size="batch_size")
    @override
    def sample(  # noqa: D417 - IBuffer.sample describes the other arguments
        self,
        batch_size: int,
        cur_learner_iter: int = 0,
        sample_range: slice | None = None,
        replace: bool = False,
        *,
        num_batches: int | None = None,
        n_step: int = 1,
        discount_factor: float = 1.0,
        sequence: int | None = None,
        as_list: bool = False,
    ) -> Any:
        """Return a copy of uniformly drawn episodes, or of windows from them; see also :meth:`IBuffer.sample`.

        Args:
            sample_range: Range of episodes to draw from, by age, the oldest first; None draws from all.
            replace: Allow an episode to occur in a minibatch more than once.
            sequence: Steps of a window T, above the burn-in; None means ``sequence_length``. Without either, whole
                episodes are returned, and T is the length of the longest one.

        Returns:
            A nested dict of tensors, leading axes (T, B) or (U, T, B), with ``discount``, ``mask``, which is True where
            a step is real, and ``learn_mask``, where it is also after the burn-in. After its end an episode repeats its
            last step. A window begins at any step from which it fits; of a shorter episode, at its first step. With
            ``as_list``, a list of B lists of dicts, or a list of U of them: the steps of whole episodes without the
            repeated ones and without masks, or windows of T steps with masks.

        Raises:
            ValueError: If there are fewer than B episodes and ``replace`` is false, or an argument is out of range.
        """
        check_sizes(batch_size, num_batches, n_step, cur_learner_iter)
        burn_in, window = self.config.burn_in, self.config.sequence_length if sequence is None else sequence
        require(window is None or window > burn_in, "sequence", f"above burn_in ({burn_in})", window)
        with self._lock:
            among = range(self.count()) if sample_range is None else range(self.count())[sample_range]
            require_enough(len(among), batch_size, replace, "episodes")
            drawn = draw(self._rng, num_batches or 1, batch_size, len(among), replace)
            if sample_range is not None:
                drawn = among.start + among.step * drawn
            length = self._length[drawn]
            steps = int(length.max()) if window is None else window
            first = self._rng.integers(np.maximum(length - steps, 0) + 1)
            step = first[:, None, :] + np.arange(steps)[:, None]
            mask = step < length[:, None, :]
            rows = self._rows(drawn)[:, None, :] + np.minimum(step, length[:, None, :] - 1)
            rows %= self._storage.capacity
            if num_batches is None:
                rows, mask = rows[0], mask[0]
            batch = self._storage.gather(rows, n_step, discount_factor)
            self._note_sample(int(np.count_nonzero(mask)), cur_learner_iter)
        batch |= masks(mask, burn_in)
        return to_sequences(batch, num_batches, n_step, is_whole=window is None) if as_list else batch

    def clear(self) -> None:
        """Remove all episodes and their schema."""
        with self._lock:
            super().clear()
            self._begin, self._length = self._begin[:0], self._length[:0]

    def _take_out(self, rows: Rows) -> None:
        super()._take_out(rows)
        begins = self._rows(np.arange(len(self._begin))) % self._storage.capacity
        stays = np.isin(begins, self._dropped.without(begins))
        self._begin, self._length = self._begin[stays], self._length[stays]

    def _rows(self, drawn: Rows) -> Rows:
        """Return the rows in which episodes begin."""
        age = self._storage.push_count - self._begin[drawn]  # number of transitions pushed since it began
        return self._storage.tail - age

    def _state(self, copy: bool) -> dict[str, Any]:
        state = super()._state(copy)
        state["tensors"] |= {"own/begin": torch.from_numpy(self._begin), "own/length": torch.from_numpy(self._length)}
        return state

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self._begin, self._length = (state["tensors"][f"own/{name}"].numpy().copy() for name in ("begin", "length"))


def _columns(episode: Any) -> dict[str, Any]:
    """Return an episode as columns, with an ``env_id``, which marks its steps as consecutive for the storage."""
    columns: Any = dict(episode) if isinstance(episode, Mapping) else nested.stack_arrays(episode)
    require(has_ends(columns), "data", "with terminated and truncated, or done", sorted(columns))
    axes = np.ndim(columns["terminated" if "terminated" in columns else "done"])
    require(axes == 1, "an episode", "columns with a leading axis, or a list of transitions", f"{axes} axes")
    if "env_id" not in columns:
        columns["env_id"] = np.zeros(nested.length(columns), dtype=np.int64)
    return dict(columns)


def _by_id(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the episodes of a batch, in the order in which they begin."""
    require("episode_id" in data, "data", "a list of episodes, or transitions with episode_id", sorted(data))
    episode_id = np.asarray(data["episode_id"])
    require(episode_id.ndim == 1, "data", "whole episodes; one of a single transition is [[transition]]", dict(data))
    if not len(episode_id):
        return []
    order = np.argsort(episode_id, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(episode_id[order])) + 1)
    return [_columns(nested.index(dict(data), part)) for part in sorted(parts, key=lambda part: int(part[0]))]


def _check_episode(episode: Mapping[str, Any], longest: int) -> int:
    """Return the length of an episode.

    Raises:
        ValueError: If the episode does not end with its last transition, or is too long.
    """
    steps = nested.length(dict(episode))
    marks = {name: np.asarray(episode[name]) for name in ENDS if name in episode}
    at = np.flatnonzero(ended(marks, slice(None))).tolist()
    require(at == [steps - 1], "an episode", f"ended by its last step of {steps} and no other", at)
    require(steps <= longest, "an episode", f"at most replay_buffer_size ({longest}) long", steps)
    return steps
