"""Filming an evaluation.

Shapes: V films, T frames, C channels, H height, W width.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from lightning_ding.worker.evaluator.extra import import_extra

MAX_SIDE = 320
"""Pixels of a frame's longer side; larger ones are shrunk by a whole factor."""
MAX_FRAMES = 300
"""Frames of a film; of longer ones every n-th frame is kept, so that they run faster."""


def check_can_render(env: VectorEnv) -> None:
    """Raise if the envs were not made to give frames.

    Raises:
        ValueError: If their render mode is not "rgb_array".
    """
    if env.render_mode != "rgb_array":
        raise ValueError(
            'a film needs envs made with render_mode="rgb_array" (in a datamodule: '
            f'env_kwargs={{"render_mode": "rgb_array"}}), got render_mode={env.render_mode!r}'
        )


def frames_of(env: VectorEnv) -> list[NDArray[np.uint8]]:
    """Return the frame of each env, no side longer than ``MAX_SIDE``, shape (H, W, C).

    Raises:
        ValueError: If an env gives no frame.
    """
    frames = env.render()
    if frames is None or any(not isinstance(frame, np.ndarray) for frame in frames):
        got = frames if frames is None else [type(frame).__name__ for frame in frames]
        raise ValueError(f'the envs with render_mode="rgb_array" must render an array each, got {got}')
    return [_shrunk(frame) for frame in frames if isinstance(frame, np.ndarray)]


def write_video(writer: Any, tag: str, video: NDArray[np.uint8], step: int, fps: float) -> None:
    """Write films side by side as one animation.

    A ``SummaryWriter`` of PyTorch gets a GIF made here, because its own ``add_video`` takes eleven times the memory of
    the films and does not work with moviepy 2. Any other writer's ``add_video(tag, video, step, fps=fps)`` is called.

    Args:
        writer: A ``SummaryWriter``, or what has its ``add_video``.
        tag: Name of the animation.
        video: Shape (V, T, C, H, W).
        step: Where on the x axis.
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


def gif(film: NDArray[np.uint8], fps: float) -> bytes:
    """Return a film, shape (T, C, H, W) with C 1, 3 or 4, as an animated GIF that repeats.

    Raises:
        ImportError: If the extra ``video`` is not installed.
    """
    image = import_extra("PIL.Image")
    pixels = film[:, 0] if film.shape[1] == 1 else film.transpose(0, 2, 3, 1)  # Pillow wants grey as (H, W)
    images = (image.fromarray(np.ascontiguousarray(frame)) for frame in pixels)
    file = io.BytesIO()
    next(images).save(file, format="GIF", save_all=True, append_images=images, duration=1000 / fps, loop=0)
    return file.getvalue()


def _shrunk(frame: NDArray[Any]) -> NDArray[Any]:
    """Return the means of square blocks, so that thin lines stay to be seen."""
    size = -(-max(frame.shape[:2]) // MAX_SIDE)
    if size == 1 or frame.ndim != 3 or frame.dtype != np.uint8:  # the monitor refuses what is no image
        return frame
    height, width, _ = frame.shape
    whole = np.pad(frame, ((0, -height % size), (0, -width % size), (0, 0)), mode="edge")
    total = sum(whole[row::size, column::size].astype(np.uint32) for row in range(size) for column in range(size))
    return np.asarray(total // size**2, dtype=np.uint8)
