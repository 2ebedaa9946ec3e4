"""P-DQN's losses against loops over rows and choices, the arguments that a choice sees, and its schedule of updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import DDPGPolicy, PDQNPolicy, create_policy

Config = dict[str, Any]
K, A, B = 3, 2, 6
SIZES: Config = {
    "obs_shape": 4,
    "action_shape": {"action_type_shape": K, "action_args_shape": A},
    "actor_head_hidden_size": 8,
    "critic_head_hidden_size": 8,
}
MASK = [[1, 0], [0, 1], [0, 0]]


def made(model: Config | None = None, **learn: Any) -> Any:
    torch.manual_seed(0)
    policy = PDQNPolicy({"model": {**SIZES, "last_layer_init": None, **(model or {})}, "learn": learn})
    policy.seed(0)
    for parameter in policy.target_model.parameters():  # else it equals the network
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    return policy


def batch_of(policy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs, next_obs = (torch.from_numpy(rng.normal(size=(B, 4)).astype(np.float32)) for _ in range(2))
    arguments = torch.from_numpy(rng.uniform(-1, 1, (B, A)).astype(np.float32))
    action = {"action_type": torch.from_numpy(rng.integers(0, K, B)), "action_args": arguments}
    reward = torch.from_numpy(rng.normal(size=B).astype(np.float32))
    rows = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward}
    return policy.prepare({**rows, "terminated": torch.arange(B) == 2})  # type: ignore[no-any-return]


@torch.no_grad()
def value(model: Any, obs: Tensor, choice: int, arguments: Tensor, critic: int = 0) -> float:
    """Return the value of a choice for one observation, layer by layer."""
    mask = getattr(model, "argument_mask", torch.ones(K, A))
    head, x = model.critic.head, torch.cat([obs, arguments * mask[choice]])
    for number, (weight, bias) in enumerate(zip(head.weights, head.biases, strict=True)):
        x = x @ weight[critic] + bias[critic, 0]
        x = x.clamp(min=0) if number < len(head.weights) - 1 else x
    return float(x[choice])


@torch.no_grad()
def arguments_of(model: Any, obs: Tensor) -> Tensor:
    x, layers = obs, model.actor.head.layers
    for number, layer in enumerate(layers):
        x = x @ layer.weight.T + layer.bias
        x = x.clamp(min=0) if number < len(layers) - 1 else x
    return x.tanh()


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("model", [{}, {"twin_critic": True}, {"argument_mask": MASK}])
def test_loss_of_the_critic_equals_a_loop(model: Config, double_q: bool) -> None:
    policy = made(model, double_q=double_q)
    batch, critics = batch_of(policy), 1 + model.get("twin_critic", False)
    total, chooser = 0.0, policy.model if double_q else policy.target_model
    for row in range(B):
        obs, next_obs = batch["obs"][row], batch["next_obs"][row]
        arguments = arguments_of(chooser, next_obs)
        choice = max(range(K), key=lambda k: value(chooser, next_obs, k, arguments))
        best = min(value(policy.target_model, next_obs, choice, arguments, i) for i in range(critics))
        target = float(batch["reward"][row]) + (0.0 if row == 2 else 0.99) * best
        taken = int(batch["action"]["action_type"][row]), batch["action"]["action_args"][row]
        total += sum((value(policy.model, obs, *taken, i) - target) ** 2 for i in range(critics)) / B
    assert_close(policy.critic_loss(batch)[0].item(), total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [{}, {"argument_mask": MASK}])
def test_loss_of_the_actor_is_minus_the_sum_over_choices_and_trains_the_actor_alone(model: Config) -> None:
    policy = made(model)
    batch = batch_of(policy)
    total = sum(value(policy.model, obs, k, arguments_of(policy.model, obs)) for obs in batch["obs"] for k in range(K))
    assert_close(policy.actor_loss(batch)[0].item(), -total / B, rtol=1e-4, atol=1e-5)
    before = {name: one.clone() for name, one in policy.model.named_parameters()}
    policy.updater.minimise(policy.actor_loss, batch, 1)
    changed = {name.split(".")[0] for name, one in policy.model.named_parameters() if not one.equal(before[name])}
    assert changed == {"actor"}


def test_a_choice_sees_its_own_arguments_alone() -> None:
    model = made({"argument_mask": MASK}).model
    arguments = torch.full((1, A), 0.5, requires_grad=True)
    values = model.compute_values(torch.ones(1, 4), arguments)[0, 0]
    for choice in range(K):
        (gradient,) = torch.autograd.grad(values[choice], arguments, retain_graph=True)
        assert (gradient[0] != 0).int().tolist() == MASK[choice]


def test_the_greedy_action_is_the_choice_of_the_highest_value_with_the_actors_arguments() -> None:
    policy, obs = made(), torch.linspace(-2, 2, 20).view(5, 4)
    for mode, options in ((policy.eval_mode, {}), (policy.collect_mode, {"eps": 0.0, "sigma": 0.0})):
        action = mode.forward(obs, **options)["action"]
        for row in range(5):
            arguments = arguments_of(policy.model, obs[row])
            choice = max(range(K), key=lambda k: value(policy.model, obs[row], k, arguments))
            assert int(action["action_type"][row]) == choice
            assert_close(action["action_args"][row], arguments, rtol=1e-5, atol=1e-6)


def test_illegal_choices_enter_neither_actions_nor_targets_nor_the_actors_loss() -> None:
    policy: Any = PDQNPolicy({"collect": {"noise_sigma": 0.0}})
    observations = spaces.Dict({"row": spaces.Box(-1, 1, (4,)), "action_mask": spaces.MultiBinary(3)})
    actions = spaces.Dict({"action_type": spaces.Discrete(3), "action_args": spaces.Box(-2, 6, (1,))})
    policy.build(observations, actions)
    policy.seed(0)
    table = torch.tensor([1.0, 1000.0, 3.0])
    for model in (policy.model, policy.target_model):
        model.compute_values = lambda obs, arguments, members=None: table.expand(1, len(arguments), 3)
    masks = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 0]], dtype=torch.int8)
    obs = {"row": torch.zeros(3, 4), "action_mask": masks}
    assert policy.eval_mode.forward(obs)["action"]["action_type"].tolist() == [1, 2, 0]
    assert policy.collect_mode.forward(obs, eps=0.0)["action"]["action_type"].tolist() == [1, 2, 0]
    batch = {"obs": obs, "next_obs": obs, "reward": torch.zeros(3), "discount_t": torch.ones(3)}
    assert policy._targets(batch).tolist() == [1000.0, 3.0, 1.0]
    assert policy.actor_loss(batch)[0].item() == pytest.approx(-(1004 + 4 + 1) / 3)


def test_without_a_choice_it_is_ddpg() -> None:
    model = {"obs_shape": 3, "action_shape": 2, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
    weights = []
    for policy_class in (PDQNPolicy, DDPGPolicy):
        torch.manual_seed(0)
        policy: Any = policy_class({"model": model, "learn": {"noise": True}})
        policy.seed(0)
        rng = torch.Generator().manual_seed(1)
        rows = {name: torch.randn(5, 3, generator=rng) for name in ("obs", "next_obs")}
        rows |= {"action": torch.rand(5, 2, generator=rng), "reward": torch.ones(5)}
        for _ in range(3):
            policy.learn_mode.forward({**rows, "terminated": torch.zeros(5).bool()})
        weights.append([one.detach().clone() for one in policy.model.parameters()])
    assert all(map(torch.equal, *weights))


def test_critic_and_actor_learn_in_turns() -> None:
    """As with DI-engine's update_circle 10: updates 5 to 9 of ten, counted from 1, are the actor's."""
    policy = made(turn=5)
    batch, parts = batch_of(policy), []
    for number in range(12):
        policy.progress.train_iter = number
        parts.append("actor" if "actor_loss" in policy._forward_learn(batch) else "critic")
    assert parts == ["critic"] * 4 + ["actor"] * 5 + ["critic"] * 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model": {"argument_mask": [[1, 0]]}},
            "model.argument_mask must be 3 rows, one for each choice, of 2 entries",
        ),
        ({"model": {"argument_mask": [[1, 0], [0, 2], [0, 0]]}}, "model.argument_mask must be 3 rows"),
        ({"model": {"action_shape": 2, "argument_mask": MASK}}, "model.argument_mask must be None for actions without"),
        ({"learn": {"turn": 0}}, "learn.turn must be >= 1 or None, got 0"),
        ({"learn": {"turn": 2, "actor_update_freq": 2}}, "learn.actor_update_freq must be 1 with learn.turn, got 2"),
    ],
)
def test_wrong_options_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "pdqn", **config, "model": {**SIZES, **config.get("model", {})}})
