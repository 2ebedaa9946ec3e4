"""Normalisation: statistics of exactly what was seen, alike in every autoreset mode and on every rank."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import EnvStepper, NormaliseObservation, NormaliseReward, Pausable, RunningStatistics
from lightning_ding.policy.random import random_collect_mode
from lightning_ding.worker import SampleSerialCollector
from tests.processes import run_two_ranks
from tests.toys.envs import CountingEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]
LENGTHS = [(1,), (2, 4), (5, 3, 1)]  # lengths of the episodes of env 0, 1, 2
TRUNCATES = [(True, False), (False,), (False, True)]


def counting_envs(mode: AutoresetMode, lengths: list[tuple[int, ...]] = LENGTHS) -> VectorEnv:
    makers = [functools.partial(CountingEnv, i, of_env, TRUNCATES[i]) for i, of_env in enumerate(lengths)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def seen_by(number: int, amount: int, lengths: list[tuple[int, ...]] = LENGTHS) -> list[list[int]]:
    """Return the first observations of an env, the first and final ones of each episode among them, by definition."""
    episodes = [(episode, lengths[number][episode % len(lengths[number])]) for episode in range(amount)]
    rows = [[number, episode, step] for episode, length in episodes for step in range(length + 1)]
    return rows[:amount]


def returns_of(number: int, amount: int, gamma: float) -> list[float]:
    """Return the discounted returns of the first steps of an env; step t of an episode gives the reward t."""
    values: list[float] = []
    for episode in range(amount):
        value = 0.0
        for step in range(1, LENGTHS[number][episode % len(LENGTHS[number])] + 1):
            value = gamma * value + step
            values.append(value)
    return values[:amount]


def run(env: VectorEnv, steps: int) -> list[list[Any]]:
    """Return the transitions of each env through an EnvStepper, as they are, to the last bit."""
    stepper = EnvStepper(env)
    transitions: list[list[Any]] = [[] for _ in range(env.num_envs)]
    stepper.reset()
    for _ in range(steps):
        obs = stepper.obs
        step = stepper.step(np.zeros(env.num_envs, dtype=np.int64))
        for i in np.flatnonzero(step.valid):
            ends = bool(step.terminated[i]), bool(step.truncated[i])
            transitions[i].append((obs[i].tolist(), float(step.reward[i]), step.next_obs[i].tolist(), *ends))
    return transitions


def both(env: VectorEnv, **kwargs: Any) -> NormaliseReward:
    return NormaliseReward(NormaliseObservation(env, **kwargs), discount_factor=0.9)


# ---------------------------------------------------------------------- statistics


def test_statistics_of_batches_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(1e3, 0.1, (100, 3))  # far from zero, where sums of squares would cancel
    statistics = RunningStatistics((3,))
    for part in np.split(rows, [1, 1, 50, 93]):
        statistics.update(part)

    assert statistics.count == 100
    np.testing.assert_allclose(statistics.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, rows.var(0), rtol=1e-9)


def test_statistics_of_float32_are_summed_in_float64() -> None:
    rows = np.full((4096, 1), 0.1, np.float32)
    statistics = RunningStatistics((1,))
    statistics.update(rows)

    assert statistics.mean[0] == pytest.approx(float(np.float32(0.1)), rel=1e-14)
    assert statistics.variance[0] < 1e-28


def test_statistics_of_nothing_change_nothing() -> None:
    statistics = RunningStatistics((2,))
    statistics.update(np.zeros((0, 2)))
    statistics.merge_over_ranks()

    assert (statistics.count, statistics.mean.tolist(), statistics.variance.tolist()) == (0, [0, 0], [1, 1])


# ---------------------------------------------------------------------- observations


@pytest.mark.parametrize("mode", MODES)
def test_observations_count_once_each_with_first_and_final_ones(mode: AutoresetMode) -> None:
    env = NormaliseObservation(counting_envs(mode))
    transitions = run(env, steps=20)

    # Env 0's episodes have one step, so after 20 steps it has shown 2 * 20 + 1 observations, and so on, but that a
    # step that resets may be still to come.
    amounts = []
    for of_env in transitions:
        ends = sum(step[3] or step[4] for step in of_env)
        is_due = mode == AutoresetMode.NEXT_STEP and len(of_env) + ends > 20
        amounts.append(1 + len(of_env) + ends - is_due)
    expected = np.array([row for number in range(3) for row in seen_by(number, amounts[number])], dtype=float)
    assert isinstance(env.statistics, RunningStatistics)
    assert env.statistics.count == len(expected)
    np.testing.assert_allclose(env.statistics.mean, expected.mean(0), rtol=1e-12)
    np.testing.assert_allclose(env.statistics.variance, expected.var(0), rtol=1e-12)


def test_normalised_observation_has_mean_zero_and_deviation_one_by_hand() -> None:
    env = NormaliseObservation(counting_envs(AutoresetMode.SAME_STEP, [(4,), (4,)]))

    first, _ = env.reset()
    second = env.step(np.zeros(2, dtype=np.int64))[0]

    # Numbers 0 and 1: mean 1/2, deviation 1/2. Steps: 0, 0, 1, 1, so 1 is (1 - 1/2) / (1/2) = 1 after the first step.
    np.testing.assert_allclose(first, [[-1, 0, 0], [1, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(second, [[-1, 0, 1], [1, 0, 1]], rtol=1e-6)
    assert second.dtype == np.float32


def test_three_autoreset_modes_normalise_alike_with_frozen_statistics() -> None:
    trained = both(counting_envs(AutoresetMode.SAME_STEP))
    run(trained, steps=20)
    results = []
    for mode in MODES:
        env = NormaliseObservation(counting_envs(mode), statistics=trained.env.statistics)  # type: ignore[attr-defined]
        results.append(run(NormaliseReward(env, 0.9, statistics=trained.statistics), steps=20))

    for number in range(3):
        amount = min(len(result[number]) for result in results)
        assert amount >= 10
        assert results[0][number][:amount] == results[1][number][:amount] == results[2][number][:amount]


@pytest.mark.parametrize("lengths", [[(2, 4)], [(3, 1, 2)] * 3])
def test_three_autoreset_modes_give_the_same_bits_while_training(lengths: list[tuple[int, ...]]) -> None:
    """With one env, or episodes that end together, the order of what is seen is the same too."""
    results = [run(both(counting_envs(mode, lengths)), steps=30) for mode in MODES]

    for number in range(len(lengths)):
        amount = min(len(result[number]) for result in results)
        assert amount >= 20
        assert results[0][number][:amount] == results[1][number][:amount] == results[2][number][:amount]


def test_two_modes_that_reset_at_once_give_the_same_bits_with_uneven_episodes() -> None:
    same_step, disabled = (both(counting_envs(mode)) for mode in (MODES[0], MODES[2]))

    assert run(same_step, steps=30) == run(disabled, steps=30)
    assert str(same_step.env.state_dict()) == str(disabled.env.state_dict())  # type: ignore[attr-defined]
    assert str(same_step.state_dict()) == str(disabled.state_dict())


def test_clip_bounds_observations_and_their_space() -> None:
    env = NormaliseObservation(counting_envs(AutoresetMode.SAME_STEP), clip=0.5)
    obs, _ = env.reset()

    assert obs[:, 0].tolist() == [-0.5, 0.0, 0.5]
    assert (env.single_observation_space.high == 0.5).all()  # type: ignore[attr-defined]
    assert env.observation_space.contains(obs)


def test_epsilon_is_added_to_the_variance() -> None:
    env = NormaliseObservation(counting_envs(AutoresetMode.SAME_STEP, [(4,), (4,)]), epsilon=2.0)
    obs, _ = env.reset()

    assert obs[1, 0] == pytest.approx(0.5 / 1.5)  # (1 - 1/2) / sqrt(1/4 + 2)


class MixedEnv(CountingEnv):
    """Shows numbers, picture and mask."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        mask = gym.spaces.Box(0.0, 1.0, (4,), np.float32)
        picture = gym.spaces.Box(0, 255, (2,), np.uint8)
        inner = gym.spaces.Dict({"place": self.observation_space, "picture": picture})
        self.observation_space = gym.spaces.Dict({"inner": inner, "action_mask": mask})  # type: ignore[assignment]

    def _observe(self) -> Any:
        picture = np.full(2, 7 + self._step, np.uint8)
        return {"inner": {"place": super()._observe(), "picture": picture}, "action_mask": np.ones(4, np.float32)}


@pytest.mark.parametrize("mode", MODES)
def test_dict_observations_are_normalised_but_for_masks_and_integers(mode: AutoresetMode) -> None:
    makers = [functools.partial(MixedEnv, i) for i in range(3)]
    env = NormaliseObservation(SyncVectorEnv(makers, autoreset_mode=mode))
    plain = NormaliseObservation(counting_envs(mode, [(3,)] * 3))
    mixed_stepper, stepper = EnvStepper(env), EnvStepper(plain)
    mixed_stepper.reset()
    stepper.reset()

    for _ in range(5):
        mixed, step = (one.step(np.zeros(3, dtype=np.int64)) for one in (mixed_stepper, stepper))
        np.testing.assert_array_equal(mixed.next_obs["inner"]["place"], step.next_obs)
        np.testing.assert_array_equal(mixed_stepper.obs["inner"]["place"], stepper.obs)
        assert mixed.next_obs["inner"]["picture"].dtype == np.uint8
        assert mixed.next_obs["inner"]["picture"].min() >= 7
        assert (mixed.next_obs["action_mask"] == 1).all()
        assert env.observation_space.contains(mixed_stepper.obs)
    assert list(env.state_dict()["inner"]) == ["place"]
    assert env.state_dict()["inner"]["place"]["count"] == plain.state_dict()["count"]


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3), gym.spaces.Dict({"action_mask": gym.spaces.Box(0, 1, (2,))})]
)
def test_observations_without_a_number_to_normalise_are_refused(space: gym.Space[Any]) -> None:
    env = counting_envs(AutoresetMode.SAME_STEP)
    env.single_observation_space = space

    with pytest.raises(ValueError, match=r"env\.single_observation_space must be a Box of floats, or a Dict with one"):
        NormaliseObservation(env)


@pytest.mark.parametrize("name", ["clip", "epsilon"])
def test_arguments_out_of_range_are_refused(name: str) -> None:
    env = counting_envs(AutoresetMode.SAME_STEP)
    bad: dict[str, Any] = {name: 0.0}
    with pytest.raises(ValueError, match=f"{name} must be > 0, got 0"):
        NormaliseObservation(env, **bad)
    with pytest.raises(ValueError, match=f"{name} must be > 0, got 0"):
        NormaliseReward(env, 0.9, **bad)
    with pytest.raises(ValueError, match=r"discount_factor must be in \[0, 1\], got 1.5"):
        NormaliseReward(env, 1.5)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"mean must be of shape \(3,\), got \(2,\)"):
        RunningStatistics((3,)).load_state_dict(RunningStatistics((2,)).state_dict())
    with pytest.raises(ValueError, match=r"statistics must be of the shapes \(3,\), got \(2,\)"):
        NormaliseObservation(counting_envs(MODES[0]), statistics=RunningStatistics((2,)))


def test_evaluation_reads_the_statistics_of_training_and_changes_none() -> None:
    trained = NormaliseObservation(counting_envs(AutoresetMode.SAME_STEP))
    run(trained, steps=5)
    before = str(trained.state_dict())
    evaluated = NormaliseObservation(counting_envs(AutoresetMode.DISABLED), statistics=trained.statistics)

    run(evaluated, steps=20)
    assert str(trained.state_dict()) == before
    assert evaluated.training is False
    first = evaluated.reset()[0]
    run(trained, steps=5)
    assert (evaluated.reset()[0] != first).any()  # they are the same statistics, not a copy


def test_training_can_be_turned_off_and_on() -> None:
    env = both(counting_envs(AutoresetMode.SAME_STEP))
    run(env, steps=3)
    before = str((env.state_dict(), env.env.state_dict()))  # type: ignore[attr-defined]

    env.training = env.env.training = False  # type: ignore[attr-defined]
    run(env, steps=3)
    assert str((env.state_dict(), env.env.state_dict())) == before  # type: ignore[attr-defined]
    env.training = True
    run(env, steps=3)
    assert str((env.state_dict(), env.env.state_dict())) != before  # type: ignore[attr-defined]


def test_restored_statistics_continue_with_the_same_bits(tmp_path: Path) -> None:
    env, other = (both(counting_envs(AutoresetMode.SAME_STEP)) for _ in range(2))
    run(env, steps=7)
    torch.save({"reward": env.state_dict(), "obs": env.env.state_dict()}, tmp_path / "state.pt")  # type: ignore[attr-defined]

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    other.load_state_dict(state["reward"])
    other.env.load_state_dict(state["obs"])  # type: ignore[attr-defined]
    for one in (env, other):
        one.env.env = counting_envs(AutoresetMode.SAME_STEP)  # type: ignore[attr-defined]
    assert run(env, steps=9) == run(other, steps=9)


# ---------------------------------------------------------------------- rewards


@pytest.mark.parametrize("mode", MODES)
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(mode: AutoresetMode) -> None:
    env = NormaliseReward(counting_envs(mode), discount_factor=0.9)
    transitions = run(env, steps=20)

    values = [value for number in range(3) for value in returns_of(number, len(transitions[number]), 0.9)]
    assert env.statistics.count == len(values)  # no step that only reset an env
    assert env.statistics.variance == pytest.approx(np.var(values), rel=1e-12)
    env.training = False
    env.reset()
    reward = env.step(np.zeros(3, dtype=np.int64))[1]
    np.testing.assert_allclose(reward, 1 / np.std(values), rtol=1e-6)


def test_reward_keeps_its_sign_and_its_raw_value() -> None:
    env = NormaliseReward(counting_envs(AutoresetMode.SAME_STEP, [(9,), (9,)]), discount_factor=0.5, clip=2.5)
    env.reset()
    rewards, raw = [], []
    for _ in range(3):
        _, reward, _, _, info = env.step(np.zeros(2, dtype=np.int64))
        rewards.append(reward[0])
        raw.append(info["raw_reward"].tolist())

    # Returns 1, 2.5, 4.25, twice each: deviations 0, 0.75, and sqrt((1.583^2 + 0.083^2 + 1.667^2) / 3) = 1.32812.
    assert raw == [[1, 1], [2, 2], [3, 3]]
    assert rewards == pytest.approx([2.5, 2.5, 3 / 1.3281146], rel=1e-5)  # the first two are clipped


@pytest.mark.parametrize("mode", MODES)
def test_collectors_report_raw_returns(mode: AutoresetMode) -> None:
    env = both(counting_envs(mode))
    collector = SampleSerialCollector({}, env, random_collect_mode(env.single_action_space))
    collector.collect(60)
    returns, lengths = collector.pop_episodes()

    assert len(returns) >= 10
    assert returns == [length * (length + 1) / 2 for length in lengths]


# ---------------------------------------------------------------------- what is no part of an episode


class FaultyEnv(CountingEnv):
    """Reports a fault with rubbish in its third step, once."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if (self._episode, self._step) == (0, 3):
            return obs * np.float32(1e6), np.nan, False, True, {"abnormal": True, "fault": "rubbish"}
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("mode", MODES)
def test_step_that_reports_a_fault_counts_nothing(mode: AutoresetMode) -> None:
    env = both(SyncVectorEnv([functools.partial(FaultyEnv, 1, (5,))], autoreset_mode=mode))
    run(env, steps=6)

    assert env.env.statistics.mean.max() < 10  # type: ignore[attr-defined]
    assert np.isfinite(env.statistics.variance)
    # Steps 1 and 2 of the first episode; then 3 of the next, or 2 where a step was spent on the reset.
    assert env.statistics.count == (4 if mode == AutoresetMode.NEXT_STEP else 5)


def test_paused_env_counts_nothing() -> None:
    makers = [functools.partial(lambda i: Pausable(CountingEnv(i, (9,))), i) for i in range(2)]
    env = both(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))
    stepper = EnvStepper(env)
    stepper.reset()

    assert stepper.pause(np.array([True, False]))
    steps = [stepper.step(np.zeros(2, dtype=np.int64)) for _ in range(4)]
    assert [step.valid.tolist() for step in steps] == [[False, True]] * 4
    assert env.statistics.count == 4
    assert env.env.statistics.count == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observation_that_is_not_finite_is_named_and_spoils_nothing(value: float) -> None:
    class Bad(CountingEnv):
        def _observe(self) -> Any:
            obs = super()._observe()
            return np.full_like(obs, value) if self._step == 2 else obs

    env = NormaliseObservation(SyncVectorEnv([Bad, CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(ValueError, match="env 0 gave an observation that is not finite"):
        run(env, steps=4)
    assert env.statistics.count == 5
    assert np.isfinite(env.statistics.variance).all()


def test_reward_that_is_infinite_is_not_hidden_by_the_clip() -> None:
    class Bad(CountingEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, _, terminated, truncated, info = super().step(action)
            return obs, np.inf, terminated, truncated, info

    env = NormaliseReward(SyncVectorEnv([Bad], autoreset_mode=AutoresetMode.SAME_STEP), 0.9)
    with pytest.raises(ValueError, match="env 0 gave a reward that is not finite"):
        run(env, steps=1)
    assert env.statistics.count == 0


# ---------------------------------------------------------------------- ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two ranks reports."""
    folder, script = tmp_path_factory.mktemp("ranks"), Path(__file__).with_name("normalise_ranks_script.py")
    run_two_ranks(script, folder)
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


def test_ranks_end_with_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["states"] == ranks[1]["states"]


def test_ranks_share_the_statistics_of_all(ranks: list[dict[str, Any]]) -> None:
    rows = np.concatenate([np.array(rank["seen"]) for rank in ranks])
    state = ranks[0]["states"][0]
    assert len(ranks[0]["seen"]) != len(ranks[1]["seen"])
    assert state["count"] == len(rows)
    np.testing.assert_allclose(state["mean"], rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(np.array(state["m2"]) / len(rows), rows.var(0), rtol=1e-12)
    assert ranks[0]["states"][1]["count"] == 75 * 2 + 150 * 3  # steps of 2 and of 3 envs
