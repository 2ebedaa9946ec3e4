"""Videos and figures of evaluations: drawing their frames, and making animations and figures of them.

Shapes: V videos, T frames, C channels, H height, W width.
"""

from __future__ import annotations

import ctypes.util
import importlib
import io
import logging
import math
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import require

logger = logging.getLogger(__name__)

MUJOCO_GL = "MUJOCO_GL"
"""Environment variable that names what MuJoCo draws with: glfw, egl or osmesa."""
OPENGL = re.compile(r"opengl|mujoco|mjr_|glfw|egl|osmesa|glGetError", re.IGNORECASE)
"""Words in the errors of MuJoCo and of gymnasium's MuJoCo envs when they have no way to draw."""
SLOW = 0.1  # seconds for a frame
FIRST_FRAMES = 10  # frames after which the speed is judged
MAX_SIDE = 320
"""Pixels of a frame's longer side; larger frames are shrunk by a whole factor."""
MAX_FRAMES = 300
"""Maximum number of frames of a video; of longer videos every n-th frame is kept, so they run faster."""
MAX_GIF_FPS = 50
"""Maximum frames per second of a GIF; many viewers play frames of less than 20 ms at 100 ms each."""
WEBP_QUALITY = 60
"""Quality of the frames of a WebP, in [0, 100]."""
WEBP_EFFORT = 6
"""Effort of the compression, in [0, 6]: 6 makes the smallest files."""


def check_can_render(env: VectorEnv) -> None:
    """Raise if the envs were not made to give frames.

    Raises:
        ValueError: If their render mode is not "rgb_array".
    """
    if env.render_mode != "rgb_array":
        raise ValueError(
            'a video needs envs made with render_mode="rgb_array" (in a datamodule: '
            f'env_kwargs={{"render_mode": "rgb_array"}}), got render_mode={env.render_mode!r}'
        )


def write_video(writer: Any, tag: str, video: NDArray[np.uint8], step: int, fps: float) -> None:
    """Write videos side by side as one animation.

    A ``SummaryWriter`` of PyTorch gets a GIF made here, because its own ``add_video`` takes eleven times the memory of
    the videos and does not work with moviepy 2. Any other writer's ``add_video(tag, video, step, fps=fps)`` is called.

    Args:
        writer: A ``SummaryWriter``, or an object with its ``add_video``.
        tag: Name of the animation.
        video: Videos, shape (V, T, C, H, W).
        step: Position on the x axis.
        fps: Frames per second.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    from torch.utils.tensorboard import SummaryWriter

    if not isinstance(writer, SummaryWriter):
        writer.add_video(tag, video, step, fps=fps)
        return
    from tensorboard.compat.proto.summary_pb2 import Summary

    side_by_side = np.concatenate(list(video), axis=-1)
    _, channels, height, width = side_by_side.shape
    image = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=gif(side_by_side, fps))
    file_writer: Any = writer.file_writer
    file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)


def gif(video: NDArray[np.uint8], fps: float) -> bytes:
    """Return a video, shape (T, C, H, W) with C 1, 3 or 4, as an animated GIF that repeats.

    A frame of a GIF lasts a whole number of hundredths of a second. Above ``MAX_GIF_FPS`` only every n-th frame is
    written, so that the video keeps its speed, apart from rounding.

    Args:
        video: The video.
        fps: Frames per second of the video, > 0.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    step = max(1, math.ceil(fps / MAX_GIF_FPS))
    return _animation(video[::step], "GIF", duration=round(100 * step / fps) * 10)  # Pillow would round down


def webp(video: NDArray[np.uint8], fps: float) -> bytes:
    """Return a video, shape (T, C, H, W) with C 1, 3 or 4, as an animated WebP that repeats.

    Args:
        video: The video.
        fps: Frames per second of the video, > 0; a frame lasts a whole number of milliseconds.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    return _animation(video, "WEBP", duration=max(1, round(1000 / fps)), quality=WEBP_QUALITY, method=WEBP_EFFORT)


def _animation(video: NDArray[np.uint8], kind: str, **options: int) -> bytes:
    """Return a video in a format of Pillow; ``duration`` is that of a frame in milliseconds."""
    image = import_extra("PIL.Image")
    pixels = video[:, 0] if video.shape[1] == 1 else video.transpose(0, 2, 3, 1)  # Pillow wants grey as (H, W)
    images = (image.fromarray(np.ascontiguousarray(frame)) for frame in pixels)
    file = io.BytesIO()
    next(images).save(file, format=kind, save_all=True, append_images=images, loop=0, **options)
    return file.getvalue()


def mp4(video: NDArray[np.uint8], fps: float, path: Path) -> None:
    """Write a video, shape (T, C, H, W) with C 3, as an MP4 file.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    clip = import_extra("moviepy.video.io.ImageSequenceClip").ImageSequenceClip
    clip(list(video.transpose(0, 2, 3, 1)), fps=fps).write_videofile(str(path), logger=None)


def shrunk(frame: NDArray[Any]) -> NDArray[Any]:
    """Return a smaller frame of the means of square blocks, so that thin lines stay visible."""
    size = -(-max(frame.shape[:2]) // MAX_SIDE)
    if size == 1 or frame.ndim != 3 or frame.dtype != np.uint8:  # the monitor refuses these frames
        return frame
    height, width, channels = frame.shape
    whole = np.pad(frame, ((0, -height % size), (0, -width % size), (0, 0)), mode="edge")
    blocks = whole.reshape(-1, size, whole.shape[1] // size, size, channels)
    return np.asarray(blocks.sum(axis=(1, 3), dtype=np.uint32) // size**2, dtype=np.uint8)


class EpisodeVideo:
    """Frames of one shape, compressed without loss, which takes a tenth of the time of drawing them.

    Example:
        >>> video = EpisodeVideo()
        >>> video.append(np.zeros((2, 3, 1), dtype=np.uint8))
        >>> video.frames(stride=1, length=4).shape
        (4, 1, 2, 3)
    """

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._frames: list[bytes] = []

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: Any) -> None:
        """Keep a frame, uint8 of shape (H, W, C).

        Raises:
            ValueError: If the frame is not an image, or its shape differs from that of the first frame.
        """
        is_image = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3
        got = (str(frame.dtype), frame.shape) if isinstance(frame, np.ndarray) else type(frame).__name__
        require(is_image, "frame", "a uint8 array of shape (H, W, C)", got)
        require(not self._frames or frame.shape == self._shape, "frame", f"of shape {self._shape}", frame.shape)
        self._shape = frame.shape
        self._frames.append(zlib.compress(np.ascontiguousarray(frame).data, level=1))

    def frames(self, stride: int, length: int) -> NDArray[np.uint8]:
        """Return every ``stride``-th frame, padded with the last of them to ``length``, shape (length, C, H, W).

        Raises:
            IndexError: If there are no frames.
        """
        kept = self._frames[::stride]
        kept += [kept[-1]] * (length - len(kept))
        height, width, channels = self._shape
        video = np.empty((length, channels, height, width), dtype=np.uint8)
        for number, frame in enumerate(kept):
            video[number] = np.frombuffer(zlib.decompress(frame), np.uint8).reshape(self._shape).transpose(2, 0, 1)
        return video


def returns_figure(returns: Sequence[float], title: str) -> Any:
    """Return a matplotlib ``Figure`` with a bar for each episode and a line at their mean; pyplot is not used.

    Args:
        returns: Returns in the order of the episodes.
        title: Title of the figure.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    figure = import_extra("matplotlib.figure").Figure(figsize=(6, 4), layout="constrained")
    mean = sum(returns) / len(returns)
    axes = figure.add_subplot()
    axes.bar(range(len(returns)), returns)
    axes.axhline(mean, color="black", linestyle="--", label=f"mean {mean:.6g}")
    axes.set(title=title, xlabel="episode", ylabel="return")
    axes.legend()
    return figure


def import_extra(module: str) -> Any:
    """Return a module of the extra ``video``.

    Raises:
        ImportError: If the extra is not installed; the message explains how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}: pip install 'lightning_ding[video]'") from error


@runtime_checkable
class RendersOne(Protocol):
    """A vector env that can draw one of its envs."""

    def render_one(self, env_id: int) -> Any:
        """Return the frame of one env."""
        ...


class FrameSource:
    """Draws envs of a vector env, and logs once if that is slow.

    Args:
        env: The vector env, with the render mode ``rgb_array``.
        is_cancelled: Function that returns whether no more frames are needed.
    """

    def __init__(self, env: VectorEnv, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._env = env
        self._is_cancelled = is_cancelled
        self._frames, self._seconds = 0, 0.0

    def draw(self, env_ids: Sequence[int]) -> dict[int, NDArray[np.uint8]]:
        """Return the frame of each of some envs, no side longer than ``MAX_SIDE``, shape (H, W, C).

        Returns:
            Frames by the index of the env; some are missing if the evaluation was cancelled.

        Raises:
            CannotDrawError: If MuJoCo cannot draw; the message names ``MUJOCO_GL``.
            ValueError: If an env gives no frame.
        """
        if not env_ids:
            return {}
        began = time.monotonic()
        with explaining_gl("the evaluation envs"):
            core: Any = self._env.unwrapped
            if isinstance(core, SyncVectorEnv):
                frames: dict[int, Any] = {i: core.envs[i].render() for i in env_ids if not self._is_cancelled()}
            elif isinstance(core, RendersOne) and len(env_ids) == 1:
                frames = {i: core.render_one(i) for i in env_ids}
            else:
                all_frames: Any = self._env.render()
                frames = {i: None if all_frames is None else all_frames[i] for i in env_ids}
        self._note(len(frames), time.monotonic() - began)
        if any(not isinstance(frame, np.ndarray) for frame in frames.values()):
            got = [type(frame).__name__ for frame in frames.values()]
            raise ValueError(f'the envs with render_mode="rgb_array" must render an array each, got {got}')
        return {env_id: shrunk(frame) for env_id, frame in frames.items()}

    def _note(self, frames: int, seconds: float) -> None:
        before, self._frames, self._seconds = self._frames, self._frames + frames, self._seconds + seconds
        if before < FIRST_FRAMES <= self._frames and self._seconds > SLOW * self._frames:
            text = "the videos of evaluations are slow: a frame takes %.2f s; a larger render_freq makes fewer%s"
            logger.warning(text, self._seconds / self._frames, f"; {_gl_text()}" if "mujoco" in sys.modules else "")


class CannotDrawError(RuntimeError):
    """An env of MuJoCo has no way to draw on this machine."""


@contextmanager
def explaining_gl(envs: str) -> Iterator[None]:
    """Explain ``MUJOCO_GL`` in errors of an env of MuJoCo that cannot draw.

    Args:
        envs: The envs, as the subject of the message.

    Raises:
        CannotDrawError: In place of an error of MuJoCo or OpenGL.
    """
    try:
        yield
    except Exception as error:
        if OPENGL.search(f"{type(error).__module__} {error}") is None:
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise CannotDrawError(f"{envs} cannot draw a video: {first}; {_gl_text()}") from error


def _gl_text() -> str:
    now = os.environ.get(MUJOCO_GL)
    return (
        f"{MUJOCO_GL} is {'not set' if now is None else repr(now)}; set before Python starts, egl needs no display "
        "and is fast with a GPU, osmesa (package libosmesa6) draws on the CPU, and glfw needs a display"
    )


def choose_mujoco_gl() -> None:
    """Let MuJoCo draw without a display where there is none and ``MUJOCO_GL`` is not set.

    MuJoCo's default is glfw, which fails without a display. It reads the variable when it first draws, in this process
    and in env processes that start later.
    """
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if MUJOCO_GL in os.environ or has_display or sys.platform != "linux":
        return
    choices = {"egl": "EGL", "osmesa": "OSMesa"}
    found = next((name for name, library in choices.items() if ctypes.util.find_library(library)), None)
    if found is not None:
        os.environ[MUJOCO_GL] = found
        logger.info("%s=%s, because there is no display", MUJOCO_GL, found)
