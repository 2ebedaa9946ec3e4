"""Every algorithm with its defaults learns toys with a known best return; see toys.py for budgets and exceptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightning_ding.envs.t_maze import TMazeEnv
from tests.algorithms.table import CONTINUOUS_ONLY, needs_demonstrations
from tests.algorithms.toys import (
    CHOICE,
    CUE,
    GOALS,
    NAMES,
    NEVER_OCCURS,
    OFFLINE,
    PARTS,
    TARGET,
    TOYS,
    Run,
    runs_of,
    train,
)
from tests.conftest import MakeTrainer
from tests.learning_seeds import assert_reached, learning_seed
from tests.toys.bandits import BanditEnv, TargetEnv, XorEnv
from tests.toys.datasets import steps_in
from tests.toys.envs import OneSideEnv
from tests.toys.goals import ReachEnv
from tests.toys.memory import CueEnv

pytestmark = pytest.mark.learns

BIT_FLIP = "lightning_ding.envs.bit_flip.BitFlipEnv"


@pytest.mark.parametrize("toy", TOYS)
def test_every_toy_names_every_algorithm_and_says_why_it_differs_from_the_defaults(toy: str) -> None:
    assert set(TOYS[toy]) == set(NAMES)
    for run in TOYS[toy].values():
        assert run if isinstance(run, str) else bool(run.changes) == bool(run.why)


def returned(make_trainer: MakeTrainer, name: str, env: Any, run: Run, data: Any = None, **env_kwargs: Any) -> float:
    """Return the mean return of greedy episodes after learning."""
    trained = train(make_trainer, name, env, run, learning_seed(), data, **env_kwargs)
    (after,) = make_trainer().test(*trained, verbose=False)
    return float(after["test/return_mean"])


def steps_for(name: str, env: Any) -> Any:
    """Return what an algorithm learns from beside its own steps: those of the best policy if it imitates, or any."""
    if name == "bc" or needs_demonstrations(name):
        return steps_in(env, lambda: env.best_action, 400)
    env.action_space.seed(learning_seed())
    return steps_in(env, lambda: draw_action(env), 2000) if name in OFFLINE else None


def draw_action(env: Any) -> Any:
    """Return a random action that no mask forbids."""
    return env.action_space.sample(env.legal_actions if isinstance(env, BanditEnv) else None)


@pytest.mark.parametrize("with_mask", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["free", "masked"])
@pytest.mark.parametrize(("name", "run"), runs_of(CHOICE))
def test_it_learns_which_action_a_context_calls_for(
    name: str, run: Run, with_mask: bool, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    env = BanditEnv(with_mask=with_mask)
    value = returned(make_trainer, name, BanditEnv, run, steps_for(name, env), with_mask=with_mask)
    assert_reached(request, value, env.best_return - 0.05)


@pytest.mark.parametrize(("name", "run"), runs_of(TARGET))
def test_it_learns_where_a_target_is(
    name: str, run: Run, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    env = TargetEnv()
    value = returned(make_trainer, name, TargetEnv, run, steps_for(name, env))
    assert env.constant_return < env.best_return - 0.08
    assert_reached(request, value, env.best_return - 0.04)


@pytest.mark.parametrize(("name", "run"), runs_of(PARTS))
def test_it_learns_what_two_entries_of_an_observation_say_together(
    name: str, run: Run, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    env = XorEnv(continuous=name in CONTINUOUS_ONLY)
    value = returned(make_trainer, name, XorEnv, run, steps_for(name, env), continuous=env.continuous)
    assert env.separable_return < 0.8
    assert_reached(request, value, 0.9 * env.best_return)


@pytest.mark.parametrize("env", [CueEnv, TMazeEnv])
@pytest.mark.parametrize(("name", "run"), runs_of(CUE))
def test_it_remembers_the_first_observation(
    name: str, run: Run, env: Any, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    assert_reached(request, returned(make_trainer, name, env, run, length=5), 0.9)  # by chance, 0


@pytest.mark.parametrize(("name", "run"), runs_of(GOALS))
def test_it_reaches_goals_with_hindsight(
    name: str, run: Run, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    if name not in CONTINUOUS_ONLY:  # 5 of 31 goals are one flip away, so chance is at about 0.15
        assert_reached(request, returned(make_trainer, name, BIT_FLIP, run, n_bits=5), 0.7)
    else:
        assert_reached(request, returned(make_trainer, name, ReachEnv, run), -10.0)  # by chance, about -19


@pytest.mark.parametrize(("name", "run"), runs_of(NEVER_OCCURS))
def test_it_takes_no_action_that_never_occurs_in_the_data(
    name: str, run: Run, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    # all that the data show costs 1, so what they do not show looks better to values that generalise
    env = OneSideEnv(continuous=name in CONTINUOUS_ONLY)
    data = steps_in(env, lambda: env.best_action, 2000)
    data["reward"] = np.full_like(data["reward"], -1.0)
    value = returned(make_trainer, name, OneSideEnv, run, data, continuous=env.continuous)
    assert_reached(request, value, 0.95)  # by chance, 0.5
