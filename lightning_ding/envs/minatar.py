"""MinAtar's games: five Atari games on a board of 10 x 10, for which a small network is enough (extra ``minatar``).

Package and paper: Young and Tian 2019 (https://arxiv.org/abs/1903.03176).

Where this differs from the package's own env: the state can be saved, so that a resumed run continues exactly; an
episode does not begin with the last action of the one before; and images are rendered in bytes, which films need.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from lightning_ding.config import require

Board = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
Info = dict[str, Any]
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
CELL = 16  # pixels of a cell in a rendered image
COLOURS = np.array(
    [
        (0, 0, 0),  # an empty cell; the others are of the channels in turn
        (31, 119, 180),
        (255, 127, 14),
        (44, 160, 44),
        (214, 39, 40),
        (148, 103, 189),
        (140, 86, 75),
        (227, 119, 194),
        (127, 127, 127),
        (188, 189, 34),
        (23, 190, 207),
    ],
    dtype=np.uint8,
)


class MinAtarEnv(gym.Env[Board, np.int64]):
    """A game of MinAtar; observations are boards of shape (10, 10, channels), bool, with a channel for each object.

    Episodes end with the game; none is truncated, so that a limit needs the wrapper ``time_limit``.

    Args:
        game: One of ``"asterix"``, ``"breakout"``, ``"freeway"``, ``"seaquest"`` and ``"space_invaders"``.
        sticky_action_prob: Probability of repeating the previous action, in [0, 1].
        difficulty_ramping: Let games become more difficult over time, where they can.
        minimal_actions: Offer only the actions that the game distinguishes, instead of all six.
        render_mode: ``"rgb_array"`` for images of 160 x 160 pixels; None for no images.

    Raises:
        ImportError: If the extra ``minatar`` is not installed.
        ValueError: If an argument is out of its range.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as gymnasium has it

    def __init__(
        self,
        game: str = "breakout",
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        minimal_actions: bool = True,
        render_mode: str | None = None,
    ) -> None:
        require(game in GAMES, "game", f"one of {', '.join(GAMES)}", game)
        require(0 <= sticky_action_prob <= 1, "sticky_action_prob", "in [0, 1]", sticky_action_prob)
        require(render_mode in (None, "rgb_array"), "render_mode", "rgb_array or None", render_mode)
        try:
            from minatar import Environment
        except ImportError as error:
            needed = "MinAtarEnv needs the extra 'minatar': pip install 'lightning_ding[minatar]'"
            raise ImportError(f"{needed} ({error})") from error
        self.render_mode = render_mode
        self._game: Any = Environment(game, sticky_action_prob, difficulty_ramping)
        self._game.random = self._game.env.random  # as after seed(); one state to save
        every_action = range(self._game.num_actions())
        self._actions: list[int] = list(self._game.minimal_action_set() if minimal_actions else every_action)
        self.observation_space: Any = spaces.Box(0, 1, tuple(self._game.state_shape()), np.bool_)
        self.action_space: Any = spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Board, Info]:
        """Start a new game."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.last_action = 0
        self._game.reset()
        return self._board(), {}

    def step(self, action: np.int64) -> tuple[Board, float, bool, bool, Info]:
        """Play a frame."""
        reward, terminated = self._game.act(self._actions[action])
        return self._board(), float(reward), bool(terminated), False, {}

    def render(self) -> Pixels | None:
        """Return an image of shape (160, 160, 3), uint8, in the mode ``rgb_array``."""
        if self.render_mode is None:
            return None
        board = self._board()
        highest = (board * np.arange(1, board.shape[2] + 1)).max(2)
        return cast(Pixels, COLOURS[highest].repeat(CELL, 0).repeat(CELL, 1))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the game and of its random numbers."""
        board = {name: value for name, value in vars(self._game.env).items() if name != "random"}
        return {"board": board, "last_action": self._game.last_action, "random": self._game.env.random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        vars(self._game.env).update(state["board"])
        self._game.last_action = state["last_action"]
        self._game.random = self._game.env.random = state["random"]

    def _board(self) -> Board:
        return cast(Board, self._game.state())
