"""Munchausen DQN and soft Q-learning against numbers worked out by hand, on networks that are tables of values.

The temperature is 1 and gamma 0.5. State 0 is where the agent was, state 1 where it went. The target network's values
are (0, log 3) in state 0, a softmax of (1/4, 3/4), and (0, 0) in state 1, a soft value of log 2. The online network's
values of state 0 are (1, 2). Row 0 took action 1 for a reward of 1, row 1 action 0 for a reward of -1.

Soft Q-learning: targets 1 + 0.5 log 2 and -1 + 0.5 log 2. Munchausen DQN with a weight of 0.5 adds 0.5 log 3/4 in row 0
and, as log 1/4 is clipped to -1, -0.5 in row 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.policy import MDQNPolicy, SQLPolicy, create_policy
from lightning_ding.policy.dqn import DQNPolicy
from tests.policy import tables
from tests.policy.tables import TableNet, prepared_loss

LOG_2, LOG_3 = math.log(2), math.log(3)
ONLINE, TARGET = [[1.0, 2.0], [0.0, 0.0]], [[0.0, LOG_3], [0.0, 0.0]]
SQL_TARGETS = [1 + 0.5 * LOG_2, -1 + 0.5 * LOG_2]
MDQN_TARGETS = [SQL_TARGETS[0] + 0.5 * math.log(0.75), SQL_TARGETS[1] - 0.5]
MDQN = {"entropy_tau": 1.0, "m_alpha": 0.5}
SQL = {"learn": {"alpha": 1.0}}


def make_policy(policy_class: type[DQNPolicy], **cfg: Any) -> Any:
    """Return a policy on the tables above."""
    base: dict[str, Any] = MDQN if policy_class is MDQNPolicy else SQL
    policy: Any = policy_class({"discount_factor": 0.5, **base, **cfg}, model=TableNet(ONLINE))
    policy.target_model.table.data = torch.tensor(TARGET)
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    return tables.make_batch(**{"action": torch.tensor([1, 0]), **changes})


EACH = pytest.mark.parametrize(("policy_class", "expected"), [(MDQNPolicy, MDQN_TARGETS), (SQLPolicy, SQL_TARGETS)])


def targets(policy: Any, batch: dict[str, Any]) -> Tensor:
    found: Tensor = prepared_loss(policy, batch)[1]["target_q_value"]
    return found


@EACH
def test_targets_are_those_worked_out(policy_class: type[DQNPolicy], expected: list[float]) -> None:
    assert_close(targets(make_policy(policy_class), make_batch()), torch.tensor(expected))


@EACH
def test_loss_is_the_squared_error_of_the_action_taken(policy_class: type[DQNPolicy], expected: list[float]) -> None:
    learn = {"loss": "mse"} | (SQL["learn"] if policy_class is SQLPolicy else {})
    loss, _ = prepared_loss(make_policy(policy_class, learn=learn), make_batch())
    assert_close(loss.item(), ((2 - expected[0]) ** 2 + (1 - expected[1]) ** 2) / 2)


@EACH
def test_soft_value_ends_at_a_terminal_state_but_not_at_a_time_limit(
    policy_class: type[DQNPolicy], expected: list[float]
) -> None:
    batch = make_batch(terminated=torch.tensor([True, False]), truncated=torch.tensor([False, True]))
    found = targets(make_policy(policy_class), batch)
    assert_close(found, torch.tensor([expected[0] - 0.5 * LOG_2, expected[1]]))


@EACH
def test_illegal_actions_have_no_part_in_soft_values_and_bonuses(
    policy_class: type[DQNPolicy], expected: list[float]
) -> None:
    # the only legal action has a probability of 1 and no entropy: bonus 0, soft value 0
    only_the_taken = torch.tensor([[0, 1], [1, 0]])
    obs = {"state": torch.zeros(2), "action_mask": only_the_taken}
    next_obs = {"state": torch.ones(2), "action_mask": torch.tensor([[1, 0], [0, 1]])}
    found = targets(make_policy(policy_class), make_batch(obs=obs, next_obs=next_obs))
    assert_close(found, torch.tensor([1.0, -1.0]))


@EACH
def test_prepared_round_gives_the_same_targets(policy_class: type[DQNPolicy], expected: list[float]) -> None:
    policy = make_policy(policy_class)
    prepared = policy._prepare_round({name: column[None] for name, column in make_batch().items()})
    assert ("before" in prepared["target"]) == (policy_class is MDQNPolicy)
    policy.target_model.table.data.fill_(torch.nan)  # no longer needed
    assert_close(targets(policy, nested.apply(lambda column: column[0], prepared)), torch.tensor(expected))


@pytest.mark.parametrize("name", ["mdqn", "sql"])
def test_dimensions_of_an_action_have_separate_targets(name: str) -> None:
    torch.manual_seed(0)
    policy: Any = create_policy({"type": name, "model": {"obs_shape": 1, "action_shape": [2, 3]}})
    batch = make_batch(action=torch.tensor([[1, 2], [0, 0]]))
    whole = policy._targets(policy.prepare(batch))
    assert len(whole) == 2
    assert not torch.allclose(*whole)
    assert prepared_loss(policy, batch)[0].isfinite()


def test_soft_q_learning_collects_with_the_softmax_of_its_values() -> None:
    policy = make_policy(SQLPolicy)
    policy.seed(0)
    policy.model.table.data = torch.tensor([[0.0, LOG_3], [0.0, 0.0]])
    action = policy.collect_mode.forward(torch.zeros(4000, 1), eps=0.0)["action"]
    assert np.isclose(action.float().mean().item(), 0.75, atol=0.02)
    action = policy.collect_mode.forward(torch.zeros(4000, 1), eps=1.0)["action"]
    assert np.isclose(action.float().mean().item(), 0.5, atol=0.024)
    assert policy.eval_mode.forward(torch.zeros(100, 1))["action"].float().mean() == 1


def test_soft_q_learning_never_samples_an_illegal_action() -> None:
    policy = make_policy(SQLPolicy)
    obs = {"state": torch.zeros(500), "action_mask": torch.tensor([[1, 0]] * 500)}
    for eps in (0.0, 1.0):
        assert policy.collect_mode.forward(obs, eps=eps)["action"].max() == 0


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("mdqn", {"entropy_tau": 0.0}, "entropy_tau must be > 0, got 0.0"),
        ("mdqn", {"m_alpha": 1.5}, r"m_alpha must be in \[0, 1\], got 1.5"),
        ("mdqn", {"m_clip": 0.0}, "m_clip must be < 0, got 0.0"),
        ("mdqn", {"learn": {"double_q": True}}, "learn.double_q must be False with a soft value, got True"),
        ("sql", {"learn": {"double_q": True}}, "learn.double_q must be False with a soft value, got True"),
        ("sql", {"learn": {"alpha": 0.0}}, "learn.alpha must be > 0, got 0.0"),
    ],
)
def test_wrong_options_are_refused(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": name, **config})
