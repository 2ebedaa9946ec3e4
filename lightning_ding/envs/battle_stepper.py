"""Stepping games of several players side by side.

Shapes: N envs, P players.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.envs.fault import fits_float32, what_is_wrong

BoolArray = NDArray[np.bool_]


class BattleStep(NamedTuple):
    """What one step of N games gave."""

    obs: Any
    """What each player sees, the final observation where it left; nested, leading axes (N, P)."""
    reward: NDArray[np.float64]
    """Shape (N, P)."""
    terminated: BoolArray
    """Whether a player reached a terminal state, shape (N, P)."""
    truncated: BoolArray
    """Whether a player's episode was cut, shape (N, P)."""
    over: BoolArray
    """Whether the last players left, without a fault, shape (N,)."""
    abnormal: BoolArray
    """Whether the env reported a fault, which ends its episode, shape (N,)."""
    fault: list[str | None]
    """What an abnormal env says of it, N entries."""


class BattleStepper:
    """Steps a vector env that has an axis of players, and knows who acts next.

    Such an env has autoreset disabled and an attribute ``num_players``, and does what ``PettingZooVectorEnv`` does: it
    says in ``info["active"]`` who acts next, an env in which nobody is active is left alone, and ``reset`` knows
    ``reset_mask``, ``stop_mask`` and ``episode``. It may say ``info["seat"]`` and report a fault by
    ``info["abnormal"]`` and ``info["fault"]``.

    No episode is under way until :meth:`start`.

    Args:
        env: Such an env.

    Raises:
        ValueError: If its autoreset mode is another, or it has less than two players.
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
        """What each player sees, leading axes (N, P); None behind a step or a reset that raised."""
        self.active: BoolArray = np.zeros((self.num_envs, self.num_players), dtype=bool)
        """Who acts next, shape (N, P)."""
        self.seat = np.tile(np.arange(self.num_players), (self.num_envs, 1))
        """Where each player sits, shape (N, P)."""
        self.stop()

    @property
    def is_playing(self) -> BoolArray:
        """In which envs an episode is under way, shape (N,)."""
        return cast(BoolArray, self.active.any(1))

    def stop(self, mask: BoolArray | None = None) -> None:
        """End episodes where they are.

        Args:
            mask: In which envs, shape (N,); None means all.
        """
        chosen = np.ones(self.num_envs, dtype=bool) if mask is None else mask
        self._reset({"reset_mask": np.zeros(self.num_envs, dtype=bool), "stop_mask": chosen})

    def start(
        self, mask: BoolArray, seed: list[int | None] | None = None, episode: NDArray[np.int64] | None = None
    ) -> None:
        """Begin episodes.

        Args:
            mask: In which envs, shape (N,).
            seed: One for each env, N of them; None where the env goes on with its stream.
            episode: Numbers of the episodes, shape (N,), which may decide the seats; None lets the env count.

        Raises:
            RuntimeError: If nobody is active in a game that just began.
            ValueError: If an observation is not finite; the message names env and player.
        """
        options = {"reset_mask": mask} if episode is None else {"reset_mask": mask, "episode": episode}
        self._reset(options, seed)
        if not self.is_playing[mask].all():
            raise RuntimeError(f"env {np.flatnonzero(mask & ~self.is_playing)[0]} has no active player after a reset")

    def step(self, action: NDArray[Any]) -> BattleStep:
        """Step the envs in which an episode is under way.

        Args:
            action: Leading axes (N, P); only those of active players count.

        Raises:
            ValueError: If a reward or an observation is not finite; the message names env and player.
        """
        was_playing, self.obs = self.is_playing, None
        obs, reward, terminated, truncated, info = self.env.step(action)
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
        wrong = wrong[envs[wrong[:, 0]]]  # one that was stopped for it may still show what it showed then
        if len(wrong):
            env_id, player = wrong[0, :2]
            value = leaf[env_id, player]
            raise ValueError(f"env {env_id}, player {player}: the {what} is {what_is_wrong(value)}: {value}")
