"""DDPG on hybrid actions: a choice with arguments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.testing import assert_close

from lightning_ding.model import ContinuousQAC
from lightning_ding.policy import DDPGPolicy
from lightning_ding.worker.actions import random_output
from tests.toys.bandits import HybridTargetEnv

SPACE = spaces.Dict({"action_type": spaces.Discrete(3), "action_args": spaces.Box(-2, 6, (1,))})


def make_policy(**cfg: Any) -> DDPGPolicy:
    torch.manual_seed(0)
    policy = DDPGPolicy({"collect": {"noise_sigma": 0.0}, **cfg})
    policy.build(spaces.Box(-1, 1, (4,)), SPACE)
    return policy


def test_the_shapes_of_a_hybrid_action_come_from_the_env() -> None:
    model = make_policy().config.model
    assert model.action_shape == {"action_type_shape": 3, "action_args_shape": 1}
    assert (model.action_low, model.action_high) == ((-2.0,), (6.0,))


def test_the_greedy_action_is_the_best_choice_with_arguments_in_the_units_of_the_env() -> None:
    """tanh(0.5) of [-2, 6] is 2 + 4 tanh(0.5)."""
    policy: Any = make_policy()
    last = policy.model.actor.head.layers[-1]
    last.weight.data.zero_()
    last.bias.data = torch.tensor([0.0, 2.0, 1.0, 0.5])
    for mode, kwargs in ((policy.eval_mode, {}), (policy.collect_mode, {"eps": 0.0})):
        action = mode.forward(torch.zeros(2, 4), **kwargs)["action"]
        assert action["action_type"].tolist() == [1, 1]
        assert_close(action["action_args"], torch.full((2, 1), 2 + 4 * float(np.tanh(0.5))))


def test_choices_are_random_with_probability_epsilon_and_arguments_noisy() -> None:
    policy = make_policy()
    policy.seed(0)
    choices = policy.collect_mode.forward(torch.zeros(3000, 4), eps=1.0)["action"]["action_type"]
    assert torch.bincount(choices, minlength=3).tolist() == pytest.approx([1000] * 3, rel=0.1)
    arguments = policy.collect_mode.forward(torch.zeros(3000, 4), eps=0.0, sigma=0.1)["action"]["action_args"]
    assert arguments.std().item() == pytest.approx(0.4, rel=0.1)


def masked_policy() -> Any:
    """Return a policy that would choose 1, then 2, then 0, and observations of which row i has the mask i of MASKS."""
    policy: Any = DDPGPolicy({"collect": {"noise_sigma": 0.0}})
    policy.build(spaces.Dict({"row": spaces.Box(-1, 1, (4,)), "action_mask": spaces.MultiBinary(3)}), SPACE)
    for model in (policy.model, policy.target_model):
        last = model.actor.head.layers[-1]
        last.weight.data.zero_()
        last.bias.data = torch.tensor([0.0, 2.0, 1.0, 0.5])
    return policy


MASKS = [[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]]  # the last is of a state with no choice at all
BEST = [1, 2, 0, 1]


def observations(masks: list[list[int]] = MASKS) -> dict[str, torch.Tensor]:
    return {"row": torch.zeros(len(masks), 4), "action_mask": torch.tensor(masks, dtype=torch.int8)}


def test_the_greedy_choice_is_the_best_legal_one() -> None:
    policy = masked_policy()
    assert policy.eval_mode.forward(observations())["action"]["action_type"].tolist() == BEST
    assert policy.collect_mode.forward(observations(), eps=0.0)["action"]["action_type"].tolist() == BEST


def test_random_choices_are_legal() -> None:
    policy = masked_policy()
    policy.seed(0)
    choices = policy.collect_mode.forward(observations([[1, 0, 1]] * 2000), eps=1.0)["action"]["action_type"]
    assert torch.bincount(choices, minlength=3).tolist() == pytest.approx([1000, 0, 1000], rel=0.1)


def give_values(policy: Any, values: list[float]) -> None:
    """Let the critic value each choice so, whatever the observation."""
    table = torch.tensor(values)

    def compute_critic(obs: Any, action: Any, members: int | None = None) -> dict[str, torch.Tensor]:
        assert len(action["action_type"]) == len(action["action_args"]) == len(obs["row"])
        return {"q_value": table[action["action_type"]][None]}

    policy.model.compute_critic = policy.target_model.compute_critic = compute_critic


def test_the_target_asks_for_the_best_choice_that_is_legal_in_the_next_observation() -> None:
    policy = masked_policy()
    give_values(policy, [0.0, 1.0, 2.0])
    batch = {"obs": observations(), "next_obs": observations(MASKS[::-1])}
    target = policy._targets({**batch, "reward": torch.zeros(4), "discount_t": torch.ones(4)})
    assert target.tolist() == BEST[::-1]


def test_the_loss_is_minus_the_mean_value_of_legal_choices_and_a_penalty_of_their_logits() -> None:
    """Of the logits 0, 2, 1 those of the choices 0 and 2 are left; their mean square over three choices is 1 / 3."""
    policy = masked_policy()
    give_values(policy, [1.0, 1000.0, 3.0])
    loss, report = policy.actor_loss({"obs": observations([[1, 0, 1]] * 2)})
    value = (1 + 3 * np.e) / (1 + np.e)
    assert loss.item() == report["actor_loss"].item() == pytest.approx(1e-3 / 3 - value, rel=1e-6)


def test_the_actor_moves_towards_the_choice_of_the_largest_value() -> None:
    """The gradient of a softmax: the weight of a choice times how much better than the mean it is."""
    policy = masked_policy()
    give_values(policy, [3.0, 1.0, 1.0])
    policy.actor_loss({"obs": observations([[1, 1, 1]])})[0].backward()
    logit = torch.tensor([0.0, 2.0, 1.0])
    weight = logit.softmax(0)
    values = torch.tensor([3.0, 1.0, 1.0])
    expected = 2e-3 / 3 * logit - weight * (values - weight @ values)
    assert_close(policy.model.actor.head.layers[-1].bias.grad[:3], expected)


def test_the_gradient_knows_legal_choices_only() -> None:
    policy = masked_policy()
    policy.actor_loss({"obs": observations([[1, 0, 1]] * 4)})[0].backward()
    gradient = policy.model.actor.head.layers[-1].bias.grad
    assert gradient.isfinite().all()
    assert gradient[1] == 0
    assert (gradient[[0, 2]] != 0).all()


def test_the_mask_is_no_feature() -> None:
    shape = {"action_type_shape": 3, "action_args_shape": 1}
    torch.manual_seed(0)
    model = ContinuousQAC({"row": 4, "action_mask": 3}, shape, "hybrid")
    one, other = observations([[1, 1, 1]]), observations([[1, 0, 0]])
    action = {"action_type": torch.tensor([0]), "action_args": torch.zeros(1, 1)}
    assert torch.equal(model.compute_actor(one)["logit"], model.compute_actor(other)["logit"])
    assert torch.equal(model.compute_critic(one, action)["q_value"], model.compute_critic(other, action)["q_value"])


def test_the_command_mode_gives_the_epsilon_of_the_schedule() -> None:
    policy = make_policy(other={"eps": {"start": 0.5, "end": 0.1, "decay": 100}})
    assert policy.command_mode.get_setting_collect({"envstep": 50}) == {"eps": pytest.approx(0.3)}


def test_mistakes_are_named() -> None:
    observation_space = spaces.Dict({"row": spaces.Box(-1, 1, (4,)), "action_mask": spaces.MultiBinary(3)})
    with pytest.raises(ValueError, match="obs_shape must be without action_mask for actions without a choice"):
        DDPGPolicy().build(observation_space, spaces.Box(-1, 1, (1,)))
    cfg = {"model": {"obs_shape": 3, "action_shape": 1}, "other": {"eps": {"start": 0.5}}}
    with pytest.raises(ValueError, match=r"other\.eps must be left at its default without a hybrid action"):
        DDPGPolicy(cfg)


def test_random_output_gives_random_choices_and_arguments() -> None:
    env = gym.vector.SyncVectorEnv([HybridTargetEnv] * 4)
    action = random_output(env, None)["action"]
    assert action["action_type"].shape == (4,)
    assert action["action_args"].shape == (4, 1)


def test_random_output_gives_legal_choices() -> None:
    env = gym.vector.SyncVectorEnv([HybridTargetEnv] * 4)
    choices = env.single_action_space["action_type"].n  # type: ignore[index]
    mask = np.eye(choices, dtype=np.int8)[[1, 0, 1, 1]]
    for _ in range(5):
        action = random_output(env, {"action_mask": mask})["action"]
        assert action["action_type"].tolist() == [1, 0, 1, 1]
        assert action["action_args"].shape == (4, 1)
