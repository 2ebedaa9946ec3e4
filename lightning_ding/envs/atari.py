"""Atari games with the usual preprocessing for training and evaluation (extra ``atari``).

All envs have the preprocessing of Machado et al. 2018 (https://arxiv.org/abs/1709.06009) and Mnih et al. 2015: up to 30
no-ops at the start, 4 frames for each action with the maximum of the last two, grey-scale images of 84 x 84 pixels,
stacks of 4 images, and FIRE at the start of a life in games that wait for it. For training, an episode ends with each
life and rewards are clipped to their sign; the returns in logs are those of the raw rewards. Evaluation plays complete
games and counts the raw score.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.wrappers import AtariPreprocessing

from lightning_ding.envs.rewards import sign_reward

Info = dict[str, Any]
FIRE = 1


def make_atari(
    game: str,
    training: bool = True,
    repeat_action_probability: float = 0.25,
    frame_skip: int = 4,
    stack: int = 4,
    noop_max: int = 30,
    screen_size: int = 84,
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """Return an Atari env with observations of shape (stack, screen_size, screen_size), uint8.

    The env wraps ``ALE/<game>-v5`` with ``frameskip=1``, because the preprocessing repeats the action itself. Episodes
    are limited to 108,000 frames (30 minutes), as in v5.

    Args:
        game: Name of the game as in ale-py, such as ``"Pong"``, or the complete id, such as ``"ALE/Pong-v5"`` or
            ``"PongNoFrameskip-v4"``; the other arguments have priority over those of the id.
        training: End an episode with each lost life, and clip rewards to -1, 0 or 1.
        repeat_action_probability: Probability of repeating the previous action for a frame ("sticky actions"), in
            [0, 1]. 0.25 is the value of v5 and of Machado et al., 0 that of Mnih et al. (v4).
        frame_skip: Number of frames for each action, >= 1.
        stack: Number of images in an observation, >= 1.
        noop_max: Maximum number of no-ops at the start of a game, >= 0.
        screen_size: Height and width of the images in pixels, >= 1.
        kwargs: Further arguments of the env, such as ``render_mode``, ``full_action_space``, ``mode``, ``difficulty``.

    Raises:
        ImportError: If the extra ``atari`` is not installed.

    Example:
        >>> from lightning_ding.datamodules import ReplayDataModule
        >>> data = ReplayDataModule(
        ...     make_atari, env_kwargs={"game": "Pong"}, eval_env_kwargs={"game": "Pong", "training": False}
        ... )
    """
    try:
        import ale_py
        import cv2  # noqa: F401  # gymnasium's preprocessing needs it
    except ImportError as error:
        needed = "make_atari needs the extra 'atari': pip install 'lightning_ding[atari]'"
        raise ImportError(f"{needed} ({error})") from error
    gym.register_envs(ale_py)
    env_id = game if "/" in game or game in gym.registry else f"ALE/{game}-v5"
    given = {"repeat_action_probability": repeat_action_probability, "frameskip": 1, **kwargs}
    env: gym.Env[Any, Any] = gym.make(env_id, **given)
    env = AtariPreprocessing(env, noop_max, frame_skip, screen_size)
    env = FireAtStart(EpisodicLife(env) if training else env)
    return FrameStackObservation(sign_reward(env) if training else env, stack)  # type: ignore[arg-type]


class FrameStackObservation(wrappers.FrameStackObservation[Any, Any, Any]):
    """Gymnasium's wrapper of this name, for envs that return the same array in every step.

    Gymnasium's keeps the returned arrays, so an env that writes its next image into the same memory fills the stack
    with the newest image.
    """

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the env, and keep a copy of its observation."""
        answer = super().step(action)
        self.obs_queue[-1] = copy.deepcopy(self.obs_queue[-1])
        return answer

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start an episode, and keep a copy of its observation."""
        answer = super().reset(seed=seed, options=options)
        self.obs_queue.extend(copy.deepcopy(list(self.obs_queue)))
        return answer


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the next episode continues the game, which restarts only when it is over.

    With ``AtariPreprocessing(terminal_on_life_loss=True)`` the game would restart after each life, and the agent would
    only ever play first lives.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives = 0
        self._is_over = True

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Start a new game if the last one is over or a seed is given; otherwise take a no-op in the next life."""
        if self._is_over or seed is not None:
            obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._lives, self._is_over = int(info["lives"]), False
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step the game, and end the episode if a life was lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._is_over = terminated or truncated
        is_lost, self._lives = info["lives"] < self._lives, int(info["lives"])
        return obs, reward, terminated or is_lost, truncated, info


class FireAtStart(gym.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE at the start of each life, in games that wait for it.

    Evaluation needs this too: an agent never learns to press FIRE if training does it, and would wait until the episode
    is truncated.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        unwrapped: Any = env.unwrapped
        self._waits = unwrapped.get_action_meanings()[FIRE : FIRE + 1] == ["FIRE"]
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset, and press FIRE if the game waits for it."""
        obs, info = self.env.reset(seed=seed, options=options)
        if self._waits:
            obs, _, terminated, truncated, info = self.env.step(FIRE)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._lives = int(info["lives"])
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Step, and press FIRE if a life was lost within the episode; the rewards of both steps are added."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        is_lost, self._lives = info["lives"] < self._lives, int(info["lives"])
        if self._waits and is_lost and not (terminated or truncated):
            obs, more, terminated, truncated, info = self.env.step(FIRE)
            reward = float(reward) + float(more)
        return obs, reward, terminated, truncated, info
