"""Atari games continue from a saved state to the last bit, with sticky actions too."""

from __future__ import annotations

import functools
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.envs import NotPlainError, env_state, load_env_state, make_vector_env
from lightning_ding.envs.atari import make_atari
from lightning_ding.envs.state.ale import WatchedALE
from tests.envs.state.test_state import check_continues, through_a_file

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("cv2")
gym.register_envs(ale_py)
SMALL: dict[str, Any] = {"noop_max": 3, "screen_size": 21}


def atari(game: str, sticky: float, seed: int, mode: Any = "sync", **kwargs: Any) -> Any:
    make = functools.partial(make_atari, game, repeat_action_probability=sticky, **SMALL, **kwargs)
    env = make_vector_env(make, 1, mode, seed=seed)
    env.action_space.seed(seed)
    return env


@pytest.mark.parametrize(
    ("game", "sticky"), [("Breakout", 0.0), ("Breakout", 0.25), ("Seaquest", 0.9), ("Qbert", 0.9), ("Boxing", 1.0)]
)
def test_games_continue_from_a_saved_state(game: str, sticky: float) -> None:
    check_continues(atari(game, sticky, 1), atari(game, sticky, 2), before=12, steps=15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id", sorted(one for one in gym.registry if one.startswith("ALE/") and one.endswith("-v5"))
)
def test_every_game_continues_from_a_saved_state(env_id: str) -> None:
    first, second = (make_vector_env(env_id, 1, seed=seed) for seed in (1, 2))
    actions = np.random.default_rng(3).integers(first.single_action_space.n, size=(100, 1))  # type: ignore[attr-defined]
    for action in actions[:60]:
        first.step(action)
    second.step(actions[0])
    load_env_state(second, through_a_file(env_state(first)))
    for action in actions[60:]:
        one, other = first.step(action), second.step(action)
        assert np.array_equal(one[0], other[0])
        assert str(one[1:]) == str(other[1:])


def test_games_in_env_processes_continue_from_a_saved_state() -> None:
    first, second = (atari("Pong", 0.9, seed, "async", training=False) for seed in (1, 2))
    check_continues(first, second, before=8, steps=10)


def test_games_without_wrappers_continue_with_random_frame_skips() -> None:
    kwargs = {"obs_type": "ram", "frameskip": (2, 5), "repeat_action_probability": 0.9}
    first, second = (make_vector_env("ALE/Frogger-v5", 1, seed=seed, env_kwargs=kwargs) for seed in (1, 2))
    check_continues(first, second, before=8, steps=20)


@pytest.fixture
def watched() -> Any:
    env: Any = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.6).unwrapped
    env.ale = WatchedALE(env.ale)
    env.reset(seed=5)
    return env


def test_generator_draws_the_numbers_of_ale(watched: Any) -> None:
    for number in range(700):
        watched.step(number % 4)
    watched.ale.repeats("ale")
    text = re.search(rb"[0-9 ]+(?=....\Z)", watched.ale.cloneSystemState().serialize()[:-4], re.DOTALL)
    assert text is not None
    words = [int(word) for word in text.group().split()]
    state = watched.ale.generator.state["state"]
    if len(words) != 625:
        pytest.skip("this standard library writes another form")
    assert words == [*state["key"].tolist(), state["pos"]]


def test_repeated_action_is_the_last_one_that_was_not_ignored(watched: Any) -> None:
    assert watched.ale.repeats("ale") == [0, 1.0]
    draws = watched.ale.generator.random_raw(80)[::2] / 2**32
    watched.ale.loadROM(ale_py.roms.get_rom_path("breakout"))
    last, seen = 0, set()
    for number, draw in enumerate(draws.tolist()):
        action = watched._action_set[number % 4].value
        watched.step(number % 4)
        last = action if draw >= 0.6 else last
        assert watched.ale.repeats("ale") == [last, 1.0]
        seen.add(last)
    assert len(seen) > 2
    watched.ale.reset_game()
    assert watched.ale.repeats("ale") == [0, 1.0]


def test_game_that_was_played_before_it_was_watched_is_refused() -> None:
    class Early(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            env.reset()
            env.step(0)

    env = make_vector_env("ALE/Pong-v5", 1, wrappers=[Early])
    env.reset()
    with pytest.raises(NotPlainError, match=r"ALE/Pong-v5: AtariEnv.ale is an ALEInterface that was used before"):
        env_state(env)
    env.reset(seed=1)
    env_state(env)


def test_mistakes_are_named() -> None:
    env = gym.vector.SyncVectorEnv([lambda: gym.make("ALE/Pong-v5")])
    env.reset(seed=1)
    with pytest.raises(
        NotPlainError, match=r"an ALEInterface with sticky actions that make_vector_env has not created"
    ):
        env_state(env)
    env = make_vector_env("ALE/Pong-v5", 1, seed=1, env_kwargs={"sound_obs": True})
    with pytest.raises(NotPlainError, match=r"ALE/Pong-v5: AtariEnv.ale is an ALEInterface with sound_obs"):
        env_state(env)


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: data[:2000], lambda data: b"abc"])
def test_damaged_state_of_an_emulator_is_refused(change: Any) -> None:
    first, second = atari("Breakout", 0.0, 1), atari("Breakout", 0.0, 2)
    state = env_state(first)
    (emulator,) = [
        pair[1]
        for layer in state["envs"][0]
        for coded in layer["attributes"].values()
        if isinstance(coded, dict) and coded["kind"] == "simulator"
        for pair in coded["state"]["pairs"]
        if pair[0] == "emulator"
    ]
    damaged = bytearray(change(emulator["data"].numpy().tobytes()))
    emulator["data"] = torch.frombuffer(damaged, dtype=torch.uint8)
    with pytest.raises(NotPlainError, match=r"ALE/Breakout-v5: AtariEnv.ale was the emulator of another game"):
        load_env_state(second, state)
