"""Videos and figures of evaluations: their frames, and how animations and figures are made of them.

Shapes: V videos, T frames, C channels, H height, W width.
"""

from __future__ import annotations

import importlib
import io
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.config import require

MAX_SIDE = 320
"""Pixels of a frame's longer side; larger frames are shrunk by a whole factor."""
MAX_FRAMES = 300
"""Maximum number of frames of a video; of longer videos every n-th frame is kept, so they run faster."""
MAX_GIF_FPS = 50
"""Maximum frames per second of a GIF; many viewers play frames of less than 20 ms at 100 ms each."""


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
    image = import_extra("PIL.Image")
    step = max(1, math.ceil(fps / MAX_GIF_FPS))
    duration = round(100 * step / fps) * 10  # milliseconds; Pillow would round down
    shown = video[::step]
    pixels = shown[:, 0] if shown.shape[1] == 1 else shown.transpose(0, 2, 3, 1)  # Pillow wants grey as (H, W)
    images = (image.fromarray(np.ascontiguousarray(frame)) for frame in pixels)
    file = io.BytesIO()
    next(images).save(file, format="GIF", save_all=True, append_images=images, duration=duration, loop=0)
    return file.getvalue()


def shrunk(frame: NDArray[Any]) -> NDArray[Any]:
    """Return a smaller frame of the means of square blocks, so that thin lines stay visible."""
    size = -(-max(frame.shape[:2]) // MAX_SIDE)
    if size == 1 or frame.ndim != 3 or frame.dtype != np.uint8:  # the monitor refuses these frames
        return frame
    height, width, _ = frame.shape
    whole = np.pad(frame, ((0, -height % size), (0, -width % size), (0, 0)), mode="edge")
    total = sum(whole[row::size, column::size].astype(np.uint32) for row in range(size) for column in range(size))
    return np.asarray(total // size**2, dtype=np.uint8)


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
