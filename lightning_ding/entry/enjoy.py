"""The command ``enjoy``: watch a trained policy in a window, or write a video of it.

    lightning-ding enjoy runs/dqn/version_0/checkpoints/best.ckpt
    lightning-ding enjoy best.ckpt --video cartpole.mp4 --episodes 3
    lightning-ding enjoy best.ckpt --video cartpole.gif --stochastic
    lightning-ding enjoy zoo:ppo_hopper --video hopper.webp --width 200 --fps 20 --seconds 5

A video ends in .mp4, .gif or .webp, and needs the extra ``video``. Of several episodes, each has its number in the name
of its file. ``--width``, ``--fps`` and ``--seconds`` make small files, such as those of a web page. The env is that of
the run's evaluations. A native vector env cannot be shown; ``--env_id`` names a single env to play instead. Of a
scenario of VMAS, one env is made and shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.entry.lightning_cli import in_one_line
from lightning_ding.entry.trained import TENSOR, EnvOfRun, as_single, command_parser, env_of_run, load
from lightning_ding.envs.checks import EnvMaker
from lightning_ding.envs.named import EnvLike, find_env, find_wrappers
from lightning_ding.envs.vector import make_vector_env
from lightning_ding.policy import Policy
from lightning_ding.registry import import_modules
from lightning_ding.worker.evaluator.video import (
    CannotDrawError,
    choose_mujoco_gl,
    explaining_gl,
    gif,
    import_extra,
    mp4,
    webp,
)

SUFFIXES = (".mp4", ".gif", ".webp")
CAMERA = frozenset({"camera_id", "camera_name", "default_camera_config"})
"""Arguments of gymnasium's robots that choose a camera."""
WINDOW_PACKAGES = ("pygame", "glfw", "pyglet", "OpenGL")
"""Packages with which envs open windows."""


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or checkpoint."""
    parser = command_parser("enjoy", __doc__)
    parser.add_argument("--episodes", type=int, default=1, help="whole episodes to play")
    parser.add_argument("--video", help="write a video to this path, .mp4, .gif or .webp, in place of a window")
    parser.add_argument("--width", type=int, help="pixels of the video's width (default: that of the env's frames)")
    parser.add_argument("--fps", type=float, help="frames per second of the video (default: those of the env)")
    parser.add_argument("--seconds", type=float, help="longest video; the episode is played to its end")
    parser.add_argument("--stochastic", action="store_true", help="explore as in training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes and of the exploration")
    options = parser.parse_args(list(arguments)[1:])
    for number, (value, file) in enumerate(in_one_line(lambda: enjoy(**vars(options)), (CannotDrawError,))):
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
    width: int | None = None,
    fps: float | None = None,
    seconds: float | None = None,
) -> list[tuple[float, Path | None]]:
    """Play whole episodes with the policy of a checkpoint, in a window or for a video.

    Args:
        ckpt: Checkpoint of a run, a safetensors file of a policy, or a policy that was trained in this program.
        episodes: Number of episodes, >= 1.
        video: Path of a video, which ends in .mp4, .gif or .webp; None shows a window.
        stochastic: Explore as in training; otherwise act as in evaluations.
        seed: Seed of the episodes and of the exploration, >= 0.
        env_id: Env to play, a name or also a class or function; None means that of the run's evaluations.
        policy: Name or dotted path of the policy; None reads it from the checkpoint.
        import_names: Modules to import first, which register the policy, its network or its encoder, or have the env
            and the wrappers of the run.
        shown: Whether there is a window without a video.
        width: Width of the video in pixels, >= 1, with the height in proportion; None means that of the env's frames.
        fps: Frames per second of the video, above 0 and at most the env's. The video has the speed of the env: with
            fewer frames, the others are not drawn. None means those of the env.
        seconds: Longest video, > 0. The episode is still played to its end, and the return is that of all of it. None
            means the whole episode.

    Returns:
        The return of each episode, and the path of its video.

    Raises:
        ValueError: If an argument is out of its range, the checkpoint names no policy or no env, the policy does not
            fit the env, or the env cannot be shown like this.
        ImportError: If the extra ``video`` is needed and not installed.
        CannotDrawError: If MuJoCo cannot draw; the message names ``MUJOCO_GL``.
    """
    require(episodes >= 1, "episodes", ">= 1", episodes)
    require(seed >= 0, "seed", ">= 0", seed)
    _prepare_video(video, width=width, fps=fps, seconds=seconds)
    loaded = load(ckpt, policy, import_names)
    described = as_single(env_of_run(loaded.trained_in, env_id, evaluation=True, trusted=import_names))
    env = make_env(described, "rgb_array" if video is not None else "human" if shown else None)
    try:
        loaded.build(env.observation_space, env.action_space)
        loaded.seed(np.random.SeedSequence([seed, 1]))
        if video is None:
            return [(play(loaded, env, stochastic, seed + number), None) for number in range(episodes)]
        film = Film(env, width, fps, seconds)
        return _record(loaded, film, stochastic, seed, named(Path(video), episodes))
    finally:
        env.close()


def _prepare_video(video: str | None, **options: float | None) -> None:
    """Check the path of a video, and that the options of one are given with one only."""
    for name, value in options.items():
        require(value is None or video is not None, name, "left out without a video", value)
    if video is None:
        return
    require(
        video.endswith(SUFFIXES), "video", f"a path that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", video
    )
    import_extra("moviepy" if video.endswith(".mp4") else "PIL.Image")
    choose_mujoco_gl()


def make_env(described: EnvOfRun, render_mode: str | None) -> gym.Env[Any, Any]:
    """Return one env of a run that renders itself; None for one that does not.

    Raises:
        ValueError: If it does not have the render mode.
    """
    import_modules(described.import_names)
    if described.mode == TENSOR:
        made: dict[str, Any] = {"wrappers": described.wrappers, "env_kwargs": described.env_kwargs}
        return OneOfBatch(make_vector_env(described.env, 1, TENSOR, **made), render_mode)
    found = find_env(described.env)
    kwargs = {**described.env_kwargs, **({} if render_mode is None else {"render_mode": render_mode})}
    if render_mode == "rgb_array":
        kwargs = {**camera_of(found, kwargs), **kwargs}
    env: gym.Env[Any, Any] = EnvMaker(found, find_wrappers(described.wrappers), kwargs)()
    if render_mode not in (None, env.render_mode):
        known = env.metadata.get("render_modes")
        env.close()
        raise ValueError(f"the env must have the render mode {render_mode!r}, but {described.env!r} has {known}")
    return env


def camera_of(env: Any, env_kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Return the argument with which the camera follows a robot of gymnasium, unless the run has chosen a camera.

    The default of gymnasium 1.4 is a camera that stays where it is, so that a robot which runs leaves the picture.

    Example:
        >>> camera_of("HalfCheetah-v5", {}), camera_of("HalfCheetah-v5", {"camera_id": 0}), camera_of("CartPole-v1", {})
        ({'camera_name': 'track'}, {}, {})
    """
    spec = gym.registry.get(env) if isinstance(env, str) else None
    is_robot = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco.")
    return {"camera_name": "track"} if is_robot and not CAMERA & env_kwargs.keys() else {}


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
    policy: Policy[Any], film: Film, stochastic: bool, seed: int, files: list[Path]
) -> list[tuple[float, Path | None]]:
    """Play an episode for each file and write its video there."""
    files[0].parent.mkdir(parents=True, exist_ok=True)
    returns = []
    for number, file in enumerate(files):
        returns.append(play(policy, film, stochastic, seed + number))
        film.write(file)
    return list(zip(returns, files, strict=True))


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


class Film(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps frames of an episode for a video that has the speed of the env.

    Args:
        env: Env with the render mode ``rgb_array``.
        width: Width of the video in pixels, >= 1, with the height in proportion; None keeps the size of the frames.
        fps: Frames per second of the video, above 0 and at most the env's; None means those of the env.
        seconds: Length of the video at most, > 0; None means that of the episode.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        width: int | None = None,
        fps: float | None = None,
        seconds: float | None = None,
    ) -> None:
        super().__init__(env)
        self._env_fps = float(env.metadata.get("render_fps", 30))
        allowed = f"above 0 and at most the {self._env_fps:g} of the env"
        require(width is None or width >= 1, "width", ">= 1", width)
        require(fps is None or 0 < fps <= self._env_fps, "fps", allowed, fps)
        require(seconds is None or seconds > 0, "seconds", "> 0", seconds)
        self.fps = self._env_fps if fps is None else fps
        self._width, self._seconds = width, seconds
        self._step, self._frames = 0, list[NDArray[np.uint8]]()

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode and a new video."""
        result = super().reset(**kwargs)
        self._step, self._frames = 0, []
        self._keep()
        return result

    def step(self, action: Any) -> Any:
        """Step the env."""
        result = super().step(action)
        self._step += 1
        self._keep()
        return result

    def _keep(self) -> None:
        """Draw the env if it has reached the time of the video's next frame."""
        number = len(self._frames)
        is_whole = self._seconds is not None and number >= self._seconds * self.fps
        if not is_whole and self._step * self.fps >= number * self._env_fps:
            with explaining_gl("the env"):
                self._frames.append(resized(np.asarray(self.env.render()), self._width))

    def write(self, file: Path) -> None:
        """Write the video of the last episode to a file, in the format of its suffix."""
        video = np.stack(self._frames).transpose(0, 3, 1, 2)
        if file.suffix == ".mp4":
            mp4(video, self.fps, file)
        else:
            file.write_bytes((gif if file.suffix == ".gif" else webp)(video, self.fps))


def resized(frame: NDArray[np.uint8], width: int | None) -> NDArray[np.uint8]:
    """Return a frame, shape (H, W, C), with another width and an even height, as many players need, in proportion."""
    if width is None:
        return frame
    image: Any = import_extra("PIL.Image")
    height = 2 * max(1, round(frame.shape[0] * width / frame.shape[1] / 2))
    return np.asarray(image.fromarray(frame).resize((width, height), image.Resampling.LANCZOS))
