"""The state of ALE, the emulator of Atari games.

ALE returns the state of its emulator and of its random number generator, but not the action that it may repeat in the
next frame. :class:`WatchedALE` keeps track of it.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from lightning_ding.envs.state.memo import NotPlainError

State = dict[str, Any]
NOOP = (0, 1.0)
"""Action and strength at the start of a game."""
MANY = 4096  # actions that are kept until the repeated one is computed
TIME = -1  # the random seed that means the time of day
UNREAD = ("sound_obs", "color_averaging")
ATTEMPTS = 10_000  # frames in which ALE may ignore the action to set
HEADER = 28  # bytes before the state of the emulator: six numbers and a length
GENERATOR = re.compile(rb"[0-9 ]+$")  # the end of the emulator's state


def is_ale(value: Any) -> bool:
    """Return whether a value is an ``ALEInterface``, watched or not."""
    ale_py = sys.modules.get("ale_py")
    return isinstance(value, WatchedALE) or (ale_py is not None and isinstance(value, ale_py.ALEInterface))


def watch_ale(env: Any) -> None:
    """Replace the ``ALEInterface`` of a new Atari env by a ``WatchedALE`` if it repeats actions at random."""
    ale = getattr(env, "__dict__", {}).get("ale") if isinstance(env, gym.Env) else None
    if ale is not None and is_ale(ale) and not isinstance(ale, WatchedALE) and _probability(ale) > 0:
        env.ale = WatchedALE(ale)


def read_ale(ale: Any, path: str) -> State:
    """Return the state of the emulator, its random number generator, and the action that it may repeat.

    Raises:
        NotPlainError: If the action that it may repeat is not known, or observations contain sound or the average of
            frames, whose past ALE does not return.
    """
    for option in UNREAD:
        if ale.getBool(option):
            raise NotPlainError(f"{path} is an ALEInterface with {option}")
    state: State = {"emulator": ale.cloneSystemState().serialize()}
    if isinstance(ale, WatchedALE):
        return {**state, "repeats": ale.repeats(path), "generator": ale.generator.state}
    if _probability(ale) > 0:
        raise NotPlainError(f"{path} is an ALEInterface with sticky actions that make_vector_env has not created")
    return state


def load_ale(ale: Any, state: State, path: str) -> None:
    """Restore what ``read_ale`` returned, in an emulator of the same game that has been reset.

    Raises:
        NotPlainError: If the state belongs to another game, or the action to repeat cannot be set.
    """
    ale_py = sys.modules["ale_py"]
    now, saved = ale.cloneSystemState().serialize(), state["emulator"]
    if ("repeats" in state) != isinstance(ale, WatchedALE) or _form(saved) != _form(now):
        raise NotPlainError(f"{path} was the emulator of another game, or of another version of ale-py")
    if isinstance(ale, WatchedALE):
        ale.set_repeated(tuple(state["repeats"]), path)
        ale.generator.state = state["generator"]
    ale.restoreSystemState(ale_py.ALEState(saved))


class WatchedALE:
    """An ``ALEInterface`` that knows which action it may repeat in the next frame.

    In each frame, ALE draws two numbers (for two players) from a Mersenne Twister with the seed ``random_seed``, and
    takes the action of the last frame instead of the given one if the first is below ``repeat_action_probability``. The
    same numbers are drawn here, for many frames at once.

    Args:
        ale: The interface, whose game has been loaded.
    """

    def __init__(self, ale: Any) -> None:
        self._ale, self._act = ale, ale.act
        self._probability = _probability(ale)
        self._given: list[tuple[Any, float]] = []
        self._begin()
        self._is_known &= _words(ale)[:624] == self.generator.state["state"]["key"].tolist()  # nothing was drawn yet

    def act(self, action: Any, paddle_strength: float = 1.0) -> int:
        """Play one frame, and return its reward."""
        self._given.append((action, paddle_strength))
        if len(self._given) >= MANY:
            self._settle()
        reward: int = self._act(action, paddle_strength)
        return reward

    def reset_game(self) -> Any:
        """Start the game again."""
        self._settle()
        self._last = NOOP
        return self._ale.reset_game()

    def loadROM(self, rom_file: Any) -> Any:  # noqa: N802  # ALE's name
        """Load a game, which seeds the random number generator."""
        result = self._ale.loadROM(rom_file)
        self._begin()
        return result

    def repeats(self, path: str) -> list[Any]:
        """Return the action, and its strength, that ALE may repeat in the next frame.

        Raises:
            NotPlainError: If the game was played before it was watched, or skips frames itself.
        """
        self._settle()
        if not self._is_known:
            raise NotPlainError(f"{path} is an ALEInterface that was used before make_vector_env had its env")
        return list(self._last)

    def set_repeated(self, wanted: tuple[Any, ...], path: str) -> None:
        """Play frames until ALE would repeat this action; raise ``NotPlainError`` if it never does."""
        self.repeats(path)
        for _ in range(ATTEMPTS):
            if self._last == wanted:
                return
            self.act(sys.modules["ale_py"].Action(wanted[0]), wanted[1])
            self._settle()
        raise NotPlainError(f"{path} ignores the action {wanted}, which it must repeat")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the interface."""
        if name == "_ale":  # not set yet, in a copy
            raise AttributeError(name)
        return getattr(self._ale, name)

    def _begin(self) -> None:
        """Begin with a game that was just loaded."""
        seed, self._last = self._ale.getInt("random_seed"), NOOP
        self._given.clear()
        self._is_known = seed != TIME and self._ale.getInt("frame_skip") == 1
        self.generator = np.random.MT19937()
        state: Any = np.random.RandomState(seed % 2**32).get_state(legacy=False)  # seeded as std::mt19937
        self.generator.state = state

    def _settle(self) -> None:
        """Compute which action ALE repeats after all given ones."""
        draws = self.generator.random_raw(2 * len(self._given))[::2] / 2.0**32
        taken = np.flatnonzero(draws >= self._probability)
        if len(taken):
            action, strength = self._given[int(taken[-1])]
            self._last = (int(getattr(action, "value", action)), float(strength))
        self._given.clear()


def _probability(ale: Any) -> float:
    return float(np.float32(ale.getFloat("repeat_action_probability")))


def _words(ale: Any) -> list[int]:
    """Return the numbers in the state of the random number generator of ALE."""
    state = ale.cloneSystemState().serialize()
    size = int.from_bytes(state[HEADER - 4 : HEADER], "little")
    generator = GENERATOR.search(state[HEADER : HEADER + size])
    return [] if generator is None else [int(word) for word in generator.group().split()]


def _form(state: bytes) -> tuple[int, bytes] | None:
    """Return the length and the beginning of an emulator's state, which the game defines; None if it is damaged.

    ALE does not check a state that it reads.
    """
    size = int.from_bytes(state[HEADER - 4 : HEADER], "little")
    inner, rest = state[HEADER : HEADER + size], state[HEADER + size :]
    generator = GENERATOR.search(inner)
    if len(inner) != size or len(rest) != 8 or generator is None:
        return None
    return generator.start(), inner[:36]  # the length and the MD5 sum of the game
