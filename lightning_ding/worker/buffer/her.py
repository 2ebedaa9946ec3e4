"""Hindsight experience replay: transitions are drawn with goals that their episode reached later.

Paper: Andrychowicz et al. 2017 (https://arxiv.org/abs/1707.01495), algorithm 1 and section 4.5. An env has dict
observations with ``observation``, ``achieved_goal`` and ``desired_goal``, and a method ``compute_reward(achieved_goal,
desired_goal, info)`` for arrays of goals, as the envs of gymnasium-robotics have.

Where this differs: goals are replaced when transitions are drawn, not when they are stored, so that each draw gets
another goal; a share k / (1 + k) of each minibatch gets new goals, instead of k copies of each transition. Episodes
that continue give goals too. If the env has ``compute_terminated``, it decides whether a step with the new goal
terminates; otherwise the step keeps its own mark. ``info`` is empty. The functions are those of the env without its
wrappers, so the first draws compare their rewards for the goals that the env had with the rewards that it gave.

Shapes: B transitions of a minibatch, U minibatches, M transitions with new goals, G size of a goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from lightning_ding.config import moved, require
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.columns import Parts, Rows
from lightning_ding.worker.buffer.episode_rows import EpisodeRows
from lightning_ding.worker.buffer.naive import NaiveReplayBuffer
from lightning_ding.worker.config import ReplayBufferConfig

ENTRIES = ("observation", "achieved_goal", "desired_goal")
"""Entries of the observation of an env with goals."""
GoalFunction = Callable[[Any, Any, Mapping[str, Any]], Any]
_SIZE = "set learn.batch_size: transitions of all episodes are drawn, not whole episodes"


@dataclass(frozen=True)
class HERBufferConfig(ReplayBufferConfig):
    """Keys of the buffer with hindsight."""

    MOVED: ClassVar[dict[str, str]] = ReplayBufferConfig.MOVED | moved(episode_size=_SIZE, sample_per_episode=_SIZE)

    type: str = "her"
    her_strategy: Literal["future", "final", "episode"] = "future"
    """HER buffer: where new goals are from: a later state of the episode, its last one, or any state of it."""
    her_replay_k: int = 4
    """HER buffer: transitions with a new goal for each one with its own, >= 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.her_replay_k >= 0, "her_replay_k", ">= 0", self.her_replay_k)


@BUFFER_REGISTRY.register("her")
class HERReplayBuffer(NaiveReplayBuffer):
    """Draws uniformly, a part of each minibatch with goals that were reached later; see RingBuffer for the arguments.

    Before the first draw, :meth:`use_env` must get an env that computes rewards; a ``ReplayDataModule`` calls it. The
    first transitions of a minibatch are those with new goals.
    """

    needs_env: ClassVar[bool] = True
    config_class = HERBufferConfig
    config: HERBufferConfig

    def _set_up(self) -> None:
        self._episodes = EpisodeRows(self.config.replay_buffer_size)
        self._compute_reward: GoalFunction | None = None
        self._compute_terminated: GoalFunction | None = None
        self._is_checked = False  # whether the env's function gave the stored rewards

    def use_env(self, env: Any) -> None:
        """Take the functions that judge goals from an env, whose state is not used.

        Args:
            env: A gymnasium env with ``compute_reward``, and perhaps ``compute_terminated``.

        Raises:
            ValueError: If the env has no ``compute_reward``.
        """
        allowed = "one with compute_reward(achieved_goal, desired_goal, info) for the buffer 'her'"
        require(env.has_wrapper_attr("compute_reward"), "env", allowed, str(env))
        self._compute_reward, self._is_checked = env.get_wrapper_attr("compute_reward"), False
        has_end = env.has_wrapper_attr("compute_terminated")
        self._compute_terminated = env.get_wrapper_attr("compute_terminated") if has_end else None

    @override
    def clear(self) -> None:
        super().clear()
        self._episodes.clear()

    # ------------------------------------------------------------------ drawing

    @override
    def _gather(self, rows: Rows, n_step: int, discount_factor: float) -> dict[str, Any]:
        require(n_step == 1, "nstep", "1 with the buffer 'her': rewards of several steps have no new goal", n_step)
        batch = super()._gather(rows, n_step, discount_factor)
        amount = round(rows.shape[-1] * self.config.her_replay_k / (1 + self.config.her_replay_k))
        if amount:
            if not self._is_checked:
                self._check_rewards(rows.reshape(-1))
            self._relabel(batch, rows[..., :amount])
        return batch

    @override
    def _gather_first(self, rows: Rows) -> dict[str, Any]:
        raise ValueError("first_step must be False with the buffer 'her': first steps have no new goal, got True")

    def _check_rewards(self, rows: Rows) -> None:
        """Raise if the env does not compute the stored rewards; until two different rewards have been compared."""
        reached, goal = (self._storage.read_next(rows, f"obs/{name}") for name in ENTRIES[1:])
        stored = self._storage.columns["reward"][rows]
        computed = self._judge("compute_reward", self._compute_reward, reached, goal)
        wrong = np.flatnonzero(~np.isclose(computed, stored, rtol=1e-3, atol=1e-4))
        allowed = (
            "a function that returns the rewards of the env's own steps: with the buffer 'her', wrappers must change "
            "neither rewards nor goals"
        )
        given = f"{computed[wrong[0]]} for a step with the reward {stored[wrong[0]]}" if len(wrong) else None
        require(not len(wrong), "compute_reward of the env", allowed, given)
        self._is_checked = bool((stored != stored[0]).any())

    def _relabel(self, batch: dict[str, Any], rows: Rows) -> None:
        """Replace the goals, rewards and ends of the first transitions of each minibatch.

        Args:
            batch: Tensors with leading axes (B,) or (U, B).
            rows: Rows of the transitions to change, the first ones of each minibatch.
        """
        amount = rows.shape[-1]
        step, first, last, env = self._episodes.span(rows.reshape(-1))
        if self.config.her_strategy != "final":
            last = self._rng.integers(step if self.config.her_strategy == "future" else first, last + 1)
        goal = self._storage.read_next(self._episodes.find(env, last), "obs/achieved_goal")  # (M, G)
        reached = self._storage.read_next(rows.reshape(-1), "obs/achieved_goal")
        values = {"reward": self._judge("compute_reward", self._compute_reward, reached, goal)}
        if self._compute_terminated is not None:
            values["terminated"] = self._judge("compute_terminated", self._compute_terminated, reached, goal)
        for name, value in values.items():
            old = batch[name]
            old[..., :amount] = torch.from_numpy(value.reshape(rows.shape)).to(old.dtype)
        new = torch.from_numpy(goal.reshape(*rows.shape, *goal.shape[1:]))
        for name in ("obs", "next_obs"):
            desired = batch[name]["desired_goal"]
            desired[(*[slice(None)] * (rows.ndim - 1), slice(amount))] = new.to(desired.dtype)

    def _judge(
        self, name: str, function: GoalFunction | None, reached: NDArray[Any], goal: NDArray[Any]
    ) -> NDArray[Any]:
        """Return what the env says of goals that were reached and goals that were wanted, shape (M,)."""
        if function is None:
            raise ValueError(
                "the buffer 'her' needs an env for its rewards: use a ReplayDataModule, or call use_env(env)"
            )
        value = np.asarray(function(reached, goal, {}))
        if name == "compute_terminated" and value.ndim == 0 and not value:  # of an env that never terminates
            value = np.zeros(len(goal), dtype=value.dtype)
        allowed = f"a function of arrays of goals that returns the shape ({len(goal)},)"
        require(value.shape == (len(goal),), f"{name} of the env", allowed, value.shape)
        return value

    # ------------------------------------------------------------------ the episodes of rows

    @override
    def _push(self, batch: Mapping[str, Any], parts: Parts | None) -> None:
        if self._storage.schema is None:
            obs = batch.get("obs")
            known = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
            has_goals = isinstance(obs, Mapping) and set(ENTRIES) <= obs.keys() and "next_obs" in batch
            require(has_goals, "obs", f"a dict with {', '.join(ENTRIES)} in the buffer 'her'", known)
            missing = sorted({"env_id", "episode_id", "reward", "terminated"} - batch.keys())
            require(not missing, "data", "transitions with env_id and episode_id, as collectors return them", missing)
        size = len(batch["env_id"])
        super()._push(batch, parts)
        self._index_rows(self._storage.newest(min(size, self._storage.capacity)))

    @override
    def _load_state(self, state: Mapping[str, Any]) -> None:
        super()._load_state(state)
        self._episodes.clear()
        self._index_rows(self._storage.newest(self._storage.count))

    @override
    def _merge(self, sources: Any) -> None:
        super()._merge(sources)
        self._episodes.clear()
        self._index_rows(self._storage.newest(self._storage.count))

    def _index_rows(self, rows: Rows) -> None:
        columns = self._storage.columns
        if len(rows):
            self._episodes.add(rows, columns["env_id"][rows], columns["episode_id"][rows])
