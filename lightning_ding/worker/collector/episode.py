"""Collecting a number of whole episodes, and cutting steps into episodes and windows.

Shapes: N envs, E requested episodes, T steps of an episode, S steps of all of them, W windows of L steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.envs import from_plain, to_plain
from lightning_ding.registry import SERIAL_COLLECTOR_REGISTRY
from lightning_ding.utils.attributes import policy_of
from lightning_ding.utils.modes import CollectMode
from lightning_ding.worker.arguments import also_named, check_amount, check_level_switch
from lightning_ding.worker.collector.base import SinglePolicyCollector
from lightning_ding.worker.episodes import share_out

logger = logging.getLogger(__name__)


@SERIAL_COLLECTOR_REGISTRY.register("episode")
class EpisodeSerialCollector(SinglePolicyCollector):
    """Collects E whole episodes a call, equally many in each env.

    The first E episodes to end would mostly be short ones. Each env therefore has a quota of E // N episodes, plus one
    for the envs whose turn it is, and returns all its episodes in their order. An env with a full quota is paused until
    the others have theirs, if all envs are ``Pausable``: then all returned data were collected with the newest weights.
    Otherwise it continues, and its further episodes, oldest first, count for its quota in the next calls. Use
    ``Pausable`` envs for a policy that must learn from its own newest data.

    With ``env_fault="drop"`` an episode in which an env reports a fault is dropped and counted in ``dropped_episode``,
    and the env has to deliver another one.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"collect_print_freq", "env_fault", "get_train_sample", "reward_shaping", "deepcopy_obs", "transform_obs"}
    )
    collects_whole_episodes: ClassVar[bool] = True

    def _clear(self) -> None:
        super()._clear()
        self._turn = 0
        self._waiting: list[deque[Any]] = []
        self._has_warned = False
        self._has_levels = False

    @also_named(_env="env")
    def reset_env(self, env: VectorEnv | None = None) -> None:
        """Start new episodes, in ``env`` if it is given.

        Unfinished episodes are lost. Whole ones that wait for the next call are kept, except with another env.

        Raises:
            RuntimeError: If there is no env.
            TypeError: If ``reward_shaping`` is on and the env has no method of that name.
        """
        if env is not None:
            self._waiting = []
            self._turn = 0
        vector_env = self._require_env().env if env is None else env
        # A wrapper passes on the methods of its env by __getattr__, so a runtime-checkable protocol would always match.
        if self.config.reward_shaping and not callable(getattr(vector_env, "reward_shaping", None)):
            raise TypeError(
                f"with reward_shaping, env must have a method reward_shaping(env_id, episode), got {vector_env!r}"
            )
        super().reset_env(env)
        self._table = StepTable()
        if not self._waiting:
            self._waiting = [deque() for _ in range(vector_env.num_envs)]

    @override
    def collect(
        self,
        n_episode: int | None = None,
        train_iter: int = 0,
        policy_kwargs: Mapping[str, Any] | None = None,
        *,
        random_collect: bool = False,
        record_random_collect: bool = True,
        level_seeds: Sequence[int] | None = None,
    ) -> Any:
        """Return E episodes, env by env, those of each env in chronological order; see also :class:`ISerialCollector`.

        Args:
            n_episode: Number of episodes E, >= 1; None means the policy's ``n_episode``.
            train_iter: Updates so far; each step carries it as ``policy_version``.
            policy_kwargs: Arguments of the policy's ``forward``, such as ``eps``.
            random_collect: Take uniformly random actions, legal ones where the observation has an ``action_mask``.
            record_random_collect: Report the episodes that end while actions are random.
            level_seeds: Level of each of the N envs; each step carries its env's as ``seed``.

        Returns:
            A list of episodes. An episode holds the columns that the policy's ``process_transition`` gives, and
            ``env_id``, ``episode_id`` and ``policy_version``: nested numpy arrays with leading axis T. With the
            config's ``get_train_sample``, the policy's training samples of all episodes together: leading axis S, or
            leading axes (W, L) and a ``mask`` as of :func:`cut_windows` if the policy's ``unroll_len`` L is above 1.
            For a policy that acts by env, an episode is a list of transitions, and training samples are a list.

        Raises:
            TypeError: If the env's ``reward_shaping`` does not return an episode.
        """
        call = self._begin(train_iter, random_collect, record_random_collect, policy_kwargs, level_seeds)
        asked = policy_of(call.policy).n_episode if n_episode is None else n_episode
        wanted = check_amount("n_episode", asked)
        if self._length.any() or any(self._waiting):
            check_level_switch("the episodes that are unfinished or wait", self._has_levels, level_seeds)
        elif self._has_levels != (level_seeds is not None):
            self._table = StepTable()  # the old one is not needed any more
        self._has_levels = level_seeds is not None
        quota = share_out(wanted, len(self._waiting), self._turn)
        try:
            while (lacks := quota > np.array([len(queue) for queue in self._waiting])).any():
                call.stepper.pause(~lacks & (self._length == 0))
                self._step(call)
        finally:
            if call.stepper.obs is not None:  # otherwise the env failed and may not answer any more
                call.stepper.pause(np.zeros(call.stepper.env.num_envs, dtype=bool))
        episodes = [queue.popleft() for queue, share in zip(self._waiting, quota, strict=True) for _ in range(share)]
        self._turn += wanted
        self.sample += sum(nested.length(episode) for episode in episodes)
        if not self._has_warned and any(self._waiting):
            self._has_warned = True
            logger.warning(
                "envs that cannot be paused continued after their quota; these episodes wait for the next call, where "
                "they will be older than the newest weights. Wrap the envs in Pausable to avoid this."
            )
        self._report.finish(self, train_iter)
        return train_sample(call.policy, episodes) if self.config.get_train_sample else episodes

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the collector, its whole episodes, and the steps of the unfinished ones."""
        state = super().state_dict()
        counted = {"turn": self._turn, "has_warned": self._has_warned, "waiting": [list(q) for q in self._waiting]}
        under_way = {"has_levels": self._has_levels, "steps": self._table.newest(int(self._length.max()))}
        return {**state, "episodes": to_plain(counted), "steps": to_plain(under_way)}

    @override
    def load_state_dict(self, state: Mapping[str, Any], continues: bool = True) -> None:
        super().load_state_dict(state, continues)
        if "episodes" not in state:  # a collector of a different kind has none
            return
        counted = from_plain(state["episodes"])
        self._turn, self._has_warned = counted["turn"], counted["has_warned"]
        if len(counted["waiting"]) == len(self._waiting):  # otherwise there is no env for them
            self._waiting = [deque(map(_restored, queue)) for queue in counted["waiting"]]
        under_way = from_plain(state["steps"])
        self._has_levels = under_way["has_levels"]
        if continues:
            steps: Any = nested.to_array(under_way["steps"], keep_double=True) if under_way["steps"] else None
            self._table = StepTable.of(steps)

    def _keep(self, step: dict[str, Any], valid: NDArray[np.bool_] | None) -> None:
        self._table.append(step, alive=int(self._length.max()))

    def _keep_episodes(self, rows: NDArray[np.intp], lengths: NDArray[np.int64]) -> None:
        # The valid steps of an episode are consecutive rows: an env is reset or paused only before its first step.
        for env_id, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            episode: Any = self._table.cut(env_id, length)
            if not isinstance(self._policy, CollectMode):
                episode = self._require_policy().transitions(episode)
            self._waiting[env_id].append(self._shaped(env_id, episode) if self.config.reward_shaping else episode)

    def _shaped(self, env_id: int, episode: Any) -> Any:
        env: Any = self._require_env().env
        shaped = env.reward_shaping(env_id, episode)
        if shaped is None and isinstance(episode, list):
            return episode  # changed in place
        if not isinstance(shaped, type(episode)):
            raise TypeError(f"env.reward_shaping must return the episode, got {type(shaped).__name__}")
        return shaped


def _restored(episode: Any) -> Any:
    """Return an episode that was saved; a list of transitions as it is."""
    return episode if isinstance(episode, list) else nested.to_array(episode, keep_double=True)


class StepTable:
    """The newest steps of N envs in columns with the leading axes (time, N).

    Args:
        capacity: Steps that fit at first, >= 1. The table grows when an episode is longer.

    Example:
        >>> table = StepTable()
        >>> for reward in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]):
        ...     table.append({"reward": np.array(reward)}, alive=2)
        >>> table.cut(env_id=1, length=2)
        {'reward': array([4., 6.])}
    """

    def __init__(self, capacity: int = 64) -> None:
        self._capacity = capacity
        self._size = 0
        self._columns: Any = None

    def append(self, step: dict[str, Any], alive: int) -> None:
        """Add a step.

        Args:
            step: Nested arrays with leading axis N.
            alive: Number of the newest steps, before this one, that are still needed; older ones may be overwritten.

        Raises:
            ValueError: If the entries of the step differ from those of the previous steps.
        """
        if self._columns is None:
            self._columns = nested.apply(lambda x: np.empty((self._capacity, *x.shape), x.dtype), step)
        if self._size == self._capacity:
            self._make_room(alive)
        _write(self._columns, self._size, step, "")
        self._size += 1

    def cut(self, env_id: int, length: int) -> dict[str, Any]:
        """Return a copy of the newest steps of an env.

        Args:
            env_id: Index of the env, in [0, N).
            length: Number of steps T.
        """
        steps = slice(self._size - length, self._size)
        episode: dict[str, Any] = nested.apply(lambda x: x[steps, env_id].copy(), self._columns)
        return episode

    def newest(self, amount: int) -> dict[str, Any] | None:
        """Return a view of the newest steps of all envs, leading axes (time, N); None if there are none."""
        if not amount or self._columns is None:
            return None
        steps: dict[str, Any] = nested.index(self._columns, slice(self._size - amount, self._size))
        return steps

    @classmethod
    def of(cls, steps: dict[str, Any] | None) -> StepTable:
        """Return a table of the steps that ``newest`` returned."""
        table = cls()
        for number in range(0 if steps is None else nested.length(steps)):
            table.append(nested.index(steps, number), alive=number)
        return table

    def _make_room(self, alive: int) -> None:
        newest = slice(self._size - alive, self._size)
        if alive > self._capacity // 2:
            self._capacity *= 2

        def move(column: NDArray[Any]) -> NDArray[Any]:
            is_large = len(column) == self._capacity
            moved = column if is_large else np.empty((self._capacity, *column.shape[1:]), column.dtype)
            moved[:alive] = column[newest]  # within one column the two ranges do not overlap
            return moved

        self._columns = nested.apply(move, self._columns)
        self._size = alive


def train_sample(policy: Any, episodes: Sequence[Any]) -> Any:
    """Apply a policy's ``get_train_sample`` to each episode, and return the results in one nested dict.

    Args:
        policy: The collect mode of the policy.
        episodes: Nested arrays with leading axis T; lists of transitions for a policy that acts by env.

    Returns:
        Nested arrays whose leading axis is that of all steps; an empty dict without episodes. If the policy's
        ``unroll_len`` L is above 1, the leading axes are (W, L), and :func:`cut_windows` adds a ``mask``. For a policy
        that acts by env, the list of its samples.
    """
    if not isinstance(policy, CollectMode):
        return [sample for episode in episodes for sample in policy.get_train_sample(episode)]
    samples = [policy.get_train_sample(episode) for episode in episodes]
    unroll_len = policy_of(policy).unroll_len
    if unroll_len > 1:
        samples = [cut_windows(sample, unroll_len) for sample in samples]
    return nested.concatenate_arrays(samples, keep_double=True) if samples else {}


def cut_windows(episode: dict[str, Any], length: int) -> dict[str, Any]:
    """Return an episode in windows of equal length.

    Args:
        episode: Nested arrays with leading axis T >= 1.
        length: Steps of a window L, >= 1.

    Returns:
        The same entries with the leading axes (W, L), where W = ceil(T / L), and ``mask`` (W, L), which is false where
        copies of the episode's last step fill up the last window.

    Raises:
        ValueError: If ``length`` is out of range, or the episode has an entry ``mask``.

    Example:
        >>> windows = cut_windows({"reward": np.array([1.0, 2.0, 3.0])}, length=2)
        >>> windows["reward"].tolist(), windows["mask"].tolist()
        ([[1.0, 2.0], [3.0, 3.0]], [[True, True], [True, False]])
    """
    require(length >= 1, "length", ">= 1", length)
    require("mask" not in episode, "episode", "without an entry 'mask', which the windows add", sorted(episode))
    steps = nested.length(episode)
    place = np.arange(-(-steps // length) * length).reshape(-1, length)
    windows: dict[str, Any] = nested.index(episode, np.minimum(place, steps - 1))
    return windows | {"mask": place < steps}


def _write(columns: Any, row: int, step: Any, path: str) -> None:
    if not isinstance(columns, dict):
        columns[row] = step
        return
    if columns.keys() != step.keys():
        raise ValueError(f"{path or 'a step'} must have the keys {sorted(columns)}, got {sorted(step)}")
    for name, column in columns.items():
        _write(column, row, step[name], f"{path}.{name}" if path else name)
