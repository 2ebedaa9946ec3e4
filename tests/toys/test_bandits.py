"""The one-step envs give the documented rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.toys.bandits import BanditEnv, HybridTargetEnv, TargetEnv, XorEnv

MAKERS: dict[str, Callable[[], Any]] = {
    "vector": BanditEnv,
    "image": lambda: BanditEnv(observation="image"),
    "dict": lambda: BanditEnv(observation="dict"),
    "mask": lambda: BanditEnv(with_mask=True),
    "image and mask": lambda: BanditEnv(observation="image", with_mask=True),
    "dict and mask": lambda: BanditEnv(observation="dict", with_mask=True),
    "multi-discrete": lambda: BanditEnv(num_dimensions=3),
    "target": lambda: TargetEnv(num_dimensions=2, low=-3.0, high=1.0),
    "hybrid": lambda: HybridTargetEnv(num_dimensions=2),
    "xor": XorEnv,
    "continuous xor": lambda: XorEnv(continuous=True),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_env_keeps_gymnasiums_contract(name: str) -> None:
    check_env(MAKERS[name](), skip_render_check=True)


@pytest.mark.parametrize("name", MAKERS)
def test_best_action_gives_the_best_return_always(name: str) -> None:
    env = MAKERS[name]()
    env.reset(seed=0)
    for _ in range(50):
        env.reset()
        assert env.action_space.contains(env.best_action)
        assert env.step(env.best_action)[1:4] == (pytest.approx(env.best_return), True, False)


def mean_return(env: gym.Env[Any, Any], act: Callable[[Any], Any], episodes: int = 4000) -> float:
    env.reset(seed=0)
    return float(np.mean([float(env.step(act(env.reset()[0]))[1]) for _ in range(episodes)]))


@pytest.mark.parametrize(("num_actions", "num_dimensions"), [(4, 1), (2, 1), (5, 3)])
def test_random_actions_of_a_bandit_earn_random_return(num_actions: int, num_dimensions: int) -> None:
    env = BanditEnv(num_actions, num_dimensions)
    env.action_space.seed(0)
    # The deviation of a mean of 4000 is at most 0.5 / sqrt(4000) = 0.008.
    assert mean_return(env, lambda _: env.action_space.sample()) == pytest.approx(env.random_return, abs=0.03)
    assert env.random_return == 1 / num_actions


def test_allowed_actions_of_a_masked_bandit_give_a_third_of_four() -> None:
    env = BanditEnv(4, with_mask=True)
    rng = np.random.default_rng(0)
    assert mean_return(env, lambda obs: rng.choice(np.flatnonzero(obs["action_mask"]))) == pytest.approx(
        1 / 3, abs=0.03
    )


def test_bandit_forbids_one_wrong_action_that_costs_one() -> None:
    env = BanditEnv(3, with_mask=True)
    env.reset(seed=0)
    for _ in range(20):
        obs, _ = env.reset()
        (forbidden,) = np.flatnonzero(obs["action_mask"] == 0)
        assert forbidden != obs["observation"].argmax()
        assert env.step(forbidden)[1] == -1.0


def test_bandit_of_many_dimensions_pays_by_the_part() -> None:
    env = BanditEnv(4, num_dimensions=4)
    obs, _ = env.reset(seed=0)
    context = int(obs.argmax())
    right = [(context + d) % 4 for d in range(4)]

    assert env.step(np.array(right))[1] == 1.0
    assert env.step(np.array([*right[:3], context]))[1] == 0.75  # of the last part, context + 3 is right


def test_bandit_shows_its_context_as_a_bar() -> None:
    env = BanditEnv(3, observation="image")
    for seed in range(6):
        image, _ = env.reset(seed=seed)
        (column,) = np.flatnonzero(image[0].reshape(36, 3, 12).min((0, 2)))
        assert image.sum() == 255 * 36 * 12
        assert column == env.best_action


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (-1.0, 1.0), (0.0, 10.0)])
def test_target_is_half_way_from_the_middle_of_the_box_to_where_the_observation_points(low: float, high: float) -> None:
    env = TargetEnv(1, low, high)
    x, _ = env.reset(seed=3)
    middle, half = (low + high) / 2, (high - low) / 2

    assert env.best_action == pytest.approx(middle + 0.5 * x * half)
    assert env.step(env.best_action + half)[1] == pytest.approx(0.0, abs=1e-5)  # one unit off costs 1
    assert env.step(env.best_action - 2 * half)[1] == pytest.approx(-3.0, abs=1e-5)  # and two cost 4


def test_blind_actions_give_what_the_targets_say() -> None:
    # x^2 / 4 has the deviation 0.075, so the mean of 4000 one of 0.0012.
    target, hybrid = TargetEnv(1, 0.0, 4.0), HybridTargetEnv(3)
    blind = mean_return(target, lambda _: np.array([2.0], np.float32))
    typed = mean_return(hybrid, lambda obs: {"action_type": obs[:3].argmax(), "action_args": np.zeros(1, np.float32)})

    assert blind == pytest.approx(target.constant_return, abs=0.005)
    assert typed == pytest.approx(hybrid.type_only_return, abs=0.005)
    assert target.constant_return == pytest.approx(11 / 12)


@pytest.mark.parametrize("continuous", [False, True])
def test_single_entry_of_an_xor_carries_no_information(continuous: bool) -> None:
    # The deviation of a mean of 4000 is at most 1.6 / sqrt(4000) = 0.03.
    env = XorEnv(continuous)
    blind = mean_return(env, lambda obs: 0 * obs["left"] if continuous else int(obs["left"][0] > 0))
    assert blind == pytest.approx(1 - 0.8**2 if continuous else 0.5, abs=0.1)
    best_sum = mean_return(env, lambda obs: 0 * obs["left"] if continuous else int(sum(obs.values())[0] > 0))
    assert best_sum == pytest.approx(env.separable_return, abs=0.1)


def test_wrong_type_of_a_hybrid_action_costs_whatever_its_arguments() -> None:
    env = HybridTargetEnv(3, num_dimensions=2)
    env.reset(seed=0)
    best = env.best_action
    wrong = {**best, "action_type": (best["action_type"] + 1) % 3}
    off = {**best, "action_args": best["action_args"] + np.array([0.5, 0.0], np.float32)}

    assert env.step(wrong)[1] == -2.0
    assert env.step(off)[1] == pytest.approx(1 - 0.25 / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BanditEnv(1), "num_actions must be >= 2, got 1"),
        (lambda: BanditEnv(2, 0), "num_dimensions must be >= 1, got 0"),
        (lambda: BanditEnv(2, 2, with_mask=True), "with_mask must be False with num_dimensions > 1, got True"),
        (lambda: BanditEnv(observation="sound"), "observation must be vector, image or dict, got 'sound'"),  # type: ignore[arg-type]
        (lambda: TargetEnv(1, 1.0, 1.0), r"low must be < high \(1.0\), got 1.0"),
        (lambda: HybridTargetEnv(1), "num_types must be >= 2, got 1"),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
