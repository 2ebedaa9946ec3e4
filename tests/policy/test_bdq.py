"""BDQ against numbers worked out by hand, and its network against the formulas of the paper.

Gamma is 0.5. Actions have two dimensions, with two and three choices. In the next state the target network's values are
(1, 3) and (2, 8, 5), and the online network prefers action 0 of both, so the next values are 1 and 2, or 3 and 8
without double Q-learning. The values of the actions taken, 1 and 2, are 4 and 6.

With a reward of 1 and double Q-learning, dimensions that bootstrap from their own value have the targets 1.5 and 2; the
mean of the values gives both of them 1.75.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import BDQ
from lightning_ding.policy import BDQPolicy
from tests.policy.tables import prepared_loss

ONLINE = ([[0.0, 4.0], [9.0, 0.0]], [[0.0, 0.0, 6.0], [9.0, 0.0, 0.0]])
TARGET = ([[0.0, 0.0], [1.0, 3.0]], [[0.0, 0.0, 0.0], [2.0, 8.0, 5.0]])


class Branches(nn.Module):
    """Looks up the values of each dimension in a state, 0 or 1."""

    def __init__(self, tables: Any) -> None:
        super().__init__()
        self.tables = nn.ParameterList([nn.Parameter(torch.tensor(table)) for table in tables])

    def forward(self, obs: Tensor) -> dict[str, list[Tensor]]:
        return {"logit": [table[obs.long().flatten()] for table in self.tables]}


def make_policy(**learn: Any) -> Any:
    config = {"discount_factor": 0.5, "model": {"obs_shape": 1, "action_shape": [2, 3]}, "learn": learn}
    policy: Any = BDQPolicy(config, model=Branches(ONLINE))
    for kept, new in zip(policy.target_model.tables, TARGET, strict=True):
        kept.data = torch.tensor(new)
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    batch = {"obs": torch.zeros(1, 1), "next_obs": torch.ones(1, 1), "action": torch.tensor([[1, 2]])}
    ends = {"terminated": torch.tensor([False]), "truncated": torch.tensor([False])}
    return batch | ends | {"reward": torch.ones(1), **changes}


@pytest.mark.parametrize(
    ("learn", "targets"),
    [
        ({}, (1.75, 1.75)),
        ({"double_q": False}, (1 + 0.25 * (3 + 8), 1 + 0.25 * (3 + 8))),
        ({"mean_target": False}, (1.5, 2.0)),
        ({"mean_target": False, "double_q": False}, (2.5, 5.0)),
    ],
)
def test_loss_is_the_mean_over_the_dimensions(learn: dict[str, Any], targets: tuple[float, float]) -> None:
    policy = make_policy(loss="mse", **learn)
    loss, report = prepared_loss(policy, make_batch())
    first, second = targets
    assert_close(loss.item(), ((4 - first) ** 2 + (6 - second) ** 2) / 2)
    assert_close(report["target_q_value"], torch.tensor([(first + second) / 2]))
    assert_close(report["q_value"], torch.tensor([5.0]))


def test_terminal_step_does_not_bootstrap_and_a_truncated_one_does() -> None:
    policy, ended = make_policy(), torch.tensor([True])
    assert prepared_loss(policy, make_batch(terminated=ended))[1]["target_q_value"].item() == 1.0
    assert prepared_loss(policy, make_batch(truncated=ended))[1]["target_q_value"].item() == 1.75


def test_illegal_actions_are_not_chosen_by_the_target() -> None:
    mask = torch.tensor(
        [[0, 1, 0, 1, 1]]
    )  # of the first dimension action 1 is left, with a value of 3; of the second 8
    policy = BDQPolicy(make_policy().config, model=MaskedBranches(ONLINE))
    target: Any = policy.target_model
    for kept, new in zip(target.tables, TARGET, strict=True):
        kept.data = torch.tensor(new)
    both = {
        name: {"state": torch.tensor([[state]]), "action_mask": mask} for name, state in (("obs", 0), ("next_obs", 1))
    }
    _, report = prepared_loss(policy, make_batch(**both))
    assert_close(report["target_q_value"], torch.tensor([1 + 0.25 * (3 + 8)]))


class MaskedBranches(Branches):
    """The same for observations with a mask."""

    def forward(self, obs: Any) -> dict[str, list[Tensor]]:
        return super().forward(obs["state"])


def test_priority_is_the_mean_error_of_the_dimensions() -> None:
    policy = make_policy(mean_target=False)
    config = {"discount_factor": 0.5, "priority": True, "learn": {"mean_target": False}}
    prioritised: Any = BDQPolicy({**config, "model": {"obs_shape": 1, "action_shape": [2, 3]}}, model=policy.model)
    prioritised.target_model.load_state_dict(policy.target_model.state_dict())
    _, report = prepared_loss(prioritised, make_batch())
    assert_close(report["priority"], torch.tensor([((4 - 1.5) + (6 - 2.0)) / 2]))


# ---------------------------------------------------------------------- the network


def test_value_is_shared_and_advantages_of_each_dimension_have_a_mean_of_zero() -> None:
    torch.manual_seed(0)
    network, obs = BDQ(4, [2, 3], encoder_hidden_size_list=[8]), torch.randn(5, 4)
    value = network.value(network.encoder(obs))
    for q in network(obs)["logit"]:
        assert_close(q.mean(1, keepdim=True), value)
    for branch, q in zip(network.branches, network(obs)["logit"], strict=True):
        advantage = branch(network.encoder(obs))
        assert_close(q, value + advantage - advantage.mean(1, keepdim=True))


def test_gradient_of_the_encoder_is_divided_by_the_number_of_parts() -> None:
    def gradient(share: float | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = BDQ(4, [2, 3], encoder_hidden_size_list=[8])
        network.gradient_share = network.gradient_share if share is None else share
        sum((q.square().sum() for q in network(torch.ones(5, 4))["logit"]), torch.zeros(())).backward()
        return {name: one.grad for name, one in network.named_parameters() if one.grad is not None}

    whole, shared = gradient(1.0), gradient(None)
    assert any(name.startswith("encoder.") for name in whole)
    for name, one in whole.items():
        assert_close(shared[name], one / 3 if name.startswith("encoder.") else one)


@pytest.mark.parametrize(("options", "value", "branch"), [({}, 2, 2), ({"a_layer_num": 3, "v_layer_num": 0}, 1, 4)])
def test_streams_have_the_layers_that_are_asked_for(options: dict[str, Any], value: int, branch: int) -> None:
    network = BDQ(4, [2, 3], encoder_hidden_size_list=[8], **options)

    def linear(part: nn.Module) -> int:
        return sum(isinstance(one, nn.Linear) for one in part.modules())

    assert (linear(network.value), [linear(one) for one in network.branches]) == (value, [branch, branch])


def test_one_dimension_has_a_tensor_of_values() -> None:
    assert BDQ(4, 3)(torch.zeros(5, 4))["logit"].shape == (5, 3)
