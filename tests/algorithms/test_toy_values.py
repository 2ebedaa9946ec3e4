"""The values of every algorithm are those of toys in closed form, and stay within what the rewards allow on the way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor

from tests.algorithms.table import CONTINUOUS_ONLY, needs_demonstrations
from tests.algorithms.test_learns import chain_with_torque
from tests.algorithms.toys import BY_DEFAULT, EXACT, NAMES, OFFLINE, VALUES, Run, runs_of, train
from tests.algorithms.values import WITH_MEMORY, WITHOUT_VALUES, value_of, values_along, values_of
from tests.conftest import MakeTrainer
from tests.learning_seeds import assert_reached, learning_seed
from tests.toys.datasets import steps_in
from tests.toys.envs import ChainEnv, ConstantRewardEnv

pytestmark = pytest.mark.learns

STEP = 8
"""Step of an episode at which networks with memory are asked; only one step of 25 is the first one."""


class Watch(Callback):
    """Keep the range of the values of 64 observations, and of their mean, after each of some rounds."""

    def __init__(self, every: int) -> None:
        self.obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        self.every, self.rounds, self.largest_alpha = every, 0, 0.0
        self.single, self.mean = (math.inf, -math.inf), (math.inf, -math.inf)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Look at the values, and at the temperature of algorithms that have one."""
        self.rounds += 1
        if self.rounds % self.every == 0:
            values = values_of(pl_module, self.obs, STEP)
            self.single, self.mean = _wider(self.single, values), _wider(self.mean, values.mean(1))
            self.largest_alpha = max(self.largest_alpha, float(getattr(pl_module, "alpha", 0.0)))

    def distance_within(self, low: float, high: float) -> float:
        """Return by how much means have stayed in a range; it is negative if they have left it.

        Values that rise or fall fast do so faster for observations far from the others, since networks extrapolate.
        So a single one may be outside of the range by its width, which ends with the change.
        """
        slack = 2 + high - low
        assert low - slack < self.single[0]
        assert self.single[1] < high + slack
        return min(self.mean[0] - low, high - self.mean[1])


def _wider(known: tuple[float, float], values: Tensor) -> tuple[float, float]:
    return min(known[0], float(values.min())), max(known[1], float(values.max()))


def data_for(name: str, env: Any, size: int = 2000) -> Any:
    """Return random steps for an algorithm that learns from data or demonstrations too."""
    env.action_space.seed(learning_seed())
    return steps_in(env, env.action_space.sample, size) if name in OFFLINE or needs_demonstrations(name) else None


@pytest.mark.parametrize("toy", VALUES)
def test_every_toy_names_every_algorithm_and_says_why_it_differs_from_the_defaults(toy: str) -> None:
    assert set(VALUES[toy]) == set(NAMES)
    assert {name for name, run in VALUES[toy].items() if run == "it learns no values"} == set(WITHOUT_VALUES)
    for run in VALUES[toy].values():
        assert run if isinstance(run, str) else bool(run.changes) == bool(run.why)


# ---------------------------------------------------------------------- with defaults


def allowed(name: str, policy: Any, reward: float, largest_alpha: float) -> tuple[float, float]:
    """Return the smallest and the largest value that rewards, and the entropy if it is rewarded, allow.

    The entropy of two actions, and of an action in [-1, 1], is at most log 2; SAC leads the latter to -1.
    """
    steps = 1 / (1 - policy.config.discount_factor)
    alpha = max(largest_alpha, getattr(policy.config.learn, "alpha", 0.0) if name in ("sql", "sqil") else 0.0)
    low, high = (0.0, 1.0) if name == "sqil" else (min(reward, 0.0), max(reward, 0.0))
    lowest_entropy = -1.0 if name in CONTINUOUS_ONLY else 0.0
    return (low + alpha * lowest_entropy) * steps, (high + alpha * math.log(2)) * steps


@pytest.mark.parametrize("length", [25, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reward", [-1.0, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "run"), runs_of(BY_DEFAULT))
def test_values_of_a_constant_reward_stay_within_what_rewards_allow(
    name: str, run: Run, reward: float, length: int, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    kwargs: dict[str, Any] = {"reward": reward, "length": length, "continuous": name in CONTINUOUS_ONLY}
    watch, data = Watch(every=1 if run.amount > 3000 else 10), data_for(name, ConstantRewardEnv(**kwargs))
    num_envs = 8 if length == 25 else 1  # so that the long episodes are cut too
    seed = learning_seed()
    policy, _ = train(make_trainer, name, ConstantRewardEnv, run, seed, data, num_envs, [watch], **kwargs)
    low, high = allowed(name, policy, reward, watch.largest_alpha)
    assert_reached(request, watch.distance_within(low, high), -1 - 0.02 * (high - low))  # a network starts at up to 0.5
    learned = float(value_of(policy, watch.obs, STEP).mean())
    assert learned > 0.1 if name == "sqil" else learned * reward > 0.5  # the first reward, at least


# ---------------------------------------------------------------------- in closed form


def exact_values(name: str, policy: Any, rewards: list[float], terminate: bool = False) -> list[float]:
    """Return the values of the positions of a chain with these rewards, in which actions mean nothing.

    A reward of the entropy, which is log 2, and M-DQN's of the log probability, -log 2, are added. SQIL's rewards are 1
    in one half of the minibatch, the demonstrations, and 0 in the other.
    """
    config, now, following = policy.config, 0.0, 0.0
    if name in ("sql", "sqil", "sqn"):
        following = config.learn.alpha * math.log(2)
    elif name == "mdqn":
        now, following = -config.m_alpha * config.entropy_tau * math.log(2), config.entropy_tau * math.log(2)
    rewards = [0.5] * len(rewards) if name == "sqil" else rewards
    values = [0.0] * len(rewards)
    for _ in range(1000):
        for position, reward in reversed(list(enumerate(rewards))):
            is_end = terminate and position == len(rewards) - 1
            after = 0.0 if is_end else following + values[(position + 1) % len(rewards)]
            values[position] = reward + now + config.discount_factor * after
    return values


@pytest.mark.slow
@pytest.mark.parametrize("reward", [-1.0, 1.0])
@pytest.mark.parametrize(("name", "run"), runs_of(EXACT))
def test_values_of_a_constant_reward_end_at_its_discounted_sum(
    name: str, run: Run, reward: float, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    kwargs: dict[str, Any] = {"reward": reward, "length": 25, "continuous": name in CONTINUOUS_ONLY}
    watch, data = Watch(every=10), data_for(name, ConstantRewardEnv(**kwargs))
    run, seed = run.with_discount(0.9), learning_seed()
    policy, _ = train(make_trainer, name, ConstantRewardEnv, run, seed, data, callbacks=[watch], **kwargs)
    (expected,) = exact_values(name, policy, [reward])  # 10 and -10, but for entropy
    error = (value_of(policy, watch.obs, STEP) - expected).abs().mean()
    assert_reached(request, -float(error), -1.0)
    assert watch.distance_within(*sorted((0.0, expected))) > -1.5


ENDING = runs_of(EXACT)
CUT = runs_of({name: run for name, run in EXACT.items() if name not in WITH_MEMORY})
"""Memory shows the step, so the final observation of a time limit is another one than the equal one that is learned."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run", "terminate"),
    [pytest.param(*one.values, end, id=f"{one.id}-{end}") for end in (True, False) for one in (ENDING if end else CUT)],
)
def test_values_of_a_chain_end_with_it_and_continue_after_a_time_limit(
    name: str, run: Run, terminate: bool, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    env: Any = chain_with_torque if name in CONTINUOUS_ONLY else ChainEnv
    kwargs: dict[str, Any] = {"length": 2, "terminate": terminate}
    run, seed, data = run.with_discount(0.5), learning_seed(), data_for(name, env(**kwargs))
    policy, _ = train(make_trainer, name, env, run, seed, data, **kwargs)
    expected = exact_values(name, policy, [0.0, 1.0], terminate)  # 0.5 and 1; 2/3 and 4/3 without an end; and entropy
    error = (values_along(policy, torch.eye(2)) - torch.tensor(expected)).abs().max()
    assert_reached(request, -float(error), -0.15)  # mixing the two up costs 1/3
