"""Pieces of episodes for policies in DI-engine's form, which make their training samples from lists of transitions.

Shapes: N envs, S requested samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_ding import nested
from lightning_ding.worker.by_env import TRANSITION, ByEnv
from lightning_ding.worker.collector.steps import TransitionQueue
from lightning_ding.worker.players import attribute


class PieceQueue:
    """Samples that a policy made of pieces of episodes, and the transitions of the pieces that are not complete.

    A piece ends with its episode, or after ``max(unroll_len, ceil(n_sample / N))`` transitions; without an ``n_sample``
    in the policy's config, or with ``traj_len_inf``, only with its episode. If returns are computed over ``nstep`` > 1
    steps, a piece that is cut also contains the next ``nstep`` transitions, so that the returns of the others do not
    depend on the cut; these transitions then begin the next piece.

    A policy that learns from its newest data only (``on_policy``) gets no transitions from earlier calls: the pieces
    that are open at the end of a call are dropped, as is the surplus.
    """

    def __init__(self) -> None:
        self.samples: list[Any] = []
        self._open: dict[int, list[dict[str, Any]]] = {}
        """Transitions of each env, as rows of columns."""

    def use(self, policy: ByEnv, num_envs: int) -> None:
        """Set the policy, and the number of envs N."""
        self._policy = policy
        unroll_len = int(attribute(policy, "unroll_len", None) or 1)
        self._is_on_policy = bool(attribute(policy, "on_policy", policy.setting("on_policy", False)))
        n_sample = attribute(policy, "n_sample", None)
        is_whole = n_sample is None or policy.setting("traj_len_inf", False)
        self._cut = math.inf if is_whole else max(unroll_len, -(-n_sample // num_envs))
        nstep = int(policy.setting("nstep", 1) or 1)
        self._overlap = nstep if nstep > 1 and unroll_len == 1 and not self._is_on_policy else 0

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def append(self, step: dict[str, Any], valid: Any = None) -> None:
        """Add the transitions of a step.

        Args:
            step: Columns of :meth:`ByEnv.process_transition`, with ``env_id`` and ``episode_id``.
            valid: Rows that are transitions; None means all.
        """
        for row in range(len(step[TRANSITION])) if valid is None else np.flatnonzero(valid).tolist():
            transition = {name: column[row : row + 1] for name, column in step.items()}
            env_id = int(transition["env_id"][0])
            before = self._open.setdefault(env_id, [])
            if before and before[-1]["episode_id"][0] != transition["episode_id"][0]:
                self._close(env_id)  # a fault or a reset ended the episode
            piece = self._open[env_id]
            piece.append(transition)
            if transition["is_last"][0]:
                self._close(env_id)
            elif len(piece) == self._cut + self._overlap:
                self._close(env_id, self._overlap)

    def lacks(self, amount: int) -> bool:
        """Return whether there are fewer than S samples."""
        return self.count < amount

    def take(self, amount: int) -> list[Any]:
        """Remove and return the oldest samples."""
        taken, self.samples = self.samples[:amount], self.samples[amount:]
        if self._is_on_policy:
            self.samples, self._open = [], {}
        return taken

    def check_levels(self, waiting: str, level_seeds: Sequence[int] | None) -> None:
        """Do nothing: a list may hold transitions with and without a level."""

    def state(self) -> dict[str, Any]:
        """Return samples and open pieces."""
        return {"samples": self.samples, "open": [[env_id, piece] for env_id, piece in self._open.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.samples, self._open = state["samples"], dict(state["open"])

    def _close(self, env_id: int, overlap: int = 0) -> None:
        """Let the policy make samples of a piece, except of its last ``overlap`` transitions, which stay."""
        piece = self._open[env_id]
        if not piece:
            return
        samples = self._policy.get_train_sample(self._policy.transitions(nested.concatenate_arrays(piece)))
        made = len(samples) - overlap if len(samples) == len(piece) else len(samples)
        self.samples += samples[:made]
        self._open[env_id] = piece[len(piece) - overlap :] if made < len(samples) else []


def queue_for(policy: Any, num_envs: int, kept: TransitionQueue | PieceQueue | None) -> Any:
    """Return the queue of a policy's collected data: the kept one, or a new one if the form of the data differs."""
    if not isinstance(policy, ByEnv):
        return kept if isinstance(kept, TransitionQueue) else TransitionQueue()
    queue = kept if isinstance(kept, PieceQueue) else PieceQueue()
    queue.use(policy, num_envs)
    return queue


def restored_queue(state: Any) -> TransitionQueue | PieceQueue:
    """Return the queue whose ``state`` was saved."""
    if isinstance(state, Mapping):
        queue = PieceQueue()
        queue.load(state)
        return queue
    return TransitionQueue([nested.to_array(part, keep_double=True) for part in state])
