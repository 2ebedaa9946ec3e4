"""PPO from replay: what a transition keeps, on numbers worked out by hand, and what the loss gets of it.

The critic's value is 3 times the observation. An env has the observations 1, 2 and rewards 1, 1, and then sees 4; gamma
and lambda are 1/2. Errors are 1 + 6/2 - 3 = 1 and 1 + 12/2 - 6 = 1, so advantages are 1.25 and 1, and returns 4.25
and 7.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_ding.callbacks.remote import WeightPublisher
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.distributed.config import LearningTask
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.distributed.published_weights import PolicyWeights, fetch_weights, publish_weights
from lightning_ding.policy import PPOOffPolicy
from tests.conftest import MakeTrainer
from tests.policy.test_on_policy import LinearCritic

Config = dict[str, Any]


class Linear(LinearCritic):
    """A uniform policy, and the values of the base."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(2))

    def compute_actor(self, obs: Tensor) -> Config:
        return {"logit": self.logit.expand(len(obs), 2)}

    def compute_actor_critic(self, obs: Tensor) -> Config:
        return {**self.compute_actor(obs), **self.compute_critic(obs)}


class WithOutput(Linear):
    """The same values, from a layer that PopArt can rescale."""

    def __init__(self) -> None:
        super().__init__()
        self.critic_output = nn.Linear(1, 1)
        self.critic_output.weight.data.fill_(3.0)
        self.critic_output.bias.data.zero_()

    def compute_critic(self, obs: Tensor) -> Config:
        return {"value": self.critic_output(obs).squeeze(1)}


def make_policy(learn: Config | None = None, make_model: Any = None, enable_field: Any = None, **config: Any) -> Any:
    base = {"discount_factor": 0.5, "collect": {"gae_lambda": 0.5}, "model": {"action_space": "discrete"}}
    settings = {"adv_norm": False, "value_norm": False, "entropy_weight": 0.0, **(learn or {})}
    is_rescaled = settings["value_norm"] in (True, "popart")
    model = (make_model or (WithOutput if is_rescaled else Linear))()
    return PPOOffPolicy({**base, "learn": settings, **config}, model=model, enable_field=enable_field)


def transitions(terminated: tuple[bool, bool] = (False, False)) -> Config:
    obs = np.array([[1.0], [2.0], [4.0]], np.float32)
    flags, ids = np.array(terminated), {"env_id": np.zeros(2, int), "episode_id": np.zeros(2, int)}
    data = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.array([0, 1]), "reward": np.ones(2, np.float32)}
    data |= {"log_prob": np.log(np.array([0.5, 0.5], np.float32)), "truncated": np.zeros(2, bool), **ids}
    return data | {"terminated": flags}


def tensors(data: Config) -> Config:
    return {name: torch.as_tensor(column) for name, column in data.items()}


@pytest.mark.parametrize("value_norm", [False, True, "popart"])  # without statistics, outputs are values
def test_a_transition_keeps_its_value_advantage_and_return_in_units_of_the_reward(value_norm: Any) -> None:
    policy = make_policy({"value_norm": value_norm})
    kept = policy.collect_mode.get_train_sample(transitions())
    assert kept["value"].tolist() == [3.0, 6.0]
    assert kept["advantage"].tolist() == [1.25, 1.0]
    assert kept["return"].tolist() == [4.25, 7.0]
    assert kept.keys() == {*transitions(), "value", "advantage", "return"}


def test_a_terminated_step_does_not_bootstrap_unless_termination_is_ignored() -> None:
    kept = make_policy().collect_mode.get_train_sample(transitions((False, True)))
    assert kept["advantage"].tolist() == [1 - 0.25 * 5, -5.0]
    kept = make_policy({"ignore_done": True}).collect_mode.get_train_sample(transitions((False, True)))
    assert kept["advantage"].tolist() == [1.25, 1.0]


def scale_of(policy: Any) -> float:
    return float(policy._moments()[1])


def prepared(policy: Any, **changes: Any) -> Config:
    data: Config = policy.prepare(tensors(policy.collect_mode.get_train_sample(transitions())) | changes)
    return data


def test_minibatches_have_the_newest_scale_of_the_critic() -> None:
    policy = make_policy({"value_norm": True})
    data = prepared(policy)
    size = ((4.25**2 + 7**2) / 2) ** 0.5
    assert data["return"].tolist() == pytest.approx([4.25 / size, 7 / size])
    assert data["value"].tolist() == pytest.approx([3 / size, 6 / size])
    assert data["advantage"].tolist() == [1.25, 1.0]
    again = policy.prepare(data)  # a prepared minibatch is left alone
    assert again is data
    assert policy.return_statistics.count == 2
    kept = policy.collect_mode.get_train_sample(transitions())  # in units of the reward, so nothing has changed
    assert kept["value"].tolist() == pytest.approx([3.0, 6.0])


def collecting(learn: Config) -> Any:
    """Return a policy of a process that only collects."""
    return make_policy(learn, make_model=WithOutput, enable_field=["collect"])


def publish(learner: Any, collector: Any) -> None:
    """Pass the published state of one policy to another one, through the store of a distributed run."""
    store, handles = MemoryStore(), []

    def call(name: str, **message: Any) -> Any:
        if name == "learner_send_policy":
            return handles.append(message["data_id"])
        return {"handle": handles[-1], "policy_version": 1, "serial": 0}

    worker: Any = SimpleNamespace(channel=SimpleNamespace(store=store), call=call)
    publisher = WeightPublisher(lambda state: publish_weights(worker, LearningTask(), state))
    publisher.on_train_start(SimpleNamespace(is_global_zero=True, datamodule=None), learner)  # type: ignore[arg-type]
    assert PolicyWeights("", lambda path, serial: fetch_weights(worker, path, serial), collector.collect_mode).update()


@pytest.mark.parametrize("value_norm", [False, True, "popart", "symlog"])
def test_a_process_that_only_collects_has_the_units_of_the_learner(value_norm: Any) -> None:
    collector = collecting({"value_norm": value_norm})
    learner = make_policy({"value_norm": value_norm}, WithOutput)
    learner.model.critic_output.weight.data.fill_(0.5)
    prepared(learner)
    data = transitions((False, True))
    expected = learner.collect_mode.get_train_sample(data)
    before = collector.collect_mode.get_train_sample(data)
    publish(learner, collector)
    found = collector.collect_mode.get_train_sample(data)
    for name in ("value", "advantage", "return"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert not np.array_equal(before["value"], expected["value"])
    assert not np.array_equal(before["advantage"], expected["advantage"])


def test_weights_alone_leave_the_scale_as_it_is() -> None:
    learner = make_policy({"value_norm": True})
    prepared(learner)
    scale = scale_of(learner)
    learner.collect_mode.load_state_dict({"model": learner.model.state_dict()})
    assert scale_of(learner) == scale != 1
    assert "return_statistics" not in learner.eval_mode.state_dict()


def test_advantages_are_standardised_in_each_minibatch() -> None:
    policy = make_policy({"adv_norm": True})
    kept = tensors(policy.collect_mode.get_train_sample(transitions()))
    two = {name: torch.stack([column, column]) for name, column in kept.items()}
    two["advantage"] = torch.tensor([[1.0, 3.0], [10.0, 20.0]])
    half = 0.5**0.5
    for row in policy.prepare(two)["advantage"].tolist():
        assert row == pytest.approx([-half, half])


def watch(policy: Any) -> list[Config]:
    seen: list[Config] = []

    def spy(loss: Any, batch: Config, *args: Any) -> Config:
        seen.append(batch)
        return {"total_loss": torch.zeros(())}

    policy.updater.minimise = spy
    return seen


@pytest.mark.parametrize("value_norm", [False, True])
def test_n_step_targets_come_from_the_newest_critic(value_norm: bool) -> None:
    policy = make_policy({"value_norm": value_norm}, nstep_return=True, nstep=2)
    assert policy.get_attribute("nstep") == 2
    seen, data = watch(policy), tensors(policy.collect_mode.get_train_sample(transitions()))
    # what a buffer gives for two steps: both rewards of the first, one of the second, which ends with termination
    data |= {"reward": torch.tensor([1.5, 1.0]), "next_obs": torch.tensor([[4.0], [4.0]])}
    data |= {"discount": torch.tensor([0.25, 0.5]), "terminated": torch.tensor([False, True])}
    with torch.no_grad():
        layer = policy.model.critic_output.weight if value_norm else policy.model.weight
        layer.fill_(2.0)  # the values have changed since
    policy.learn_mode.forward(data)
    scale = scale_of(policy)
    # 1.5 + 8/4 and 1 in units of the reward
    assert seen[0]["return"].tolist() == pytest.approx([3.5 / scale, 1 / scale], rel=1e-5)
    assert seen[0]["advantage"].tolist() == [1.25, 1.0]


def test_without_n_step_returns_the_buffer_sums_nothing() -> None:
    assert make_policy().get_attribute("nstep") == 1
    with pytest.raises(ValueError, match="nstep must be left at its default without nstep_return, got 5"):
        make_policy(nstep=5)


def test_a_reward_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reward_model.type must be None with ppo_offpolicy, .* got 'rnd'"):
        make_policy(reward_model={"type": "rnd"})


def test_loss_is_that_of_ppo() -> None:
    policy = make_policy({"value_weight": 1.0, "clip_ratio": 0.1})
    old = torch.tensor([0.4, 0.8]).log()
    batch = {**prepared(policy), "log_prob": old}
    # ratios 1.25, clipped to 1.1, and 0.625; errors of the critic -1.25 and -1
    expected = -(1.1 * 1.25 + 0.625 * 1.0) / 2 + (1.25**2 + 1) / 4
    assert policy.loss(batch)[0].item() == pytest.approx(expected, rel=1e-5)


def test_advantages_of_a_run_are_in_the_buffer_and_do_not_reach_past_a_round(make_trainer: MakeTrainer) -> None:
    policy = PPOOffPolicy(
        {
            "model": {"encoder_hidden_size_list": [8]},
            "learn": {"batch_size": 8, "value_norm": False, "learning_rate": 1e-12},
            "collect": {"n_sample": 32, "gae_lambda": 1.0},
        }
    )
    datamodule = ReplayDataModule("CartPole-v1", num_envs=4, max_env_step=96)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    kept: Any = datamodule.buffer.transitions()  # type: ignore[union-attr]
    with torch.no_grad():
        value, next_value = (policy.model.compute_critic(kept[name])["value"] for name in ("obs", "next_obs"))  # type: ignore[operator]
    torch.testing.assert_close(kept["value"], value, rtol=1e-4, atol=1e-5)
    error = kept["reward"] + 0.99 * next_value * ~kept["terminated"] - value
    place = torch.arange(96)
    last = kept["terminated"] | kept["truncated"] | (place % 32 >= 28)  # the last step of each env in a round of 8
    expected = error.clone()
    for row in range(91, -1, -1):
        if not last[row]:
            expected[row] += 0.99 * expected[row + 4]
    torch.testing.assert_close(kept["advantage"], expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(kept["return"], kept["advantage"] + kept["value"])
