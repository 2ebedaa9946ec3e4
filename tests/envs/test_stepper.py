"""The stepper: the three autoreset modes look the same, and nothing that is not finite gets through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding import nested
from lightning_ding.envs import EnvStepper, Timestep, make_vector_env
from tests.toys.envs import CountingEnv

Transition = tuple[list[int], float, list[int], bool, bool]  # obs, reward, next_obs, terminated, truncated

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
LENGTHS = [(1,), (2, 4), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2
TRUNCATES = [(True, False), (False,), (False, True)]


def counting_envs(mode: AutoresetMode, parallel: bool = False) -> VectorEnv:
    makers = [functools.partial(CountingEnv, i, LENGTHS[i], TRUNCATES[i]) for i in range(3)]
    return (AsyncVectorEnv if parallel else SyncVectorEnv)(makers, autoreset_mode=mode)


def expected_transitions(number: int, amount: int) -> list[Transition]:
    """Return the first transitions of an env of ``counting_envs``, from the definition of CountingEnv."""
    transitions: list[Transition] = []
    for episode in range(amount):  # more than enough: each has at least one step
        length = LENGTHS[number][episode % len(LENGTHS[number])]
        is_cut = TRUNCATES[number][episode % len(TRUNCATES[number])]
        for step in range(length):
            obs, next_obs = [number, episode, step], [number, episode, step + 1]
            ended = step + 1 == length
            transitions.append((obs, step + 1.0, next_obs, ended and not is_cut, ended and is_cut))
    return transitions[:amount]


def run(stepper: EnvStepper, steps: int) -> list[list[Transition]]:
    """Return the transitions of each env."""
    transitions: list[list[Transition]] = [[] for _ in range(stepper.env.num_envs)]
    stepper.reset()
    for _ in range(steps):
        obs = stepper.obs
        step = stepper.step(np.zeros(stepper.env.num_envs, dtype=np.int64))
        for i in np.flatnonzero(step.valid):
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            transitions[i].append((obs[i].tolist(), float(step.reward[i]), step.next_obs[i].tolist(), *ends))
    return transitions


def step_zeros(stepper: EnvStepper) -> Timestep:
    return stepper.step(np.zeros(stepper.env.num_envs, dtype=np.int64))


@pytest.mark.parametrize("parallel", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_env_stepper_gives_the_same_transitions_in_every_autoreset_mode(mode: AutoresetMode, parallel: bool) -> None:
    env = counting_envs(mode, parallel)

    transitions = run(EnvStepper(env), steps=30)
    env.close()

    for number in range(3):
        amount = len(transitions[number])
        assert amount >= 15
        assert transitions[number] == expected_transitions(number, amount)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_env_stepper_makes_every_step_a_transition_unless_resets_take_one(mode: AutoresetMode) -> None:
    transitions = run(EnvStepper(counting_envs(mode)), steps=30)

    assert [len(of_env) for of_env in transitions] == [30, 30, 30]


def test_env_stepper_marks_the_steps_that_only_reset_as_not_valid() -> None:
    stepper = EnvStepper(counting_envs(AutoresetMode.NEXT_STEP))
    stepper.reset()

    valid = np.stack([step_zeros(stepper).valid for _ in range(8)])

    # Episodes of 1, of 2 and 4, of 5 and 3 steps; each is followed by one reset.
    assert valid[:, 0].tolist() == [True, False, True, False, True, False, True, False]
    assert valid[:, 1].tolist() == [True, True, False, True, True, True, True, False]
    assert valid[:, 2].tolist() == [True, True, True, True, True, False, True, True]


def test_env_stepper_forgets_a_reset_that_was_due_when_it_is_reset_itself() -> None:
    stepper = EnvStepper(counting_envs(AutoresetMode.NEXT_STEP))
    stepper.reset()
    step_zeros(stepper)  # ends the episode of env 0

    stepper.reset()

    assert step_zeros(stepper).valid.tolist() == [True, True, True]


@pytest.mark.parametrize("mode", MODES)
def test_env_stepper_returns_the_final_observation_and_continues_from_the_first_one(mode: AutoresetMode) -> None:
    stepper = EnvStepper(counting_envs(mode))
    stepper.reset()

    step = step_zeros(stepper)
    if mode == AutoresetMode.NEXT_STEP:
        step_zeros(stepper)

    assert step.next_obs[0].tolist() == [0, 0, 1]  # env 0, episode 0, after its only step
    assert stepper.obs[0].tolist() == [0, 1, 0]  # env 0, episode 1, before its first step


def place_and_half(obs: Any) -> dict[str, Any]:
    return {"place": obs, "nested": {"half": obs[2:] / 2}}


def dict_envs(mode: AutoresetMode) -> VectorEnv:
    box = gym.spaces.Box(0.0, np.inf, (3,), np.float32)
    space = gym.spaces.Dict({"place": box, "nested": gym.spaces.Dict({"half": gym.spaces.Box(0.0, np.inf, (1,))})})

    def make(number: int) -> gym.Env[Any, Any]:
        env = CountingEnv(number, LENGTHS[number], TRUNCATES[number])
        return gym.wrappers.TransformObservation(env, place_and_half, space)

    return SyncVectorEnv([functools.partial(make, i) for i in range(3)], autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_env_stepper_treats_the_leaves_of_dict_observations_like_arrays(mode: AutoresetMode) -> None:
    stepper, plain = EnvStepper(dict_envs(mode)), EnvStepper(counting_envs(mode))
    stepper.reset()
    plain.reset()
    for _ in range(12):
        step, expected = step_zeros(stepper), step_zeros(plain)

        for obs, plain_obs in [(step.next_obs, expected.next_obs), (stepper.obs, plain.obs)]:
            np.testing.assert_array_equal(obs["place"], plain_obs)
            np.testing.assert_array_equal(obs["nested"]["half"], plain_obs[:, 2:] / 2)


class SeedEnv(gym.Env[Any, Any]):
    """Shows the seed of its last reset, -1 for none; episodes end after ``length`` steps."""

    def __init__(self, length: int) -> None:
        self.observation_space = gym.spaces.Box(-1, 1000, (1,), np.int64)
        self.action_space = gym.spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.shown, self.steps = -1 if seed is None else seed, 0
        return np.array([self.shown]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.array([self.shown]), 0.0, self.steps == self.length, False, {}


def seed_envs(mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([functools.partial(SeedEnv, length) for length in (1, 2)], autoreset_mode=mode)


def test_env_stepper_seeds_the_reset_of_an_ended_env_and_of_no_other() -> None:
    stepper = EnvStepper(seed_envs(AutoresetMode.DISABLED))
    stepper.reset([10, 20])
    stepper.next_seed = [11, 21]

    step_zeros(stepper)

    assert stepper.obs[:, 0].tolist() == [11, 20]  # env 1 is in its first episode still


def test_env_stepper_resets_without_a_seed_where_none_is_due() -> None:
    stepper = EnvStepper(seed_envs(AutoresetMode.DISABLED))
    stepper.reset([10, 20])

    step_zeros(stepper)

    assert stepper.obs[:, 0].tolist() == [-1, 20]


def test_env_stepper_seeds_first_episodes_in_every_mode() -> None:
    first = [EnvStepper(seed_envs(mode)).reset([10, None])[:, 0].tolist() for mode in MODES]

    assert first == [[10, -1]] * 3


def test_env_stepper_seeds_a_native_env_with_the_first_seed_there_is() -> None:
    """A native env has one stream, so gymnasium allows it one seed only."""
    env = make_vector_env("CartPole-v1", num_envs=2, mode="native")

    by_list = EnvStepper(env).reset([None, 7])

    np.testing.assert_array_equal(by_list, env.reset(seed=7)[0])


def test_env_stepper_needs_to_know_the_autoreset_mode() -> None:
    env = counting_envs(AutoresetMode.SAME_STEP)
    env.metadata = {}

    with pytest.raises(ValueError, match=r"env\.metadata\['autoreset_mode'\] must be an AutoresetMode, got None"):
        EnvStepper(env)


class PoisonedEnv(CountingEnv):
    """A CountingEnv whose observation or reward turns bad at a place (episode, step)."""

    def __init__(self, number: int, place: tuple[int, int], bad_obs: float = 0.0, bad_reward: float = 0.0) -> None:
        super().__init__(number, lengths=(2,))
        self.place, self.bad_obs, self.bad_reward = place, bad_obs, bad_reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        return self.poison(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return self.poison(obs), reward + (self.bad_reward if self.is_there() else 0), *rest

    def is_there(self) -> bool:
        return (self._episode, self._step) == self.place

    def poison(self, obs: Any) -> Any:
        return obs + np.float32(self.bad_obs) if self.is_there() else obs


def poisoned(mode: AutoresetMode, **poison: Any) -> EnvStepper:
    """Return a stepper of three envs, of which the second is poisoned."""
    makers: Sequence[Callable[[], gym.Env[Any, Any]]] = [
        functools.partial(CountingEnv, 0, (2,)),
        functools.partial(PoisonedEnv, 1, **poison),
        functools.partial(CountingEnv, 2, (2,)),
    ]
    return EnvStepper(SyncVectorEnv(makers, autoreset_mode=mode))


@pytest.fixture(params=MODES)
def each_mode(request: pytest.FixtureRequest) -> Iterator[AutoresetMode]:
    return request.param  # type: ignore[no-any-return]


def run_poisoned(stepper: EnvStepper) -> None:
    stepper.reset()
    for _ in range(6):
        stepper.step(np.array([0, 3, 0]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_env_stepper_names_the_env_of_a_non_finite_observation(each_mode: AutoresetMode, value: float) -> None:
    stepper = poisoned(each_mode, place=(1, 1), bad_obs=value)

    with pytest.raises(ValueError, match="env 1 gave an observation that is not finite after action 3"):
        run_poisoned(stepper)


class DoubleEnv(PoisonedEnv):
    """A PoisonedEnv whose observations are float64."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shape = self.observation_space.shape
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float64)  # type: ignore[arg-type]

    def poison(self, obs: Any) -> Any:
        return obs.astype(np.float64) + (self.bad_obs if self.is_there() else 0.0)


@pytest.mark.parametrize("value", [1e39, -1e200])
def test_env_stepper_refuses_a_reward_that_would_be_infinite_as_float32(value: float) -> None:
    stepper = poisoned(AutoresetMode.SAME_STEP, place=(1, 1), bad_reward=value)

    with pytest.raises(ValueError, match=r"env 1 gave a reward that is too large for float32.*3\.40e\+38.* action 3"):
        run_poisoned(stepper)


@pytest.mark.parametrize("value", [1e39, -1e200, np.nan, np.inf])
def test_env_stepper_refuses_an_observation_that_would_not_be_finite_as_float32(value: float) -> None:
    stepper = EnvStepper(SyncVectorEnv([functools.partial(DoubleEnv, 0, place=(0, 1), bad_obs=value)]))
    stepper.reset()

    with pytest.raises(ValueError, match=r"env 0 gave an observation that is (too large for float32|not finite)"):
        stepper.step(np.array([0]))


def test_env_stepper_accepts_the_largest_float32() -> None:
    largest = float(np.finfo(np.float32).max)
    stepper = EnvStepper(SyncVectorEnv([functools.partial(DoubleEnv, 0, place=(0, 1), bad_obs=-largest)]))
    stepper.reset()

    assert stepper.step(np.array([0])).next_obs.min() == -largest


def test_mistakes_are_named(each_mode: AutoresetMode) -> None:
    stepper = poisoned(each_mode, place=(1, 1), bad_reward=np.nan)
    with pytest.raises(ValueError, match="env 1 gave a reward that is not finite after action 3: nan"):
        run_poisoned(stepper)
    stepper = poisoned(each_mode, place=(0, 2), bad_obs=np.nan)
    with pytest.raises(ValueError, match="env 1 gave an observation that is not finite"):
        run_poisoned(stepper)
    stepper = poisoned(each_mode, place=(0, 0), bad_obs=np.nan)
    with pytest.raises(ValueError, match="env 1 gave an observation that is not finite after reset"):
        stepper.reset()
    stepper = poisoned(each_mode, place=(1, 0), bad_obs=np.nan)
    with pytest.raises(ValueError, match="env 1 gave an observation that is not finite"):
        run_poisoned(stepper)


def test_env_stepper_accepts_integers_unchecked() -> None:
    stepper = EnvStepper(seed_envs(AutoresetMode.SAME_STEP))

    assert nested.leaves(stepper.reset())[0].dtype == np.int64


class HundredfoldEnv(CountingEnv):
    """Multiplies the action in place, as an env that scales it does."""

    action_space: Any = gym.spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 100
        return super().step(action)


class HundredfoldVectorEnv(SyncVectorEnv):
    """A vector env that does this itself."""

    def step(self, actions: Any) -> Any:
        actions *= 100
        return super().step(actions)


@pytest.mark.parametrize("vector_class", [SyncVectorEnv, HundredfoldVectorEnv, None])
def test_env_that_changes_its_action_does_not_change_that_of_the_caller(vector_class: Any) -> None:
    envs = vector_class([HundredfoldEnv]) if vector_class else make_vector_env(HundredfoldEnv, 2)
    stepper = EnvStepper(envs)
    stepper.reset()
    action = np.full((envs.num_envs, 2), 0.5, np.float32)
    stepper.step(action)
    assert (action == 0.5).all()


class SuccessEnv(CountingEnv):
    """A CountingEnv that succeeds in its odd episodes, and says so with the first observation too."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        return obs, {"is_success": 7.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *answer, info = super().step(action)
        return *answer, {**info, "is_success": self._episode % 2 == 1}  # type: ignore[return-value]


def test_success_is_that_of_the_last_step_of_an_episode(each_mode: AutoresetMode) -> None:
    makers: Sequence[Callable[[], gym.Env[Any, Any]]] = [
        functools.partial(SuccessEnv, 0, (2,)),
        functools.partial(CountingEnv, 1, (2,)),
    ]
    stepper = EnvStepper(SyncVectorEnv(makers, autoreset_mode=each_mode))
    stepper.reset()
    found = []
    for _ in range(12):
        step = stepper.step(np.zeros(2, np.int64))
        if (step.terminated | step.truncated)[0]:
            found.append(step.number("is_success").tolist())

    assert [one[0] for one in found[:4]] == [0.0, 1.0, 0.0, 1.0]
    assert all(np.isnan(one[1]) for one in found)


@pytest.mark.parametrize(
    ("value", "expected"), [(["yes", "no"], None), ([None, True], [np.nan, 1.0]), ([[0], [1]], [0.0, 1.0])]
)
def test_success_that_is_no_number_is_left_out(value: Any, expected: Any) -> None:
    nothing = np.zeros(2, bool)
    step = Timestep(None, np.zeros(2), nothing, nothing, {"is_success": np.array(value)}, ~nothing, nothing)
    np.testing.assert_array_equal(step.number("is_success"), [np.nan] * 2 if expected is None else expected)


def test_text_of_numpy_in_an_info_is_no_number() -> None:
    info = {"end": np.array([np.str_("won"), np.float32(2.0)], dtype=object)}
    none = np.zeros(2, dtype=bool)
    timestep = Timestep(None, np.zeros(2), none, none, info, ~none, none)
    assert np.isnan(timestep.number("end")).tolist() == [True, False]
