"""QR-DQN against numbers worked out by hand, on networks that are tables of quantiles.

Two quantiles, 1/4 and 3/4; gamma is 0.5. State 0 is where the agent was, state 1 where it went. There the online values
are 0 and 2, so double Q-learning takes action 1; the target's are 8 and 1, action 1 with quantiles 0 and 2. Row 0 took
action 0, quantiles 0 and 1, for a reward of 1; row 1 action 1, quantiles 0 and 0, for -1.

Row 0: targets 1 and 2. Errors of the first quantile 1 and 2, Huber 0.5 and 1.5: 0.25 * 2 / 2 = 0.25; of the second 0
and 1: 0.75 * 0.5 / 2 = 0.1875. Row 1: targets -1 and 0. Errors -1 and 0, twice: (0.75 + 0.25) * 0.5 / 2 = 0.25.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.policy import QRDQNPolicy, create_policy
from tests.policy.tables import IS, NEXT_WITHOUT_ACTION_1, SECOND_ONLY, make_batch, prepared_loss

ONLINE = [[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 3.0]]]
TARGET = [[[0.0, 0.0], [0.0, 0.0]], [[8.0, 8.0], [0.0, 2.0]]]
FIRST, SECOND = 0.4375, 0.25  # the losses of the two rows


class TableNet(nn.Module):
    """Looks up the quantiles of a state."""

    def __init__(self, table: list[list[list[float]]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, obs: Any) -> dict[str, Tensor]:
        q = self.table[(obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)]
        return {"logit": q.mean(2), "q": q, "tau": torch.tensor([0.25, 0.75])}


def make_policy(learn: dict[str, Any] | None = None, **cfg: Any) -> QRDQNPolicy:
    """Return a policy on the tables above."""
    policy = QRDQNPolicy({"discount_factor": 0.5, **cfg, "learn": {**(learn or {})}}, model=TableNet(ONLINE))
    target: Any = policy.target_model
    target.table.data = torch.tensor(TARGET)
    return policy


@pytest.mark.parametrize(
    ("changes", "cfg", "expected"),
    [
        ({}, {}, (FIRST + SECOND) / 2),
        # only the error 2 is beyond 1: Huber 2 instead of 1.5: 0.25 * 2.5 / 2 + 0.1875 = 0.5
        ({}, {"learn": {"kappa": 2.0}}, (0.5 + SECOND) / 2),
        # the target network's best is 8: targets 5 and 3. Row 0: errors 5 and 4: 0.25 * 4.5 + 0.75 * 3.5;
        # row 1: error 3 twice: (0.25 + 0.75) * 2.5
        ({}, {"learn": {"double_q": False}}, (3.75 + 2.5) / 2),
        # row 1: target -1, error -1 from both: (0.75 + 0.25) * 0.5
        ({"terminated": SECOND_ONLY}, {}, (FIRST + 0.5) / 2),
        ({"terminated": SECOND_ONLY}, {"learn": {"ignore_done": True}}, (FIRST + SECOND) / 2),
        ({"truncated": torch.tensor([True, True])}, {}, (FIRST + SECOND) / 2),
        # row 1, 0.25: targets -1 and -0.5: Huber 0.5 and 0.125, twice: (0.75 + 0.25) * 0.625 / 2
        ({"discount": torch.tensor([0.5, 0.25])}, {"nstep": 3}, (FIRST + 0.3125) / 2),
        # row 1 may not take action 1: action 0 is worth 8: 2.5 as above
        ({"next_obs": NEXT_WITHOUT_ACTION_1}, {}, (FIRST + 2.5) / 2),
        ({"IS": IS}, {"priority": True, "priority_IS_weight": True}, (0.5 * FIRST + 2 * SECOND) / 2),
        ({"IS": IS}, {"priority": True}, (FIRST + SECOND) / 2),
        ({"IS": IS}, {}, (FIRST + SECOND) / 2),
    ],
)
def test_loss_is_the_mean_quantile_huber_loss(changes: dict[str, Any], cfg: dict[str, Any], expected: float) -> None:
    assert prepared_loss(make_policy(**cfg), make_batch(**changes))[0].item() == expected


def test_the_gradient_reaches_the_action_taken_only() -> None:
    # row 0: -0.25 * (1 + 1) / 2 and -0.75 * (0 + 1) / 2; row 1: 0.75 * 1 / 2 and 0.25 * 1 / 2; the mean halves them
    policy = make_policy()
    prepared_loss(policy, make_batch())[0].backward()
    model: Any = policy.model
    assert model.table.grad.tolist() == [[[-0.125, -0.1875], [0.1875, 0.0625]], [[0.0, 0.0], [0.0, 0.0]]]
    assert [p.grad for p in policy.target_model.parameters()] == [None]


def test_report_holds_loss_value_target_and_priority_without_gradient() -> None:
    report = prepared_loss(make_policy(priority=True), make_batch())[1]
    assert not any(value.requires_grad for value in report.values())
    assert {name: value.tolist() for name, value in report.items()} == {
        "total_loss": (FIRST + SECOND) / 2,
        "q_value": [0.5, 0.0],
        "target_q_value": [1.5, -0.5],
        "priority": [FIRST, SECOND],
    }
    assert "priority" not in prepared_loss(make_policy(), make_batch())[1]


def test_the_quantiles_reach_those_of_the_reward() -> None:
    # an episode of one step with rewards 0 and 4 in equal shares: any 1/4 quantile is near 0, any 3/4 quantile near 4
    policy = QRDQNPolicy({"learn": {"learning_rate": 0.05, "kappa": 0.1}}, model=TableNet([[[2.0, 2.0]]]))
    batch = {"obs": torch.zeros(2, 1), "next_obs": torch.zeros(2, 1), "action": torch.zeros(2, dtype=torch.int64)}
    batch |= {"reward": torch.tensor([0.0, 4.0]), "terminated": torch.ones(2), "truncated": torch.zeros(2)}
    for _ in range(200):
        policy.learn_mode.forward(batch)
    assert_close(next(policy.model.parameters()).detach(), torch.tensor([[[0.0, 4.0]]]), rtol=0, atol=0.15)


@pytest.mark.parametrize(
    ("name", "eps"),
    [("c51", 0.01 / 32), ("qrdqn", 0.01 / 32), ("iqn", 0.01 / 32), ("fqf", 0.01 / 32), ("rainbow", 1.5e-4)],
)
def test_distributional_policies_step_with_the_eps_of_their_papers(name: str, eps: float) -> None:
    policy = create_policy({"type": name, "model": {"obs_shape": 3, "action_shape": 2}})
    assert {optimizer.defaults["eps"] for optimizer in policy.updater.optimizers} == {eps}
