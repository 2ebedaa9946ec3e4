"""A policy without a network, or with one that lacks a part, says so wherever the network is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import nn

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy, create_policy

OBS = torch.zeros(2, 4)
HALVES = {
    "model.action_space": {"obs_shape": 4, "action_shape": 2},
    "model.action_shape": {"obs_shape": 4, "action_space": "discrete"},
    "model.obs_shape and model.action_space": {"action_shape": 2},
    "model.obs_shape and model.action_shape and model.action_space": {},
}


@pytest.mark.parametrize("missing", HALVES)
def test_a_section_that_is_not_whole_names_what_is_missing_at_each_use(missing: str) -> None:
    policy: Any = PPOPolicy({"model": HALVES[missing]})
    match = f"PPOPolicy has no spaces: set {missing} in its config, call build"
    uses: list[Callable[[], Any]] = [
        lambda: policy.collect_mode.forward(OBS),
        lambda: policy.eval_mode.forward(OBS),
        lambda: policy.model(OBS),
        lambda: policy(OBS),
        lambda: policy.model.compute_critic(OBS),
        lambda: policy.loss({"obs": OBS}),
    ]
    for use in uses:
        with pytest.raises((RuntimeError, AttributeError), match=match):
            use()


def test_a_missing_network_has_no_state_and_gives_way_to_one_of_the_env() -> None:
    policy = PPOPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
    assert not policy.model.state_dict()
    assert not hasattr(policy.model, "compute_actor")
    whole = PPOPolicy({"model": {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}})
    assert whole.eval_mode.forward(OBS)["action"].shape == (2,)


def test_a_policy_that_only_commands_says_that_it_has_no_network() -> None:
    with pytest.raises(RuntimeError, match=r"DQNPolicy has no network, because its enable_field is .*command"):
        create_policy({"type": "dqn"}, enable_field=["command"]).model(OBS)


class ActorAlone(nn.Module):
    """The half of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 2)

    def compute_actor(self, obs: Any) -> Any:
        return {"logit": self.actor(obs), "action": self.actor(obs), "mu": self.actor(obs)}


class CriticAlone(nn.Module):
    """The other half of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Linear(4, 1)

    def compute_critic(self, obs: Any) -> Any:
        return {"value": self.critic(obs).squeeze(1)}


@pytest.mark.parametrize(
    ("name", "network", "missing"),
    [
        ("ppo", ActorAlone, "compute_critic, compute_actor_critic"),
        ("ppo", CriticAlone, "compute_actor, compute_actor_critic"),
        ("a2c", ActorAlone, "compute_critic, compute_actor_critic"),
        ("impala", CriticAlone, "compute_actor, compute_actor_critic"),
        ("recurrent_ppo", ActorAlone, "first_state, act"),
        ("sac", ActorAlone, "compute_critic, critic"),
        ("ddpg", CriticAlone, "compute_actor, actor"),
    ],
)
def test_half_a_network_is_refused_at_the_start_of_a_fit(name: str, network: Any, missing: str) -> None:
    policy = create_policy({"type": name}, model=network(), enable_field=["collect"])
    with pytest.raises(
        TypeError, match=f"^the model of .*Policy must have .*got a {network.__name__} without {missing}$"
    ):
        policy.on_fit_start()


def test_a_fit_does_not_begin_with_half_a_network() -> None:
    policy = create_policy({"type": "ppo"}, model=ActorAlone())
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=1, enable_checkpointing=False, **flags)
    with pytest.raises(TypeError, match="must have compute_actor, compute_critic, compute_actor_critic to learn, got"):
        trainer.fit(policy, RolloutDataModule("CartPole-v1"))
    assert policy.progress.env_step == 0


def test_an_actor_is_enough_to_act() -> None:
    policy = create_policy({"type": "ppo", "model": {"action_shape": 2}}, model=ActorAlone(), enable_field=["eval"])
    assert policy.eval_mode.forward(OBS)["action"].shape == (2,)
