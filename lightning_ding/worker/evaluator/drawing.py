"""Drawing the frames of an evaluation: of one env only where that is enough, with advice where it is slow or fails."""

from __future__ import annotations

import ctypes.util
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from lightning_ding.worker.evaluator.video import shrunk

logger = logging.getLogger(__name__)

MUJOCO_GL = "MUJOCO_GL"
"""Environment variable that names what MuJoCo draws with: glfw, egl or osmesa."""
OPENGL = re.compile(r"opengl|mujoco|mjr_|glfw|egl|osmesa|glGetError", re.IGNORECASE)
"""Words in the errors of MuJoCo and of gymnasium's MuJoCo envs when they have no way to draw."""
SLOW = 0.1  # seconds for a frame
FIRST_FRAMES = 10  # frames after which the speed is judged


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
            RuntimeError: If MuJoCo cannot draw; the message names ``MUJOCO_GL``.
            ValueError: If an env gives no frame.
        """
        if not env_ids:
            return {}
        began = time.monotonic()
        try:
            frames = self._render(env_ids)
        except Exception as error:
            if OPENGL.search(f"{type(error).__module__} {error}") is None:
                raise
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RuntimeError(f"the evaluation envs cannot draw a video: {first}; {_gl_text()}") from error
        self._note(len(frames), time.monotonic() - began)
        if any(not isinstance(frame, np.ndarray) for frame in frames.values()):
            got = [type(frame).__name__ for frame in frames.values()]
            raise ValueError(f'the envs with render_mode="rgb_array" must render an array each, got {got}')
        return {env_id: shrunk(frame) for env_id, frame in frames.items()}

    def _render(self, env_ids: Sequence[int]) -> dict[int, Any]:
        core: Any = self._env.unwrapped
        if isinstance(core, SyncVectorEnv):
            return {i: core.envs[i].render() for i in env_ids if not self._is_cancelled()}
        if isinstance(core, RendersOne) and len(env_ids) == 1:
            return {i: core.render_one(i) for i in env_ids}
        frames: Any = self._env.render()
        return {i: None if frames is None else frames[i] for i in env_ids}

    def _note(self, frames: int, seconds: float) -> None:
        before, self._frames, self._seconds = self._frames, self._frames + frames, self._seconds + seconds
        if before < FIRST_FRAMES <= self._frames and self._seconds > SLOW * self._frames:
            text = "the videos of evaluations are slow: a frame takes %.2f s; a larger render_freq makes fewer%s"
            logger.warning(text, self._seconds / self._frames, f"; {_gl_text()}" if "mujoco" in sys.modules else "")


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
