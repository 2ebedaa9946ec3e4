"""The critics of teams against plain loops over agents, and what they may depend on."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model.teams.agents import groups_of
from lightning_ding.model.teams.team_qac import TeamQAC, with_own

B, N, D, S, A = 4, 3, 5, 6, 2
SHARING = (True, False, (0, 1, 1))
INPUTS = ("joint", "state", "local")


def make(**changes: Any) -> TeamQAC:
    return TeamQAC(N, D, S, A, **{"encoder_hidden_size_list": [8], "critic_hidden_size_list": [7], **changes})


def make_obs(**more: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(B, N, D, generator=generator)
    return {"agent_state": seen, "global_state": torch.randn(B, S, generator=generator), **more}


def slow_value(model: TeamQAC, obs: dict[str, Tensor], joint: Tensor, e: int, b: int, i: int) -> Tensor:
    """Return the value of critic e of agent i by one product for each layer; ``joint`` is (N, A)."""
    living = obs["alive"][b] if "alive" in obs else torch.ones(N)
    parts = [] if model.critic_input == "joint" else [obs["agent_state"][b, i]]
    parts += [] if model.critic_input == "local" else [obs["global_state"][b]]
    if model.critic_input == "joint":
        for j in range(N):
            hidden = model.action_values and i == j
            parts.append(joint[j] * living[j] * (not hidden))
    elif not model.action_values:
        parts.append(joint[i])
    critic = model.critic
    if critic.has_ids:
        parts.append(torch.eye(N)[i])
    member = int(critic.members[e, i])
    x = torch.cat(parts)
    weights, biases = list(critic.net.weights), list(critic.net.biases)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = F.linear(x, weight[member].T, bias[member, 0])
        x = x.relu() if layer < len(weights) - 1 else x
    return x if model.action_values else x[0]


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("critic_input", INPUTS)
@pytest.mark.parametrize("action_values", [False, True])
def test_values_equal_plain_loops(sharing: Any, critic_input: Any, action_values: bool) -> None:
    kind: Any = "discrete" if action_values else "regression"
    model = make(
        parameter_sharing=sharing,
        critic_input=critic_input,
        action_values=action_values,
        action_space=kind,
        twin_critic=True,
    )
    obs, own, others = (
        make_obs(alive=torch.tensor([[1.0, 0, 1]]).repeat(B, 1)),
        torch.randn(B, N, A),
        torch.randn(B, N, A),
    )
    for joint in (own, with_own(own, others)):
        q = model.compute_critic(obs, joint)["q_value"]
        for e, b, i in product(range(2), range(B), range(N)):
            seen = own[b].clone()
            for j in range(N):
                seen[j] = own[b, j] if joint.ndim == 3 or i == j else others[b, j]
            assert_close(q[e, b, i], slow_value(model, obs, seen, e, b, i))
        assert_close(model.compute_critic(obs, joint, members=1)["q_value"], q[:1])


@pytest.mark.parametrize("sharing", SHARING)
def test_agents_of_a_group_share_their_critics_and_others_do_not(sharing: Any) -> None:
    model, groups = make(parameter_sharing=sharing, agent_id=False, twin_critic=True), groups_of(N, sharing)
    q = model.compute_critic(make_obs(), torch.randn(B, N, A))["q_value"]
    for e, i, j in product(range(2), range(N), range(N)):
        assert torch.allclose(q[e, :, i], q[e, :, j], atol=1e-6) == (groups[i] == groups[j])
    assert not torch.allclose(q[0], q[1])


@pytest.mark.parametrize(
    ("critic_input", "action_values", "agents"),
    [
        ("joint", False, {0, 1, 2}),
        ("state", False, {1}),
        ("local", False, {1}),
        ("joint", True, {0, 2}),
        ("state", True, set()),
    ],
)
def test_the_actions_that_the_value_of_an_agent_depends_on(
    critic_input: Any, action_values: bool, agents: set[int]
) -> None:
    kind: Any = "discrete" if action_values else "regression"
    model = make(critic_input=critic_input, action_values=action_values, action_space=kind)
    action = torch.randn(B, N, A, requires_grad=True)
    q = model.compute_critic(make_obs(), action)["q_value"]
    (grad,) = torch.autograd.grad(q[0, :, 1].sum(), action, allow_unused=True, materialize_grads=True)
    assert {i for i in range(N) if (grad[:, i] != 0).any()} == agents


def test_a_local_critic_does_not_see_the_global_state_and_others_do() -> None:
    for critic_input in ("local", "state", "joint"):
        model, action = make(critic_input=critic_input), torch.randn(B, N, A)
        obs = make_obs()
        moved = {**obs, "global_state": obs["global_state"] + 1}
        first, second = (model.compute_critic(one, action)["q_value"] for one in (obs, moved))
        assert torch.equal(first, second) == (critic_input == "local")


def test_actions_of_agents_that_have_left_do_not_count() -> None:
    model, action = make(), torch.randn(B, N, A)
    obs = make_obs(alive=torch.tensor([[1.0, 1, 0]]).repeat(B, 1))
    other = action.clone()
    other[:, 2] += 1
    assert torch.equal(*(model.compute_critic(obs, one)["q_value"] for one in (action, other)))


def test_an_actor_sees_what_its_agent_sees() -> None:
    for kind, part in (("regression", "action"), ("reparameterization", "mu"), ("discrete", "logit")):
        model = make(action_space=kind)
        obs = make_obs()
        moved = {**obs, "agent_state": obs["agent_state"].clone(), "global_state": obs["global_state"] + 1}
        moved["agent_state"][:, 0] += 1
        first, second = (model.compute_actor(one)[part] for one in (obs, moved))
        assert torch.equal(first[:, 1:], second[:, 1:])
        assert not torch.equal(first[:, 0], second[:, 0])


def test_last_layers_start_small_if_asked() -> None:
    for sharing in SHARING:
        model = make(last_layer_init=1e-3, parameter_sharing=sharing, twin_critic=True)
        obs = make_obs()
        action = model.compute_actor(obs)["action"]
        assert action.abs().max() < 0.05
        assert model.compute_critic(obs, action)["q_value"].abs().max() < 0.05


def test_values_of_all_actions_need_discrete_actions() -> None:
    with pytest.raises(ValueError, match="action_values must be False without 'discrete'"):
        make(action_values=True)
