"""The scale of a critic's output: a change leaves all values as they are, and values learn what rewards allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import A2CPolicy, PPOOffPolicy, PPOPolicy, RecurrentPPOPolicy

MakeTrainer = Callable[..., Trainer]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("value_norm", [True, "popart"])
@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy, RecurrentPPOPolicy, PPOOffPolicy])
def test_a_change_of_scale_leaves_all_values_as_they_are(policy_class: Any, value_norm: Any) -> None:
    model = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
    policy: Any = policy_class({"model": model, "learn": {"value_norm": value_norm}})
    layer = policy.model.critic_output
    features = torch.randn(5, layer.in_features)

    def values() -> Tensor:
        found: Tensor = policy._returns_of(layer(features)).detach()
        return found

    before, scale = values(), policy._moments()[1]
    for returns in ([-900.0, -1100.0], [3.0] * 2000, [5e5, 0.0]):
        policy._take_in_returns(torch.tensor(returns))
        assert policy._moments()[1] != scale
        assert_close(values(), before, rtol=1e-4, atol=1e-2)  # float32, beside a scale of up to 15,000


def test_a_checkpoint_with_statistics_of_all_history_has_the_same_values_and_forgets_it() -> None:
    model = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
    policy: Any = PPOPolicy({"model": model, "learn": {"value_norm": True}})
    state = policy.learn_mode.state_dict()
    count, square = torch.tensor(1e6, dtype=torch.float64), torch.tensor(36.0, dtype=torch.float64)
    state["return_statistics"] = {"count": count, "mean": torch.zeros_like(count), "m2": count * square}
    policy.learn_mode.load_state_dict(state)
    obs = torch.randn(3, 4)
    with torch.no_grad():
        assert_close(policy._returns_of(policy._values(obs)), 6 * policy.model.compute_critic(obs)["value"])
        policy._take_in_returns(torch.full((1024,), 2.0))
    assert policy._moments()[1].item() == pytest.approx(((36 + 4) / 2) ** 0.5)  # as if there had been 1,024 before


class MinusOne(gym.Env[Any, Any]):
    """A reward of -1 at each step, four random numbers as observation, and a cut after 25 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.np_random.normal(size=4).astype(np.float32), -1.0, False, self.steps == 25, {}


class Values(Callback):
    """Keep the mean value of 64 observations of a start after each round."""

    def __init__(self) -> None:
        self.starts = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
        self.means: list[float] = []

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self.means.append(float(pl_module._returns_of(pl_module._values(self.starts)).mean()))


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_a_constant_reward_stay_within_what_rewards_allow(make_trainer: MakeTrainer, seed: int) -> None:
    seed_everything(seed, verbose=False)
    watch = Values()
    data = RolloutDataModule(MinusOne, num_envs=16, seed=seed, max_env_step=16_384)
    make_trainer(limit_val_batches=0, callbacks=[watch]).fit(PPOPolicy(), data)
    assert len(watch.means) == 16  # after each 1,024 env steps
    # -1 / (1 - 0.99) = -100: the cut bootstraps. Returns are within [-100, 0]; the margin is 10
    assert min(watch.means) > -110
    assert max(watch.means) < 10
    assert -115 < watch.means[-1] < -90
