"""The command ``enjoy``: watch a trained policy in a window, or write a video of it.

    lightning-ding enjoy runs/dqn/version_0/checkpoints/best.ckpt
    lightning-ding enjoy best.ckpt --video cartpole.mp4 --episodes 3
    lightning-ding enjoy best.ckpt --video cartpole.gif --stochastic

A video ends in .mp4 (gymnasium's RecordVideo, extra ``video``) or .gif. Of several episodes, each has its number in the
name of its file. The env is that of the run's evaluations. A native vector env cannot be shown; ``--env_id`` names a
single env to play instead. Of a scenario of VMAS, one env is made and shown.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordVideo

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.entry.lightning_cli import in_one_line
from lightning_ding.entry.trained import TENSOR, EnvOfRun, as_single, command_parser, env_of_run, load
from lightning_ding.envs.checks import EnvMaker
from lightning_ding.envs.named import EnvLike, find_env, find_wrappers
from lightning_ding.envs.vector import make_vector_env
from lightning_ding.policy import Policy
from lightning_ding.registry import import_modules
from lightning_ding.worker.evaluator.video import gif, import_extra

SUFFIXES = (".mp4", ".gif")
WINDOW_PACKAGES = ("pygame", "glfw", "pyglet", "OpenGL")
"""Packages with which envs open windows."""


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or checkpoint."""
    parser = command_parser("enjoy", __doc__)
    parser.add_argument("--episodes", type=int, default=1, help="whole episodes to play")
    parser.add_argument("--video", help="write a video to this path, .mp4 or .gif, in place of a window")
    parser.add_argument("--stochastic", action="store_true", help="explore as in training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes and of the exploration")
    options = parser.parse_args(list(arguments)[1:])
    for number, (value, file) in enumerate(in_one_line(lambda: enjoy(**vars(options)))):
        print(f"episode {number}: return {value:.2f}" + (f", written: {file}" if file else ""))


def enjoy(
    ckpt: str | Path | Policy[Any],
    episodes: int = 1,
    video: str | None = None,
    stochastic: bool = False,
    seed: int = 0,
    env_id: EnvLike | None = None,
    policy: str | None = None,
    import_names: Sequence[str] = (),
    shown: bool = True,
) -> list[tuple[float, Path | None]]:
    """Play whole episodes with the policy of a checkpoint, in a window or for a video.

    Args:
        ckpt: Checkpoint of a run, a safetensors file of a policy, or a policy that was trained in this program.
        episodes: Number of episodes, >= 1.
        video: Path of a video, which ends in .mp4 or .gif; None shows a window.
        stochastic: Explore as in training; otherwise act as in evaluations.
        seed: Seed of the episodes and of the exploration, >= 0.
        env_id: Env to play, a name or also a class or function; None means that of the run's evaluations.
        policy: Name or dotted path of the policy; None reads it from the checkpoint.
        import_names: Modules to import first, which register the policy, its network or its encoder, or have the env
            and the wrappers of the run.
        shown: Whether there is a window without a video.

    Returns:
        The return of each episode, and the path of its video.

    Raises:
        ValueError: If an argument is out of its range, the checkpoint names no policy or no env, the policy does not
            fit the env, or the env cannot be shown like this.
        ImportError: If the extra ``video`` is needed and not installed.
    """
    require(episodes >= 1, "episodes", ">= 1", episodes)
    require(seed >= 0, "seed", ">= 0", seed)
    require(video is None or video.endswith(SUFFIXES), "video", f"a path that ends in {' or '.join(SUFFIXES)}", video)
    if video is not None:
        import_extra("moviepy" if video.endswith(".mp4") else "PIL.Image")
    loaded = load(ckpt, policy, import_names)
    described = as_single(env_of_run(loaded.trained_in, env_id, evaluation=True, trusted=import_names))
    env = make_env(described, "rgb_array" if video is not None else "human" if shown else None)
    try:
        loaded.build(env.observation_space, env.action_space)
        loaded.seed(np.random.SeedSequence([seed, 1]))
        if video is None:
            return [(play(loaded, env, stochastic, seed + number), None) for number in range(episodes)]
        return _record(loaded, env, stochastic, seed, named(Path(video), episodes))
    finally:
        env.close()


def make_env(described: EnvOfRun, render_mode: str | None) -> gym.Env[Any, Any]:
    """Return one env of a run that renders itself; None for one that does not.

    Raises:
        ValueError: If it does not have the render mode.
    """
    import_modules(described.import_names)
    if described.mode == TENSOR:
        made: dict[str, Any] = {"wrappers": described.wrappers, "env_kwargs": described.env_kwargs}
        return OneOfBatch(make_vector_env(described.env, 1, TENSOR, **made), render_mode)
    kwargs = {**described.env_kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    env: gym.Env[Any, Any] = EnvMaker(find_env(described.env), find_wrappers(described.wrappers), kwargs)()
    if render_mode not in (None, env.render_mode):
        known = env.metadata.get("render_modes")
        env.close()
        raise ValueError(f"the env must have the render mode {render_mode!r}, but {described.env!r} has {known}")
    return env


def play(policy: Policy[Any], env: gym.Env[Any, Any], stochastic: bool, seed: int) -> float:
    """Play an episode and return its return.

    Raises:
        ValueError: If there is no screen for the window.
    """
    actor, acts_on_reward = policy.actor(deterministic=not stochastic), policy.acts_on_reward
    total, reward, is_over = 0.0, None, False
    try:
        obs, _ = env.reset(seed=seed)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in WINDOW_PACKAGES:
            raise
        raise ValueError(f"a window needs a screen: {error}; use --video FILE.mp4 without one") from error
    while not is_over:
        action = actor(obs, reward) if acts_on_reward else actor(obs)
        obs, step_reward, terminated, truncated, _ = env.step(action)
        reward = float(step_reward)
        total += reward
        is_over = bool(terminated or truncated)
    return total


def named(file: Path, episodes: int) -> list[Path]:
    """Return the path of each episode's video.

    Example:
        >>> [str(path) for path in named(Path("a.mp4"), 2)]
        ['a-0.mp4', 'a-1.mp4']
    """
    return [file] if episodes == 1 else [file.with_stem(f"{file.stem}-{number}") for number in range(episodes)]


def _record(
    policy: Policy[Any], env: gym.Env[Any, Any], stochastic: bool, seed: int, files: list[Path]
) -> list[tuple[float, Path | None]]:
    """Play an episode for each file and write its video there."""
    files[0].parent.mkdir(parents=True, exist_ok=True)
    if files[0].suffix == ".gif":
        return [_write_gif(policy, env, stochastic, seed + number, file) for number, file in enumerate(files)]
    with tempfile.TemporaryDirectory(dir=files[0].parent) as folder:
        options: dict[str, Any] = {"episode_trigger": lambda _: True, "name_prefix": "x", "disable_logger": True}
        recorder: gym.Env[Any, Any] = RecordVideo(env, f"{folder}/new", **options)
        returns = [play(policy, recorder, stochastic, seed + number) for number in range(len(files))]
        recorder.close()  # writes the last one
        for number, file in enumerate(files):
            os.replace(Path(folder) / "new" / f"x-episode-{number}.mp4", file)
    return list(zip(returns, files, strict=True))


def _write_gif(
    policy: Policy[Any], env: gym.Env[Any, Any], stochastic: bool, seed: int, file: Path
) -> tuple[float, Path | None]:
    frames = _Frames(env)
    total = play(policy, frames, stochastic, seed)
    video = np.stack(frames.frames).transpose(0, 3, 1, 2)
    file.write_bytes(gif(video, float(env.metadata.get("render_fps", 30))))
    return total, file


class OneOfBatch(gym.Env[Any, Any]):
    """The only env of a vector env with ``render(mode)``, which is reset by the caller alone.

    Args:
        batch: The vector env, of one env.
        render_mode: ``"rgb_array"``; ``"human"`` shows each step in a window; None shows nothing.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, batch: Any, render_mode: str | None) -> None:
        self.batch, self.render_mode = batch, render_mode
        self.observation_space, self.action_space = batch.single_observation_space, batch.single_action_space
        self._is_over, self._image = False, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._is_over = False
        return self._shown(self.batch.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env; an episode that ended has its last observation."""
        obs, reward, terminated, truncated, info = self.batch.step(np.asarray(action)[None])
        self._is_over = bool(terminated[0] or truncated[0])
        last = info["final_obs"] if self._is_over else obs
        return self._shown(last), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def _shown(self, obs: Any) -> Any:
        if self.render_mode == "human":
            self.render()
        return nested.apply(lambda x: x[0], obs)

    def render(self) -> Any:
        """Return the image of the env, or show it; after the last step the image before it, as a new episode began."""
        if not self._is_over:
            self._image = self.batch.call("render", self.render_mode)[0]
        return self._image

    def close(self) -> None:
        """Close the vector env."""
        self.batch.close()


class _Frames(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the frame of each observation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.frames: list[Any] = []

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        result = super().reset(**kwargs)
        self.frames.append(self.env.render())
        return result

    def step(self, action: Any) -> Any:
        """Step the env."""
        result = super().step(action)
        self.frames.append(self.env.render())
        return result
