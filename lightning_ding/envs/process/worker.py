"""What the process of one or more envs does: it steps them when it is asked to.

Everything in both directions begins with one byte. ``STEP`` alone is the usual request, because the actions lie in
shared memory, and ``DONE`` alone the usual answer. ``MORE`` and ``ERROR`` are followed by a pickled message; at both
ends of this pipe are processes of the same run.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from lightning_ding.envs.process.life import settle_in
from lightning_ding.envs.process.memory import RESETTING, STEPPING, Block
from lightning_ding.envs.process.script import dumps_for_parent
from lightning_ding.envs.process.space import Layout, layout_of

STEP, MORE, DONE, ERROR = b"s", b"+", b".", b"!"
Info = dict[str, Any]
Seen = tuple[int, Any, Info, "tuple[Any, Info] | None"]
"""Number of an env in its process, observation if that has no fixed size, info, and both of an episode that ended."""


def serve(pipe: Connection, parent: Connection) -> None:
    """Answer requests until one is to close, or the parent is gone.

    Args:
        pipe: The child's end.
        parent: The parent's lifeline.
    """
    settle_in(parent)
    file, worker = pipe.fileno(), Worker(pipe)
    try:
        os.write(file, DONE)
        while code := os.read(file, 1):
            if not _answer(pipe, worker, code):
                break
    except (EOFError, ConnectionError):  # nobody is there to be told
        pass


def _answer(pipe: Connection, worker: Worker, code: bytes) -> bool:
    """Answer one request and return whether more may come."""
    request = b"" if code == STEP else pipe.recv_bytes()
    name = ""
    try:
        name, *arguments = ForkingPickler.loads(request) if request else ("step", None)
        message = getattr(worker, name)(*arguments)
        code, data = MORE, None if message is None else dumps_for_parent(message)
    except Exception as error:
        code, data = ERROR, ForkingPickler.dumps(worker.complain(error))
    if data is None:
        os.write(pipe.fileno(), DONE)
    else:
        os.write(pipe.fileno(), code)
        pipe.send_bytes(data)
    return name != "close"


class Worker:
    """The envs of this process.

    Args:
        pipe: Over which the shared memory comes.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._envs: list[gym.Env[Any, Any]] = []
        self._mode = AutoresetMode.DISABLED
        self._ended: list[bool] = []
        self._fresh: list[int | None] = []
        self._at: list[int] | Any = [0, 0]
        self._observations: Layout | None = None
        self._actions: Layout | None = None
        self._block: Block
        self._seen: list[Seen] = []

    def make(self, makers: CloudpickleWrapper[Any], mode: AutoresetMode) -> CloudpickleWrapper[Any]:
        """Make the envs and return their spaces, metadata and render modes."""
        self._mode = mode
        functions: Sequence[Callable[[], gym.Env[Any, Any]]] = makers.fn  # type: ignore[assignment]
        for number, function in enumerate(functions):
            self._at[0] = number
            self._envs.append(function())
        self._ended, self._fresh = [False] * len(self._envs), [None] * len(self._envs)
        said = [(env.observation_space, env.action_space, env.metadata, env.render_mode) for env in self._envs]
        return CloudpickleWrapper(said)  # type: ignore[arg-type]

    def share(self) -> None:
        """Take the shared memory that comes next."""
        self._observations = layout_of(self._envs[0].observation_space)
        self._actions = layout_of(self._envs[0].action_space)
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as other_end:
            _, files, _, _ = socket.recv_fds(other_end, 1, 1)
        self._block = Block(len(self._envs), self._observations, self._actions, files[0])
        self._block.close_file()
        self._at = self._block.at

    def resume(self, seeds: list[int | None], attributes: dict[str, list[Any]]) -> None:
        """Take the place of envs that broke, whose episodes are over.

        Args:
            seeds: For the first reset of each env if that comes without one.
            attributes: By name, what each env was given.
        """
        self._fresh, self._ended = seeds, [True] * len(self._envs)
        for name, values in attributes.items():
            self.set_attr(name, values)

    def reset(self, numbers: list[int], seeds: list[int | None], options: Info | None) -> list[Seen] | None:
        """Reset some of the envs; ``seeds`` has one for each of them."""
        self._seen = []
        for number, seed in zip(numbers, seeds, strict=True):
            obs, info = self._reset_one(number, seed, options)
            self._keep(number, obs, info, None)
        return self._seen or None

    def step(self, actions: list[Any] | None) -> list[Seen] | None:
        """Step all envs; None for ``actions`` means those in the shared memory."""
        self._seen = []
        for number in range(len(self._envs)):
            self._step_one(number, self._shared_action(number) if actions is None else actions[number])
        return self._seen or None

    def call(self, name: str, args: Any, kwargs: Any) -> list[Any]:
        """Return what each env says."""
        answers = []
        for number, env in enumerate(self._envs):
            self._at[0] = number
            attribute = env.get_wrapper_attr(name)
            answers.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return answers

    def set_attr(self, name: str, values: list[Any]) -> None:
        """Set an attribute of each env."""
        for number, (env, value) in enumerate(zip(self._envs, values, strict=True)):
            self._at[0] = number
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close all envs, also behind one that cannot be closed.

        Raises:
            Exception: What the first of those raised.
        """
        first: Exception | None = None
        for number, env in enumerate(self._envs):
            try:
                env.close()
            except Exception as error:
                self._at[0] = number if first is None else self._at[0]
                first = first or error
        if first is not None:
            raise first

    def complain(self, error: Exception) -> tuple[int, str, str]:
        """Return the number of the env that raised, the error in a line, and where it was raised."""
        trace = "".join(traceback.format_exception(error))
        return int(self._at[0]), f"{type(error).__name__}: {error}", trace

    def _step_one(self, number: int, action: Any) -> None:
        block, final = self._block, None
        if self._mode == AutoresetMode.NEXT_STEP and self._ended[number]:
            obs, info = self._reset_one(number, None)
            block.reward[number], block.terminated[number], block.truncated[number] = 0.0, False, False
        else:
            self._at[0], self._at[1] = number, STEPPING
            obs, reward, terminated, truncated, info = self._envs[number].step(action)
            block.reward[number], block.terminated[number], block.truncated[number] = reward, terminated, truncated
            self._ended[number] = bool(terminated or truncated)
            if self._ended[number] and self._mode == AutoresetMode.SAME_STEP:
                final = (deepcopy(obs), info)  # the env may write its next observation into the same memory
                obs, info = self._reset_one(number, None)
        self._keep(number, obs, info, final)

    def _reset_one(self, number: int, seed: int | None, options: Info | None = None) -> tuple[Any, Info]:
        self._at[0], self._at[1] = number, RESETTING
        fresh, self._fresh[number] = self._fresh[number], None
        self._ended[number] = False
        return self._envs[number].reset(seed=fresh if seed is None else seed, options=options)

    def _keep(self, number: int, obs: Any, info: Info, final: tuple[Any, Info] | None) -> None:
        left = None
        if self._observations is None:
            left = obs
        else:
            for column, leaf in zip(self._block.obs, self._observations.split(obs), strict=True):
                if np.shape(leaf) != column.shape[1:]:
                    raise ValueError(f"an observation must be in {self._observations.space}, got {obs!r}")
                if getattr(leaf, "dtype", None) == column.dtype:
                    column[number] = leaf
                else:
                    np.copyto(column[number, ...], leaf, casting="same_kind")
        if info or final is not None or self._observations is None:
            self._seen.append((number, left, info, final))

    def _shared_action(self, number: int) -> Any:
        assert self._actions is not None
        return self._actions.join([column[number].copy() for column in self._block.action])
