"""The code of an env process, a worker, which steps its envs one after another at the request of its parent.

Each message begins with one byte. The usual request is ``STEP`` alone, because the actions are in shared memory, and
the usual answer is ``DONE`` alone. ``MORE`` and ``ERROR`` are followed by a pickled message. Pickle is safe here: both
ends of the pipe are processes of the same run.

Shapes: K envs in the worker.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import traceback
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper, iterate

from lightning_ding.envs.answers import (
    INDICES,
    BrokenEnvError,
    call_method,
    layout_of,
    name_of,
)
from lightning_ding.envs.faults import is_of_env, named_error
from lightning_ding.envs.infos import Columns, InfoBlock
from lightning_ding.envs.process.errors import is_check_error
from lightning_ding.envs.process.lifeline import prepare_child
from lightning_ding.envs.process.main_module import dumps_for_parent
from lightning_ding.envs.process.shared_memory import SharedArrays
from lightning_ding.envs.state.codec import to_plain
from lightning_ding.envs.state.memo import NotPlainError
from lightning_ding.envs.state.origins import layers_of, note_origins
from lightning_ding.envs.state.state import env_state, load_env_state
from lightning_ding.envs.state.surroundings import load_generators, read_generators, seed_generators
from lightning_ding.envs.sync import _SyncVectorEnv

STEP, MORE, DONE, ERROR = b"s", b"+", b".", b"!"
HEADER = 9  # bytes of the code and the length of the data
SHORT = 16_384  # bytes; the buffer of a pipe holds more
Info = dict[str, Any]
Outcome = tuple["list[Columns | InfoBlock]", "list[Any] | None"]
"""The infos of K envs, and their observations if these have no fixed size."""


def serve(pipe: Connection, parent: Connection) -> None:
    """Answer requests over the pipe until a request to close, or until the parent with this lifeline ends."""
    prepare_child(parent)
    file, worker = pipe.fileno(), EnvWorker(pipe)
    request = select.poll()  # a blocking read would also wake when the parent reads the last answer
    request.register(file, select.POLLIN)
    try:
        os.write(file, DONE)
        while request.poll() and _answer(file, worker):
            pass
    except (EOFError, ConnectionError):  # the parent has ended
        pass


def _answer(file: int, worker: EnvWorker) -> bool:
    """Answer one request, and return whether another one may follow."""
    code, request = read_message(file)
    name = ""
    try:
        name, *arguments = ForkingPickler.loads(request) if code == MORE else ("step", None)
        message = getattr(worker, name)(*arguments)
        code, data = DONE, None
        if message is not None:
            code, data = MORE, dumps_for_parent(message)
    except BaseException as error:
        if not is_of_env(error):
            raise
        code, data = ERROR, ForkingPickler.dumps(worker.describe_error(error))
    send_message(file, code, data)
    return name != "close"


def send_message(file: int, code: bytes, data: Any) -> None:
    """Send a code, and pickled data unless they are None. A short message is one write, which wakes once."""
    head = code if data is None else code + len(data).to_bytes(HEADER - 1, "big")
    is_short = data is None or len(data) <= SHORT
    for part in [head + (data or b"")] if is_short else [head, data]:
        rest = memoryview(part)
        while len(rest):
            rest = rest[os.write(file, rest) :]


def read_message(file: int, ahead: int = 0) -> tuple[bytes, Any]:
    """Return a code and the pickled data after it.

    Args:
        file: Descriptor of a pipe.
        ahead: Largest number of bytes that are read at once with the code, if nothing can follow the message.

    Raises:
        EOFError: If the other end is closed.
    """
    message = bytearray()
    size = 1
    while len(message) < size:
        more = os.read(file, max(size - len(message), HEADER + ahead - len(message)))
        if not more:
            raise EOFError
        message += more
        if message[:1] in (MORE, ERROR):
            size = HEADER if len(message) < HEADER else HEADER + int.from_bytes(message[1:HEADER], "big")
    return bytes(message[:1]), memoryview(message)[HEADER:]


class WorkerEnvs(_SyncVectorEnv):
    """The envs of a worker. Observations are joined in the memory that the worker shares with its parent.

    Args:
        envs: The envs.
        makers: The functions that created them.
        autoreset_mode: Gymnasium's autoreset mode.
        first_id: Number of the first env among those of all workers.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        makers: Sequence[Callable[[], gym.Env[Any, Any]]],
        autoreset_mode: AutoresetMode,
        first_id: int,
    ) -> None:
        super().__init__([lambda env=env: env for env in envs], autoreset_mode)  # type: ignore[misc]
        self.env_fns, self._first_id = makers, first_id
        self._fallback_seeds: list[int | None] = [None] * self.num_envs

    def share(self, block: SharedArrays) -> None:
        """Use the shared memory from now on."""
        self._position = memoryview(block.position)  # type: ignore[arg-type]
        if block.observations is not None:
            self._memory = block.observations.join(block.obs)
            leaves = deepcopy(block.observations.leaves)  # a sample would change their generators
            first = [
                leaf.sample() if isinstance(leaf, INDICES) else np.zeros(leaf.shape, leaf.dtype) for leaf in leaves
            ]
            self._env_obs = [block.observations.join(first)] * self.num_envs  # of envs that are not reset yet

    def follow(self, seeds: list[int | None]) -> None:
        """Replace failed envs: their episodes count as ended, and their first resets have these seeds."""
        self._fallback_seeds = seeds
        self._autoreset_envs[:] = True

    def observations(self) -> list[Any]:
        """Return the last observation of each env."""
        return self._env_obs

    def where(self) -> tuple[int, str]:
        """Return the number of the current env, and a description of what it does."""
        return self._position[0], self._place()

    def _reset_one(self, number: int, seed: int | None = None, options: Info | None = None) -> Any:
        fresh, self._fallback_seeds[number] = self._fallback_seeds[number], None
        seed = fresh if seed is None else seed
        if seed is not None:
            seed_generators(seed)  # an env may draw from the generators of its process
        return super()._reset_one(number, seed, options)

    def _batch(self) -> Any:
        return None if self._memory is None else super()._batch()  # the parent joins those without a fixed size

    def _join(self, parts: list[Columns | InfoBlock]) -> Any:
        return parts  # the parent joins them with those of other workers

    def _fail(self, error: BaseException) -> NoReturn:
        raise error  # the worker describes it


class EnvWorker:
    """The envs of this process. Its public methods are the requests of the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._made: list[gym.Env[Any, Any]] = []
        self._makers: Sequence[Callable[[], gym.Env[Any, Any]]] = ()
        self._mode = AutoresetMode.DISABLED
        self._first_id = 0
        self._position: Any = [0, 0]
        self._envs: WorkerEnvs
        self._block: SharedArrays

    def make(self, makers: CloudpickleWrapper[Any], mode: AutoresetMode, first_id: int) -> CloudpickleWrapper[Any]:
        """Create the envs, of which the first has the number ``first_id``, and return their descriptions."""
        self._mode, self._first_id = mode, first_id
        self._makers = makers.fn  # type: ignore[assignment]
        for number, function in enumerate(self._makers):
            self._position[0] = number
            self._made.append(function())
        descriptions = [
            (env.observation_space, env.action_space, env.metadata, env.render_mode, name_of(env)) for env in self._made
        ]
        return CloudpickleWrapper(descriptions)  # type: ignore[arg-type]

    def share(self) -> None:
        """Receive the shared memory, which the parent sends next once it knows that all envs have the same spaces."""
        self._envs = WorkerEnvs(self._made, self._makers, self._mode, self._first_id)
        note_origins(layers_of(self._envs))
        layouts = layout_of(self._made[0].observation_space), layout_of(self._made[0].action_space)
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as other_end:
            _, files, _, _ = socket.recv_fds(other_end, 1, 1)
        self._block = SharedArrays(len(self._made), *layouts, files[0])
        self._block.close_file()
        self._envs.share(self._block)
        self._position = self._block.position

    def resume(self, seeds: list[int | None], settings: list[tuple[Any, ...]]) -> None:
        """Replace failed envs, whose episodes count as ended.

        ``seeds`` are those of first resets without a seed, ``settings`` the requests by which the failed envs were set.
        """
        self._envs.follow(seeds)
        for name, *arguments in settings:
            getattr(self, name)(*arguments)

    def reset(self, seeds: list[int | None], options: Info | None) -> Outcome | None:
        """Reset all envs, or those in ``options["reset_mask"]``, with a seed for each env."""
        infos: Any = self._envs.reset(seed=seeds, options=options)[1]
        return self._outcome(infos)

    def step(self, actions: Iterable[Any] | None) -> Outcome | None:
        """Step all envs; if ``actions`` is None, they are in the shared memory."""
        block = self._block
        if actions is None:
            assert block.actions is not None
            batch = block.actions.join([column.copy() for column in block.action])
            actions = iterate(self._envs.action_space, batch)
        _, block.reward[:], block.terminated[:], block.truncated[:], infos = self._envs.step_each(actions)
        return self._outcome(infos)

    def call(self, name: str, args: Any, kwargs: Any) -> list[Any]:
        """Return an attribute of each env, or the result of calling it if it is a method."""
        answers = []
        for number, env in enumerate(self._made):
            self._position[0] = number
            attribute = env.get_wrapper_attr(name)
            answers.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return answers

    def set_attr(self, name: str, values: list[Any]) -> None:
        """Set an attribute of each env."""
        for number, (env, value) in enumerate(zip(self._made, values, strict=True)):
            self._position[0] = number
            env.set_wrapper_attr(name, value)

    def configure(self, name: str, args: Any, kwargs: Any) -> None:
        """Call a method of each env that sets something."""
        for number, env in enumerate(self._made):
            self._position[0] = number
            call_method(env, name, args, kwargs)

    def set_reset_options(self, options: Info | None) -> None:
        """Set options that all following resets get; None for none."""
        self._envs.set_reset_options(options)

    def state(self) -> bytes | str:
        """Return the state of the envs, pickled, or the reason why it cannot be read.

        It is pickled here, because messages do not hold the content of tensors but share their memory.
        """
        try:
            return pickle.dumps({**env_state(self._envs), "generators": read_generators()})
        except NotPlainError as error:
            return str(error)

    def load_state(self, data: bytes) -> str | None:
        """Restore what ``state`` returned, in envs that have been reset; return the reason if that is not possible."""
        state: Info = ForkingPickler.loads(data)
        try:
            load_env_state(self._envs, state if "core" in state else _of_older_checkpoint(state))
        except NotPlainError as error:
            return str(error)
        if "generators" in state:  # not in states of older versions
            load_generators(state["generators"])
        return None

    def close(self) -> None:
        """Close all envs, and raise the first exception of an env afterwards."""
        first: Exception | None = None
        for number, env in enumerate(self._made):
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
        if hasattr(self, "_envs"):
            number, place = self._envs.where()
            error = named_error(error, self._made[number], self._first_id + number, place)
        is_check = isinstance(error, BrokenEnvError) or is_check_error(error)
        refusal = error if is_check and isinstance(error, Exception) else None
        return number, f"{type(error).__name__}: {error}", trace, refusal

    def _outcome(self, infos: list[Columns | InfoBlock]) -> Outcome | None:
        if self._block.observations is None:
            return infos, self._envs.observations()
        return (infos, None) if infos else None


def _of_older_checkpoint(state: Info) -> Info:
    """Return the state of a worker, saved by a version whose workers had no vector env, as one of ``env_state``."""
    begun = [-step for step in state["steps"]]
    own = {"_autoreset_envs": np.array(state["ended"]), "_count": 0, "_begun": begun, "_fallback_seeds": state["seeds"]}
    own["_reset_options"] = state.get("reset_options", {})
    attributes = {name: to_plain(value) for name, value in own.items()}
    made, *rest = state.get("made", [{}])
    made = {**made, "autoreset": state["autoreset"]}
    return {**state, "made": [made, *rest], "core": {"class": "WorkerEnvs", "attributes": attributes}, "wrappers": []}
