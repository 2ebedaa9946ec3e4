"""An env that observes stacks of frames as Atari games do, and whose steps cost next to nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

EPISODES = 8  # episodes that are prepared; every env plays them in turn
STEPS = (90, 150)  # bounds of the length of an episode
ACTIONS = 6


class PreparedFrames(gym.Env[NDArray[np.uint8], np.int64]):
    """Shows stacks of prepared frames, oldest first; the first stack of an episode repeats its first frame.

    An observation is a view of consecutive frames, so neither stacking nor a step copies anything. The reward is 1 if
    the action is the parity of the step, so that there is something to learn.

    Args:
        shape: Frames of a stack, height and width.
        first: Number of the first episode.

    Example:
        >>> env = PreparedFrames((4, 84, 84))
        >>> env.reset()[0].shape
        (4, 84, 84)
    """

    def __init__(self, shape: tuple[int, int, int] = (4, 84, 84), first: int = 0) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(ACTIONS)
        self.stack, self.number, self.place = shape[0], first, 0
        self.episodes = prepared(shape)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed)
        self.frames = self.episodes[self.number % len(self.episodes)]
        self.number, self.place = self.number + 1, 0
        return self.frames[: self.stack], {}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Show the next frame."""
        reward = float(action == self.place % 2)
        self.place += 1
        end = self.place + self.stack
        return self.frames[self.place : end], reward, end == len(self.frames), False, {}


@functools.cache
def prepared(shape: tuple[int, int, int]) -> list[NDArray[np.uint8]]:
    """Return the frames of each episode, shape (S - 1 + T, H, W), where the first S are the same; read-only."""
    rng, (stack, *size) = np.random.default_rng(0), shape
    episodes = []
    for steps in rng.integers(*STEPS, size=EPISODES).tolist():
        frames = rng.integers(256, size=(stack + steps, *size), dtype=np.uint8)
        frames[:stack] = frames[0]
        frames.flags.writeable = False
        episodes.append(frames)
    return episodes


def makers(num_envs: int) -> list[Callable[[], PreparedFrames]]:
    """Return a function for each env that makes it; they begin with different episodes."""
    return [functools.partial(PreparedFrames, first=number) for number in range(num_envs)]
