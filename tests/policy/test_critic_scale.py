"""The scale of a critic's output: a change leaves all values as they are, and values learn what rewards allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm
from torch.testing import assert_close

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import A2CPolicy, PPOOffPolicy, PPOPolicy, RecurrentPPOPolicy
from tests.conftest import MakeTrainer

MODEL = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("value_norm", [True, "popart"])
@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy, RecurrentPPOPolicy, PPOOffPolicy])
def test_a_change_of_scale_leaves_all_values_as_they_are(policy_class: Any, value_norm: Any) -> None:
    policy: Any = policy_class({"model": MODEL, "learn": {"value_norm": value_norm}})
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
    policy: Any = PPOPolicy({"model": MODEL, "learn": {"value_norm": True}})
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


class UserNet(nn.Module):
    """An actor-critic network of a user, without ``critic_output``.

    Args:
        last: Function of the critic's last layer.
    """

    def __init__(self, last: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.actor, self.hidden, self.value = nn.Linear(4, 2), nn.Linear(4, 1), nn.Linear(1, 1)
        self.last = last

    def compute_actor(self, obs: Tensor) -> dict[str, Tensor]:
        return {"logit": self.actor(obs)}

    def compute_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {"value": self.last(self.value(self.hidden(obs))).squeeze(-1)}

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return self.compute_actor(obs) | self.compute_critic(obs)


def make_rollout(reward: float) -> dict[str, Tensor]:
    """Return 64 steps of four envs, all with one reward."""
    rows = torch.arange(64)
    obs = torch.randn(65, 4)
    ends = {"terminated": torch.zeros(64, dtype=torch.bool), "truncated": rows >= 60}
    acted = {"action": rows % 2, "log_prob": torch.full((64,), -0.7)}
    ids = {"env_id": rows % 4, "episode_id": rows % 4}
    steps = {"obs": obs[:-1], "next_obs": obs[1:], "reward": torch.full((64,), reward) + rows % 3}
    return {**steps, **ends, **acted, **ids}


NETWORKS: dict[str, Any] = {
    "detected": (UserNet, False),
    "tanh": (lambda: UserNet(torch.tanh), True),
    "in place": (lambda: UserNet(torch.tanh_), True),
    "copied": (lambda: UserNet(torch.clone), True),
}


@pytest.mark.parametrize("value_norm", [True, "popart"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy])
def test_a_network_without_a_named_output_layer_keeps_its_values(
    policy_class: Any, name: str, value_norm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make, is_corrected = NETWORKS[name]
    config = {"model": MODEL, "learn": {"value_norm": value_norm, "learning_rate": 1e-20}}
    policy: Any = policy_class(config, model=make())
    obs = torch.randn(5, 4)
    with torch.no_grad():
        before, actor = policy._returns_of(policy._values(obs)), policy.model.compute_actor(obs)["logit"]
    for reward in (-900.0, 3.0):
        policy._learn(make_rollout(reward))
        with torch.no_grad():
            assert_close(policy._returns_of(policy._values(obs)), before, rtol=1e-3, atol=2e-2)
            assert_close(policy.model.compute_actor(obs)["logit"], actor)
    assert policy.return_statistics.corrects is is_corrected
    assert caplog.text.count("the last layer of the critic cannot follow the scale") == is_corrected
    other: Any = policy_class(config, model=make())
    other.load_state_dict(policy.state_dict())
    with torch.no_grad():
        assert_close(other._returns_of(other._values(obs)), before, rtol=1e-3, atol=2e-2)


class Wrapped(nn.Module):
    """A linear layer and a second one without bias, as of LoRA."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.more = base, nn.Linear(64, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.more(x)
        return found


CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "spectral": spectral_norm,
    "wrapped": Wrapped,
    "without bias": lambda layer: nn.Linear(64, 1, bias=False),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("policy_class", [PPOPolicy, RecurrentPPOPolicy, PPOOffPolicy])
def test_an_output_layer_with_computed_weights_keeps_its_values(policy_class: Any, change: str) -> None:
    policy: Any = policy_class({"model": MODEL, "learn": {"value_norm": "popart"}})
    layer = policy.model.critic.layers[-1]
    changed = nn.Linear(64, 1) if layer.in_features != 64 else layer
    policy.model.critic.layers[-1] = CHANGES[change](changed)
    features = torch.randn(5, 64)

    def values() -> Tensor:
        with torch.no_grad():
            return policy._returns_of(policy._corrected(policy.model.critic.layers[-1](features)))  # type: ignore[no-any-return]

    before = values()
    for returns in ([-900.0, -1100.0], [3.0] * 2000):
        policy._take_in_returns(torch.tensor(returns))
        assert_close(values(), before, rtol=1e-4, atol=1e-2)


def test_the_affine_function_after_a_critic_is_part_of_its_loss() -> None:
    policy: Any = PPOPolicy({"model": MODEL}, model=UserNet(torch.clone))
    policy._take_in_returns(torch.tensor([4.0, 8.0]))  # mean 6, standard deviation 2
    batch = {"obs": torch.randn(1, 4), "action": torch.tensor([0]), "log_prob": torch.tensor([-0.7])}
    batch |= {"advantage": torch.tensor([0.0]), "return": torch.tensor([1.5]), "value": torch.tensor([0.0])}
    output = policy.model.compute_critic(batch["obs"])["value"].item()
    # half of the squared difference of the value and 6 + 2 * 1.5, in units of 2
    expected = 0.5 * ((output - 9.0) / 2) ** 2
    for loss in (policy.loss, policy.loss_of_critic):
        assert loss(batch)[1]["value_loss"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("before", "after"), [(True, "popart"), ("popart", True)])
def test_a_resumed_run_with_another_scale_keeps_its_values(
    make_trainer: MakeTrainer, tmp_path: Path, before: Any, after: Any
) -> None:
    first: Any = PPOPolicy({"collect": {"n_sample": 64}, "learn": {"value_norm": before}})
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(first, RolloutDataModule(MinusOne, num_envs=4, seed=0, max_env_step=256))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    second: Any = PPOPolicy({"collect": {"n_sample": 64}, "learn": {"value_norm": after}})
    starts, seen = torch.randn(5, 4), []

    class Look(Callback):
        @torch.no_grad()
        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
            seen.append(pl_module._returns_of(pl_module._values(starts)))

    data = RolloutDataModule(MinusOne, num_envs=4, seed=0, max_env_step=320)
    make_trainer(limit_val_batches=0, callbacks=[Look()]).fit(second, data, ckpt_path=str(tmp_path / "saved.ckpt"))
    with torch.no_grad():
        assert_close(seen[0], first._returns_of(first._values(starts)), rtol=1e-4, atol=1e-4)
