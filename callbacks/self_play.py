"""Let the learner play against itself and against its past versions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from lightning.pytorch import Callback, Trainer
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.utils.moves import legal_moves, random_move
from lightning_ding.utils.protocols import run_data

NEWEST = -1
"""Number of the learner as an opponent; a snapshot's number is the env step at which it was taken."""


class SelfPlay(Callback):
    """Let the learner play its training games against itself and against its past versions.

    For envs of games, such as ``pettingzoo:tictactoe_v3``. For each game, one opponent is drawn, which plays all other
    seats:

    * with probability ``newest_share`` the learner itself, which always has its newest weights;
    * with probability ``past_share`` a snapshot of the learner, each with the same probability;
    * otherwise the ``opponent`` of the env, by default a player of random moves.

    A snapshot is taken at the start of a run, and after the first round that ends at least ``snapshot_interval`` env
    steps after the last one. Where there are ``max_snapshots`` already, it replaces the oldest one; the games that the
    replaced one was playing are continued by the oldest that is left. These opponents play greedily, apart from random
    legal moves. Only the learner's transitions are learned from. Evaluations are played against the ``opponent`` of the
    evaluation envs.

    These opponents see the observations of the game, and make its moves. A wrapper that changes observations or actions
    is therefore refused: the learner would see and do something else than it does as an opponent.

    The snapshots are part of every checkpoint. Under DDP each rank has the same ones.

    Args:
        newest_share: Share of the games against the learner itself, in [0, 1].
        past_share: Share of the games against snapshots, in [0, 1]; both shares together are at most 1.
        snapshot_interval: Env steps between two snapshots, >= 1.
        max_snapshots: Number of snapshots that are kept, >= 1.
        random_move: Probability of a random legal move of these opponents, in [0, 1], so that a game does not always
            take the same course.

    Raises:
        ValueError: If an argument is out of range. At the start of a fit: if the policy has memory, or the training
            envs are no games, are in other processes, or have wrappers that change observations or actions.
    """

    def __init__(
        self,
        newest_share: float = 0.5,
        past_share: float = 0.3,
        snapshot_interval: int = 10_000,
        max_snapshots: int = 10,
        random_move: float = 0.1,
    ) -> None:
        shares = {"newest_share": newest_share, "past_share": past_share, "random_move": random_move}
        for name, value in shares.items():
            require(0 <= value <= 1, name, "in [0, 1]", value)
        total = newest_share + past_share
        require(total <= 1 + 1e-9, "newest_share + past_share", "at most 1", total)
        require(snapshot_interval >= 1, "snapshot_interval", ">= 1", snapshot_interval)
        require(max_snapshots >= 1, "max_snapshots", ">= 1", max_snapshots)
        self.newest_share, self.past_share, self.random_move = newest_share, past_share, random_move
        self.snapshot_interval, self.max_snapshots = snapshot_interval, max_snapshots
        self._learner: Any = None
        self._snapshots: dict[int, Any] = {}  # frozen policies by their numbers, the oldest first
        self._saved: Mapping[int, Any] | None = None  # states of snapshots from a checkpoint

    # ------------------------------------------------------------------ as opponents of an env

    def draw(self, rng: np.random.Generator) -> int | None:
        """Return the number of the opponent of a new game; None for the ``opponent`` of the env."""
        place = rng.random()
        if place < self.newest_share:
            return NEWEST
        if place < self.newest_share + self.past_share:
            return list(self._snapshots)[rng.integers(len(self._snapshots))]
        return None

    def move(self, number: int, obs: Any, rng: np.random.Generator) -> int:
        """Return the move of an opponent.

        Args:
            number: Number of the opponent.
            obs: Observation of the player that it plays.
            rng: Random number generator of the env.
        """
        if rng.random() < self.random_move:
            return random_move(legal_moves(obs, self._learner.env_spaces[1]), rng)
        kept = self._snapshots
        player = self._learner if number == NEWEST else kept[max(number, next(iter(kept)))]
        batch = nested.apply(lambda leaf: np.asarray(leaf)[np.newaxis], obs)
        return int(player.eval_mode.forward(batch)["action"][0])

    # ------------------------------------------------------------------ Lightning

    @override
    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the first snapshot, or restore those of a checkpoint, and become the opponents of the training envs."""
        memory = pl_module.new_memory("eval")
        allowed = "one without memory, with SelfPlay"
        require(not memory, "policy", allowed, type(pl_module).__name__)
        envs = run_data(trainer).training_envs()
        require(bool(envs), "mode", '"sync" in a datamodule that collects, with SelfPlay', "envs of other processes")
        for env in envs:
            game = "a game, such as 'pettingzoo:tictactoe_v3', with SelfPlay"
            require(hasattr(env.unwrapped, "opponents"), "env_id", game, env.unwrapped)
            _check_wrappers(env)
            env.unwrapped.opponents = self
        if self._learner is not pl_module:
            self._learner, self._snapshots = pl_module, {}
        if self._saved is not None:
            self._snapshots = {number: self._frozen(state) for number, state in self._saved.items()}
            self._saved = None
            self._drop_oldest()
        if not self._snapshots:
            self._take()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take a snapshot if one is due."""
        if pl_module.progress.env_step - next(reversed(self._snapshots)) >= self.snapshot_interval:
            self._take()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the snapshots."""
        if self._saved is not None:  # the run has not started
            return {"snapshots": self._saved}
        return {"snapshots": {number: one.eval_mode.state_dict() for number, one in self._snapshots.items()}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the weights of the snapshots until the run starts."""
        self._saved = state_dict["snapshots"]

    def _take(self) -> None:
        """Add a snapshot of the learner."""
        self._snapshots[self._learner.progress.env_step] = self._frozen(self._learner.eval_mode.state_dict())
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Remove the oldest snapshots until ``max_snapshots`` are left; a checkpoint may hold more."""
        while len(self._snapshots) > self.max_snapshots:
            del self._snapshots[next(iter(self._snapshots))]

    def _frozen(self, state: Mapping[str, Any]) -> Any:
        """Return a policy that acts as the learner with the weights of a state does."""
        learner = self._learner
        frozen = type(learner)(learner.cfg, model=copy.deepcopy(learner.model), enable_field=("eval",))
        frozen.to(learner.device)
        frozen.eval_mode.load_state_dict(state)
        return frozen


def _check_wrappers(env: gym.Env[Any, Any]) -> None:
    """Raise if a wrapper of a game changes observations or actions, because opponents play without wrappers."""
    while isinstance(env, gym.Wrapper):
        allowed = (
            "ones that keep observations and actions, because SelfPlay's opponents have those of the game itself; make "
            "the change in a function that returns the game, with env_id='pettingzoo:my_module.make_game'"
        )
        require(not _changes_play(env), "wrappers", allowed, type(env).__name__)
        env = env.env


def _changes_play(env: gym.Wrapper[Any, Any, Any, Any]) -> bool:
    """Return whether a wrapper is one of observations or of actions, or has other spaces than the env inside."""
    is_of_values = isinstance(env, (gym.ObservationWrapper, gym.ActionWrapper))
    inside = env.env
    return is_of_values or (env.observation_space, env.action_space) != (inside.observation_space, inside.action_space)
