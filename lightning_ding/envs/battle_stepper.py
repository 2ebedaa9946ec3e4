"""Stepping a vector env of multi-player games.

Shapes: N envs, P players.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.envs.checks import fits_float32, what_is_wrong

BoolArray = NDArray[np.bool_]


class BattleStep(NamedTuple):
    """The result of one step of N games."""

    obs: Any
    """Observations of the players, the final ones for players that left; nested, leading axes (N, P)."""
    reward: NDArray[np.float64]
    """Rewards of the players, shape (N, P)."""
    terminated: BoolArray
    """Whether a player reached a terminal state, shape (N, P)."""
    truncated: BoolArray
    """Whether the episode of a player was truncated, shape (N, P)."""
    over: BoolArray
    """Whether the game ended without a fault, shape (N,)."""
    abnormal: BoolArray
    """Whether the env reported a fault, which ends its episode, shape (N,)."""
    fault: list[str | None]
    """Descriptions of the faults, N entries; None without a fault."""


class BattleStepper:
    """Steps a vector env with an axis of players, and keeps track of the players that act next.

    The vector env has autoreset disabled and an attribute ``num_players``, and behaves like ``PettingZooVectorEnv``:
    ``info["active"]`` marks the players that act next, a step does nothing in an env without active players, and
    ``reset`` has the options ``reset_mask``, ``stop_mask`` and ``episode``. Optionally, ``info["seat"]`` holds the
    seats of the players, and ``info["abnormal"]`` and ``info["fault"]`` report faults.

    No episode is running before :meth:`start`.

    Args:
        env: The vector env.

    Raises:
        ValueError: If autoreset is not disabled, or the env has fewer than two players.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = (env.metadata or {}).get("autoreset_mode")
        if mode != AutoresetMode.DISABLED:
            raise ValueError(f"env.metadata['autoreset_mode'] must be AutoresetMode.DISABLED, got {mode!r}")
        num_players = getattr(env, "num_players", 1)
        if num_players < 2:
            raise ValueError(f"env.num_players must be >= 2, got {num_players}; PettingZooVectorEnv makes such envs")
        self.env: Any = env
        self.num_envs = env.num_envs
        self.num_players: int = num_players
        self.obs: Any = None
        """Current observations, leading axes (N, P); None after a step or reset that raised."""
        self.active: BoolArray = np.zeros((self.num_envs, self.num_players), dtype=bool)
        """Whether a player acts in the next step, shape (N, P)."""
        self.seat = np.tile(np.arange(self.num_players), (self.num_envs, 1))
        """Seat of each player, shape (N, P)."""
        self.stop()

    @property
    def is_playing(self) -> BoolArray:
        """Whether an episode is running in an env, shape (N,)."""
        return cast(BoolArray, self.active.any(1))

    def stop(self, mask: BoolArray | None = None) -> None:
        """Stop the episodes of the envs in ``mask``, shape (N,), before their end; None means all."""
        chosen = np.ones(self.num_envs, dtype=bool) if mask is None else mask
        self._reset({"reset_mask": np.zeros(self.num_envs, dtype=bool), "stop_mask": chosen})

    def start(
        self, mask: BoolArray, seed: list[int | None] | None = None, episode: NDArray[np.int64] | None = None
    ) -> None:
        """Start episodes.

        Args:
            mask: Envs in which episodes start, shape (N,).
            seed: A seed for each env; None continues the random stream of the env.
            episode: Numbers of the episodes, shape (N,), which may decide the seats; None numbers them in order.

        Raises:
            RuntimeError: If a new game has no active player.
            ValueError: If an observation is not finite; the message names env and player.
        """
        options = {"reset_mask": mask} if episode is None else {"reset_mask": mask, "episode": episode}
        self._reset(options, seed)
        if not self.is_playing[mask].all():
            raise RuntimeError(f"env {np.flatnonzero(mask & ~self.is_playing)[0]} has no active player after a reset")

    def step(self, action: NDArray[Any]) -> BattleStep:
        """Step the envs in which an episode is running.

        Args:
            action: Actions, leading axes (N, P); those of inactive players are ignored.

        Raises:
            ValueError: If a reward or an observation is not finite; the message names env and player.
        """
        was_playing, self.obs = self.is_playing, None
        obs, reward, terminated, truncated, info = self.env.step(np.copy(action))  # an env may change its actions
        self.active = info["active"]
        abnormal = info.get("abnormal", np.zeros(self.num_envs, dtype=bool))
        fault = info.get("fault", [None] * self.num_envs)
        over = was_playing & ~self.is_playing & ~abnormal
        _check_finite("reward", reward, was_playing)
        _check_finite("observation", obs, was_playing)
        self.obs = obs
        return BattleStep(obs, reward, terminated, truncated, over, abnormal, list(fault))

    def _reset(self, options: dict[str, Any], seed: list[int | None] | None = None) -> None:
        self.obs = None
        obs, info = self.env.reset(seed=seed, options=options)
        self.active = info["active"]
        self.seat = info.get("seat", self.seat)
        _check_finite("observation", obs, options["reset_mask"])
        self.obs = obs


def _check_finite(what: str, data: Any, envs: BoolArray) -> None:
    for leaf in nested.leaves(data):
        if leaf.dtype.kind != "f" or fits_float32(leaf).all():
            continue
        wrong = np.argwhere(~fits_float32(leaf))
        wrong = wrong[envs[wrong[:, 0]]]  # an env without an episode may still hold an old observation
        if len(wrong):
            env_id, player = wrong[0, :2]
            value = leaf[env_id, player]
            raise ValueError(f"env {env_id}, player {player}: the {what} is {what_is_wrong(value)}: {value}")
