from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from gymnasium.vector import SyncVectorEnv, VectorEnv

from lightning_ding.envs import (
    EnvStepper,
    FaultBarrier,
    NormaliseReward,
    NotPlainError,
    Pausable,
    env_state,
    load_env_state,
    make_vector_env,
)
from lightning_ding.envs.vector import AutoresetName
from tests.toys.bandits import BanditEnv, HybridTargetEnv, TargetEnv, XorEnv
from tests.toys.envs import ChainEnv, CountingEnv

Wrap = Callable[[Any], Any]
MODES: list[AutoresetName] = ["same_step", "next_step", "disabled"]


class Opaque(gym.Wrapper[Any, Any, Any, Any]):
    """Holds what cannot be read."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.engine = object()


class Asked(Opaque):
    """Gives its state when asked."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._added = 0.0

    def step(self, action: Any) -> Any:
        self._added += 1
        obs, reward, *rest = self.env.step(action)
        return (obs, float(reward) + self._added, *rest)

    def state_dict(self) -> dict[str, Any]:
        return {"added": self._added}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._added = state["added"]


class RunningNormalisation(wrappers.NormalizeObservation):
    """A wrapper with running statistics of a user, which is not refused as gymnasium's is."""


class Composite(CountingEnv):
    """Contains another env that it does not wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.env = CountingEnv()


class Board(gym.Env[Any, Any]):
    """Shows a row of its board, which has two names, and so has the list of its moves."""

    def __init__(self, is_view: bool = False, gain: float = 1.0, render_mode: str | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (4,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self.render_mode, self.gain = render_mode, gain
        self.board = np.zeros(4)
        self.row = self.board[:2] if is_view else self.board
        self.moves: list[int] = []
        self.named = {"moves": self.moves}
        self.draw = self.observe  # its own method

    def observe(self) -> Any:
        return np.resize(self.row, 4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.board[:] = self.np_random.random(4)
        self.moves.clear()
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        self.board += self.gain
        self.moves.append(int(action))
        count = len(self.named["moves"])
        return self.draw(), float(count), count == 9, False, {}


class Draws(Board):
    """Its random numbers are known by a method alone."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(7).random


class Shares(gym.Wrapper[Any, Any, Any, Any]):
    """Refers to the board of the wrapped env, and to a list that all envs share."""

    ALL: ClassVar[list[int]] = []

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.seen, self.all = env.unwrapped.board, self.ALL  # type: ignore[attr-defined]

    def step(self, action: Any) -> Any:
        obs, _, *rest = self.env.step(action)
        self.all.append(1)
        return (obs, float(self.seen.sum() + len(self.all)), *rest)


class Times(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], by: float) -> None:
        super().__init__(env)
        self.by = by


def make(env: Any, wraps: tuple[Wrap, ...] = (), autoreset: AutoresetName = "same_step", seed: int = 1) -> VectorEnv:
    vector = make_vector_env(env, 3, wrappers=wraps, autoreset=autoreset)
    vector.reset(seed=seed)
    vector.action_space.seed(seed)
    return vector


def play(stepper: EnvStepper, steps: int) -> list[Any]:
    """Take random actions; return everything that came of it, and the actions."""
    seen = []
    for _ in range(steps):
        action = stepper.env.action_space.sample()
        timestep = stepper.step(action)
        seen += [action, timestep.next_obs, timestep.reward, timestep.terminated, timestep.truncated, stepper.obs]
    return [np.asarray(one).tolist() if not isinstance(one, dict) else str(one) for one in seen]


def through_a_file(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def settings(env: Any) -> str:
    """Return what all layers of an env hold, but for what gymnasium keeps when it is asked for a spec."""
    layers = [vars(env.envs[0]), vars(env.envs[0].unwrapped)]
    return str([{key: one for key, one in held.items() if key != "_cached_spec"} for held in layers])


def check_continues(first: VectorEnv, second: VectorEnv, before: int = 23, steps: int = 60) -> None:
    """Play, put the second envs where the first are, and see the same in both."""
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    play(one, before)
    play(other, 5)
    load_env_state(second, through_a_file(env_state(first)))
    other.load_state_dict(one.state_dict())
    assert play(one, steps) == play(other, steps)
    first.close()
    second.close()


@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "FrozenLake-v1"],
)
def test_gymnasium_envs_continue_from_a_saved_state(env: str, autoreset: AutoresetName) -> None:
    check_continues(make(env, (), autoreset), make(env, (), autoreset, seed=2))


@pytest.mark.parametrize("env", [ChainEnv, CountingEnv, BanditEnv, TargetEnv, HybridTargetEnv, XorEnv])
def test_toy_envs_continue_from_a_saved_state(env: Any) -> None:
    check_continues(make(env), make(env, seed=2))


@pytest.mark.parametrize(
    "wrap",
    [
        FaultBarrier,
        Pausable,
        Asked,
        wrappers.RecordEpisodeStatistics,
        wrappers.TimeAwareObservation,
        RunningNormalisation,
        lambda env: wrappers.FrameStackObservation(env, 3),
        lambda env: wrappers.DelayObservation(env, 2),
        lambda env: wrappers.StickyAction(env, 0.5),
        lambda env: wrappers.TransformReward(env, lambda reward: 2 * float(reward)),
    ],
)
def test_wrappers_continue_from_a_saved_state(wrap: Wrap) -> None:
    check_continues(make("CartPole-v1", (wrap,)), make("CartPole-v1", (wrap,), seed=2))


@pytest.mark.parametrize("autoreset", MODES)
def test_normalised_rewards_continue_with_the_returns_of_running_episodes(autoreset: AutoresetName) -> None:
    first, second = (NormaliseReward(make("CartPole-v1", (), autoreset, seed), 0.9) for seed in (1, 2))
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    play(one, 23)
    second.load_state_dict(first.state_dict())
    load_env_state(second, through_a_file(env_state(first)))
    other.load_state_dict(one.state_dict())
    assert play(one, 60) == play(other, 60)


def test_a_state_is_not_moved_by_the_env_that_gave_it() -> None:
    first, second = make("CartPole-v1"), make("CartPole-v1", seed=2)
    one, other = EnvStepper(first), EnvStepper(second)
    one.reset()
    other.reset()
    state, where = env_state(first), one.state_dict()
    seen = play(one, 30)
    load_env_state(second, state)
    other.load_state_dict(where)
    assert play(other, 30) == seen


def test_a_reset_of_some_envs_alone_leaves_the_others_where_they_were_put() -> None:
    first, second = make("CartPole-v1", (), "disabled"), make("CartPole-v1", (), "disabled", seed=2)
    first.step(first.action_space.sample())
    load_env_state(second, env_state(first))
    mask = np.array([True, False, False])
    one, other = (env.reset(options={"reset_mask": mask.copy()})[0] for env in (first, second))
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("env", "wraps", "message"),
    [
        ("CartPole-v1", (Opaque,), r"CartPole-v1: Opaque.engine is a builtins.object"),
        (Composite, (), r"Composite: Composite.env is a tests.toys.envs.CountingEnv"),
    ],
)
def test_an_env_that_cannot_give_its_state_is_named_with_the_attribute(env: Any, wraps: Any, message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        env_state(make(env, wraps))


def test_a_world_of_box2d_cannot_be_written() -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(NotPlainError, match=r"LunarLander-v3: LunarLander.\w+ is a Box2D"):
        env_state(make("LunarLander-v3"))


@pytest.mark.parametrize("steps", [0, 40])
def test_native_vector_env_continues_from_a_saved_state(steps: int) -> None:
    first, second = (make_vector_env("CartPole-v1", 3, "native", seed=seed) for seed in (1, 2))
    check_continues(first, second, before=steps)


def test_native_vector_env_that_holds_more_than_plain_data_is_named_with_the_attribute() -> None:
    vector: Any = make_vector_env("CartPole-v1", 3, "native")
    vector.engine = object()
    with pytest.raises(NotPlainError, match=r"CartPole-v1: CartPoleVectorEnv.engine is a builtins.object"):
        env_state(vector)


def test_native_vector_env_with_other_arguments_begins_new_episodes() -> None:
    first, second = (make_vector_env("CartPole-v1", 3, "native", env_kwargs={"max_episode_steps": n}) for n in (50, 60))
    with pytest.raises(NotPlainError, match=r"max_episode_steps: 50.*now with.*max_episode_steps: 60"):
        load_env_state(second, env_state(first))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make("Acrobot-v1"), "was made with 3 of .CartPole-v1., {}, now with 3 of .Acrobot-v1., {}"),
        (lambda: make("CartPole-v1", (FaultBarrier,)), "the number of wrappers must be as saved, 3, got 4"),
        (
            lambda: make_vector_env("CartPole-v1", 2),
            "the number of envs must be as saved, 3 in 0 vector wrappers, got 2",
        ),
    ],
)
def test_a_state_of_other_envs_is_refused(other: Callable[[], VectorEnv], message: str) -> None:
    with pytest.raises(NotPlainError, match=message):
        load_env_state(other(), env_state(make("CartPole-v1")))


@pytest.mark.parametrize("wraps", [(), (Shares,)], ids=["one_layer", "several_layers_and_envs"])
def test_what_has_two_names_is_one_thing_again(wraps: Any) -> None:
    first, second = make(Board, wraps), make(Board, wraps, seed=2)
    actions = np.zeros(3, dtype=np.int64)
    for _ in range(3):
        first.step(actions)
    load_env_state(second, through_a_file(env_state(first)))
    boards = [env.unwrapped for env in second.envs]  # type: ignore[attr-defined]
    assert all(board.row is board.board and board.named["moves"] is board.moves for board in boards)
    assert boards[0].board is not boards[1].board
    if wraps:
        assert all(env.all is Shares.ALL for env in second.envs)  # type: ignore[attr-defined]
        assert len(Shares.ALL) == 9
        Shares.ALL.clear()
    seen = [part.tolist() for part in second.step(actions)[:2]]
    Shares.ALL.clear()
    assert seen == [part.tolist() for part in first.step(actions)[:2]]


def test_state_is_accepted_by_envs_whose_wrappers_have_moved_to_another_module() -> None:
    wraps = (FaultBarrier, Pausable)
    state = env_state(make("CartPole-v1", wraps))
    saved = state["made"][0]["envs"]
    state["made"][0]["envs"] = re.sub(
        r"lightning_ding\.[\w.]+\.(?=FaultBarrier|Pausable)", "lightning_ding.old.place.", saved
    )
    assert state["made"][0]["envs"].count("lightning_ding.old.place.") == 2
    load_env_state(make("CartPole-v1", wraps), state)
    with pytest.raises(NotPlainError, match=r"was made with"):
        load_env_state(make("CartPole-v1", (FaultBarrier, FaultBarrier)), state)


def test_mistakes_are_named() -> None:
    with pytest.raises(NotPlainError, match=r"Board: Board.row shares memory with Board: Board.board"):
        env_state(make(functools.partial(Board, is_view=True)))
    with pytest.raises(NotPlainError, match=r"Draws.random is a method of a numpy.random._generator.Generator"):
        env_state(make(Draws))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (make_vector_env("CartPole-v1"), make_vector_env("CartPole-v0"),
         "'CartPole-v1', {}.*now with.*'CartPole-v0', {}"),
        (
            make_vector_env(Board, env_kwargs={"gain": 1.0}),
            make_vector_env(Board, env_kwargs={"gain": 5.0}),
            r"gain: 1.0.*now with.*gain: 5.0",
        ),
        (
            make_vector_env(Board, wrappers=[functools.partial(Times, by=1.0)]),
            make_vector_env(Board, wrappers=[functools.partial(Times, by=2.0)]),
            r"by: 1.0.*now with.*by: 2.0",
        ),
        (
            SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=50)]),
            SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=60)]),
            r"TimeLimit was made with {max_episode_steps: 50}, now with {max_episode_steps: 60}",
        ),
        (
            SyncVectorEnv([lambda: gym.make("Pendulum-v1", g=10.0)]),
            SyncVectorEnv([lambda: gym.make("Pendulum-v1", g=9.0)]),
            r"Pendulum-v1 {g: 10.0}, now with Pendulum-v1 {g: 9.0}",
        ),
        (
            make_vector_env(Board, autoreset="same_step"),
            make_vector_env(Board, autoreset="disabled"),
            r"autoreset was made with .*SAME_STEP.*now with .*DISABLED",
        ),
    ],
)  # fmt: skip
def test_envs_that_were_created_differently_keep_their_settings(old: VectorEnv, new: VectorEnv, message: str) -> None:
    old.reset(seed=1)
    new.reset(seed=1)
    before = settings(new)
    with pytest.raises(NotPlainError, match=message):
        load_env_state(new, env_state(old))
    assert settings(new) == before


def test_envs_with_another_render_mode_continue_and_render() -> None:
    old, new = make(Board), make_vector_env(Board, 3, env_kwargs={"render_mode": "rgb_array"})
    new.reset(seed=2)
    load_env_state(new, env_state(old))
    assert [env.render_mode for env in new.envs] == ["rgb_array"] * 3  # type: ignore[attr-defined]
    assert new.envs[0].board.tolist() == old.envs[0].board.tolist()  # type: ignore[attr-defined]
