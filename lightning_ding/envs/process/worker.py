"""The code of an env process, which steps one or more envs at the request of its parent.

Each message begins with one byte. The usual request is ``STEP`` alone, because the actions are in shared memory, and
the usual answer is ``DONE`` alone. ``MORE`` and ``ERROR`` are followed by a pickled message. Pickle is safe here: both
ends of the pipe are processes of the same run.
"""

from __future__ import annotations

import os
import pickle
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

from lightning_ding.envs.answers import (
    BrokenEnvError,
    Layout,
    call_method,
    has_indices,
    is_of_env,
    layout_of,
    name_of,
    named_error,
    observation_check,
    place_of,
    reset_values,
    step_values,
)
from lightning_ding.envs.process.errors import is_check_error
from lightning_ding.envs.process.lifeline import prepare_child
from lightning_ding.envs.process.main_module import dumps_for_parent
from lightning_ding.envs.process.shared_memory import RESETTING, STEPPING, SharedArrays
from lightning_ding.envs.state.memo import NotPlainError
from lightning_ding.envs.state.origins import chain, note_origins
from lightning_ding.envs.state.state import load_separate_state, separate_state
from lightning_ding.envs.state.surroundings import load_generators, read_generators, seed_generators

STEP, MORE, DONE, ERROR = b"s", b"+", b".", b"!"
Info = dict[str, Any]
Outcome = tuple[int, Any, Info, "tuple[Any, Info] | None"]
"""Number of an env in its process, observation if it has no fixed size, info, and final observation and info."""


def serve(pipe: Connection, parent: Connection) -> None:
    """Answer requests over the pipe until a request to close, or until the parent with this lifeline ends."""
    prepare_child(parent)
    file, worker = pipe.fileno(), EnvWorker(pipe)
    try:
        os.write(file, DONE)
        while code := os.read(file, 1):
            if not _answer(pipe, worker, code):
                break
    except (EOFError, ConnectionError):  # the parent has ended
        pass


def _answer(pipe: Connection, worker: EnvWorker, code: bytes) -> bool:
    """Answer one request, and return whether another one may follow."""
    request = b"" if code == STEP else pipe.recv_bytes()
    name = ""
    try:
        name, *arguments = ForkingPickler.loads(request) if request else ("step", None)
        message = getattr(worker, name)(*arguments)
        code, data = MORE, None if message is None else dumps_for_parent(message)
    except BaseException as error:
        if not is_of_env(error):
            raise
        code, data = ERROR, ForkingPickler.dumps(worker.describe_error(error))
    if data is None:
        os.write(pipe.fileno(), DONE)
    else:
        os.write(pipe.fileno(), code)
        pipe.send_bytes(data)
    return name != "close"


class EnvWorker:
    """The envs of this process. Its public methods are the requests of the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._envs: list[gym.Env[Any, Any]] = []
        self._makers: Sequence[Callable[[], gym.Env[Any, Any]]] = ()
        self._mode = AutoresetMode.DISABLED
        self._ended: list[bool] = []
        self._steps: list[int] = []
        self._first_id = 0
        self._check: Callable[[Any, str], None]
        self._fallback_seeds: list[int | None] = []
        self._position: list[int] | Any = [0, 0]
        self._observations: Layout | None = None
        self._actions: Layout | None = None
        self._block: SharedArrays
        self._outcomes: list[Outcome] = []
        self._reset_options: Info = {}

    def make(self, makers: CloudpickleWrapper[Any], mode: AutoresetMode, first_id: int) -> CloudpickleWrapper[Any]:
        """Create the envs, of which the first has the number ``first_id``, and return their descriptions."""
        self._mode, self._first_id = mode, first_id
        self._makers = makers.fn  # type: ignore[assignment]
        for number, function in enumerate(self._makers):
            self._position[0] = number
            self._envs.append(function())
        note_origins(layer for env in self._envs for layer in chain(env))
        self._ended, self._fallback_seeds = [False] * len(self._envs), [None] * len(self._envs)
        self._steps = [0] * len(self._envs)
        space = self._envs[0].observation_space
        self._check, self._has_indices = observation_check(space), has_indices(space)
        descriptions = [
            (env.observation_space, env.action_space, env.metadata, env.render_mode, name_of(env)) for env in self._envs
        ]
        return CloudpickleWrapper(descriptions)  # type: ignore[arg-type]

    def share(self) -> None:
        """Receive the shared memory, which the parent sends next."""
        self._observations = layout_of(self._envs[0].observation_space)
        self._actions = layout_of(self._envs[0].action_space)
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as other_end:
            _, files, _, _ = socket.recv_fds(other_end, 1, 1)
        self._block = SharedArrays(len(self._envs), self._observations, self._actions, files[0])
        self._block.close_file()
        self._position = self._block.position

    def resume(self, seeds: list[int | None], settings: list[tuple[Any, ...]]) -> None:
        """Replace failed envs, whose episodes count as ended.

        ``seeds`` are those of first resets without a seed, ``settings`` the requests by which the failed envs were set.
        """
        self._fallback_seeds, self._ended = seeds, [True] * len(self._envs)
        for name, *arguments in settings:
            getattr(self, name)(*arguments)

    def reset(self, numbers: list[int], seeds: list[int | None], options: Info | None) -> list[Outcome] | None:
        """Reset some of the envs, with a seed for each of them."""
        self._outcomes = []
        for number, seed in zip(numbers, seeds, strict=True):
            obs, info = self._reset_one(number, seed, options)
            self._write_outcome(number, obs, info, None)
        return self._outcomes or None

    def step(self, actions: list[Any] | None) -> list[Outcome] | None:
        """Step all envs; if ``actions`` is None, they are in the shared memory."""
        self._outcomes = []
        for number in range(len(self._envs)):
            self._step_one(number, self._shared_action(number) if actions is None else actions[number])
        return self._outcomes or None

    def call(self, name: str, args: Any, kwargs: Any) -> list[Any]:
        """Return an attribute of each env, or the result of calling it if it is a method."""
        answers = []
        for number, env in enumerate(self._envs):
            self._position[0] = number
            attribute = env.get_wrapper_attr(name)
            answers.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return answers

    def set_attr(self, name: str, values: list[Any]) -> None:
        """Set an attribute of each env."""
        for number, (env, value) in enumerate(zip(self._envs, values, strict=True)):
            self._position[0] = number
            env.set_wrapper_attr(name, value)

    def configure(self, name: str, args: Any, kwargs: Any) -> None:
        """Call a method of each env that sets something."""
        for number, env in enumerate(self._envs):
            self._position[0] = number
            call_method(env, name, args, kwargs)

    def set_reset_options(self, options: Info | None) -> None:
        """Set options that all following resets get; None for none."""
        self._reset_options = dict(options or {})

    def state(self) -> bytes | str:
        """Return the state of the envs, pickled, or the reason why it cannot be read.

        It is pickled here, because messages do not hold the content of tensors but share their memory.
        """
        try:
            state = separate_state(self._envs, self._makers)
        except NotPlainError as error:
            return str(error)
        own = {"ended": self._ended, "steps": self._steps, "seeds": self._fallback_seeds}
        own |= {"generators": read_generators(), "reset_options": self._reset_options}
        return pickle.dumps({**state, **own, "autoreset": str(self._mode)})

    def load_state(self, data: bytes) -> str | None:
        """Restore what ``state`` returned, in envs that have been reset; return the reason if that is not possible."""
        state: Info = ForkingPickler.loads(data)
        if state["autoreset"] != str(self._mode):
            return f"autoreset was made with {state['autoreset']}, now with {self._mode}"
        try:
            load_separate_state(self._envs, self._makers, state)
        except NotPlainError as error:
            return str(error)
        self._ended, self._steps, self._fallback_seeds = state["ended"], state["steps"], state["seeds"]
        self._reset_options = state.get("reset_options", {})  # not in states of older versions
        if "generators" in state:
            load_generators(state["generators"])
        return None

    def close(self) -> None:
        """Close all envs, and raise the first exception of an env afterwards."""
        first: Exception | None = None
        for number, env in enumerate(self._envs):
            try:
                env.close()
            except Exception as error:
                self._position[0] = number if first is None else self._position[0]
                first = first or error
        if first is not None:
            raise first

    def describe_error(self, error: BaseException) -> tuple[int, str, str, Exception | None]:
        """Return the env's number, the error in one line, its traceback, and the error itself if a check raised it."""
        number, trace = int(self._position[0]), "".join(traceback.format_exception(error))
        if number < len(self._envs):
            place = place_of(self._steps[number], self._position[1] == RESETTING)
            error = named_error(error, self._envs[number], self._first_id + number, place)
        is_check = isinstance(error, BrokenEnvError) or is_check_error(error)
        refusal = error if is_check and isinstance(error, Exception) else None
        return number, f"{type(error).__name__}: {error}", trace, refusal

    def _step_one(self, number: int, action: Any) -> None:
        block, final = self._block, None
        if self._mode == AutoresetMode.NEXT_STEP and self._ended[number]:
            obs, info = self._reset_one(number, None)
            block.reward[number], block.terminated[number], block.truncated[number] = 0.0, False, False
        else:
            self._position[0], self._position[1] = number, STEPPING
            self._steps[number] += 1
            obs, reward, terminated, truncated, info = step_values(self._envs[number].step(action))
            block.reward[number], block.terminated[number], block.truncated[number] = reward, terminated, truncated
            self._ended[number] = bool(terminated or truncated)
            if self._ended[number] and self._mode == AutoresetMode.SAME_STEP:
                self._check(obs, "step()")
                final = (deepcopy(obs), info)  # the env may overwrite this memory with its next observation
                obs, info = self._reset_one(number, None)
        self._write_outcome(number, obs, info, final)

    def _reset_one(self, number: int, seed: int | None, options: Info | None = None) -> tuple[Any, Info]:
        self._position[0], self._position[1] = number, RESETTING
        fresh, self._fallback_seeds[number] = self._fallback_seeds[number], None
        self._ended[number] = False
        seed = fresh if seed is None else seed
        if seed is not None:
            seed_generators(seed)  # an env may draw from the generators of its process
        if self._reset_options:
            options = {**self._reset_options, **(options or {})}
        answer = reset_values(self._envs[number].reset(seed=seed, options=options))
        self._steps[number] = 0
        return answer

    def _write_outcome(self, number: int, obs: Any, info: Info, final: tuple[Any, Info] | None) -> None:
        if self._observations is not None:
            self._copy(number, obs, self._observations)
        if info or final is not None or self._observations is None:
            self._outcomes.append((number, obs if self._observations is None else None, info, final))

    def _copy(self, number: int, obs: Any, layout: Layout) -> None:
        """Copy an observation into the shared memory, or raise an error that describes why it does not fit."""
        method = "step()" if self._steps[number] else "reset()"
        try:
            for column, leaf in zip(self._block.obs, layout.split(obs), strict=True):
                if np.shape(leaf) != column.shape[1:]:
                    raise ValueError(f"an observation must be in {layout.space}, got {obs!r}")
                if getattr(leaf, "dtype", None) == column.dtype:
                    column[number] = leaf
                else:
                    self._check(obs, method)  # a conversion would change numbers that do not fit
                    np.copyto(column[number, ...], leaf, casting="same_kind")
        except (KeyError, IndexError, TypeError, ValueError):
            self._check(obs, method)
            raise
        if self._has_indices:
            self._check(obs, method)

    def _shared_action(self, number: int) -> Any:
        assert self._actions is not None
        return self._actions.join([column[number].copy() for column in self._block.action])
