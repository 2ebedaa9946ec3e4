"""SQN against numbers worked out by hand, on networks that are tables of values.

The temperature is 1 and gamma 0.5. State 0 is where the agent was, state 1 where it went. The target networks' values
of state 1 are (0, log 3) and (5, 9), of which the smaller ones are (0, log 3): a soft value of log 4, a policy of
(1/4, 3/4), and an entropy of log 4 - 3/4 log 3. The online networks' values of state 0 are (1, 2) and (3, 5).

Row 0 took action 1 for a reward of 1, row 1 action 0 for a reward of -1: targets 1 + 0.5 log 4 and -1 + 0.5 log 4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.policy import SQNPolicy, create_policy
from tests.policy import tables
from tests.policy.tables import prepared_loss

LOG_3, LOG_4 = math.log(3), math.log(4)
TARGETS = [1 + 0.5 * LOG_4, -1 + 0.5 * LOG_4]
ENTROPY = LOG_4 - 0.75 * LOG_3


class TwoTables(nn.Module):
    """Looks up the values of two networks in a state."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.tensor(values))
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Any) -> dict[str, Any]:
        state: Tensor = obs["state"] if isinstance(obs, dict) else obs
        both = self.tables[:, state.long().reshape(-1)]
        return {"logit": both.amin(0), "q_value": list(both)}


def make_policy(learn: dict[str, Any] | None = None, **config: Any) -> Any:
    model = TwoTables([[[1.0, 2.0], [0.0, 0.0]], [[3.0, 5.0], [0.0, 0.0]]])
    policy: Any = SQNPolicy({"discount_factor": 0.5, **config, "learn": {"alpha": 1.0, **(learn or {})}}, model=model)
    policy.target_model.tables.data = torch.tensor([[[0.0, 0.0], [0.0, LOG_3]], [[0.0, 0.0], [5.0, 9.0]]])
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    return tables.make_batch(**{"action": torch.tensor([1, 0]), **changes})


def test_targets_have_the_soft_value_of_the_smaller_values() -> None:
    _, report = prepared_loss(make_policy(), make_batch())
    assert_close(report["target_q_value"], torch.tensor(TARGETS))
    assert_close(report["entropy"], torch.full((2,), ENTROPY))
    assert_close(report["q_value"], torch.tensor([(2 + 5) / 2, (1 + 3) / 2]))


def test_soft_value_ends_at_a_terminal_state_but_not_at_a_time_limit() -> None:
    batch = make_batch(terminated=torch.tensor([True, False]), truncated=torch.tensor([False, True]))
    assert_close(prepared_loss(make_policy(), batch)[1]["target_q_value"], torch.tensor([1.0, TARGETS[1]]))


def test_loss_is_the_sum_of_the_squared_errors_of_both_networks() -> None:
    loss, _ = prepared_loss(make_policy({"loss": "mse"}), make_batch())
    first, second = TARGETS
    of_each = [((q - first) ** 2 + (p - second) ** 2) / 2 for q, p in ((2, 1), (5, 3))]
    assert_close(loss.item(), sum(of_each))


def test_weights_and_priorities_are_those_of_both_networks() -> None:
    policy = make_policy({"loss": "mse"}, priority=True, priority_IS_weight=True)
    loss, report = prepared_loss(policy, make_batch(IS=torch.tensor([0.5, 2.0])))
    first, second = TARGETS
    assert_close(loss.item(), sum((0.5 * (q - first) ** 2 + 2 * (p - second) ** 2) / 2 for q, p in ((2, 1), (5, 3))))
    errors = [(abs(2 - first) + abs(5 - first)) / 2, (abs(1 - second) + abs(3 - second)) / 2]
    assert_close(report["priority"], torch.tensor(errors))


def test_illegal_actions_have_no_part_in_soft_values_and_entropies() -> None:
    next_obs = {"state": torch.ones(2), "action_mask": torch.tensor([[1, 0], [0, 1]])}
    obs = {"state": torch.zeros(2), "action_mask": torch.ones(2, 2)}
    _, report = prepared_loss(make_policy(), make_batch(obs=obs, next_obs=next_obs))
    assert_close(report["target_q_value"], torch.tensor([1.0, -1 + 0.5 * LOG_3]))
    assert_close(report["entropy"], torch.zeros(2))


@pytest.mark.parametrize("target_entropy", [0.1, 0.65])
def test_temperature_falls_while_the_entropy_is_too_large_and_rises_while_it_is_too_small(
    target_entropy: float,
) -> None:
    policy = make_policy({"target_entropy": target_entropy})
    loss, _ = policy.alpha_loss({"entropy": torch.tensor([0.2, 0.6]), "total_loss": torch.zeros(())})
    loss.backward()
    assert_close(policy.model.log_alpha.grad.item(), 0.4 - target_entropy)
    before = policy.alpha
    policy.learn_mode.forward(make_batch())  # the entropy is 0.56
    assert bool(policy.alpha > before) == (target_entropy == 0.65)


def test_temperature_stays_where_it_is_not_learned() -> None:
    policy = make_policy({"auto_alpha": False, "alpha": 0.3})
    policy.learn_mode.forward(make_batch())
    assert_close(policy.alpha, torch.tensor(0.3))
    assert len(policy.updater.optimizers) == 1


def test_temperature_is_part_of_the_network_that_collectors_get() -> None:
    policy: Any = create_policy({"type": "sqn", "model": {"obs_shape": 3, "action_shape": 2}})
    policy.model.log_alpha.data.fill_(math.log(0.7))
    other: Any = create_policy({"type": "sqn", "model": {"obs_shape": 3, "action_shape": 2}})
    other.model.load_state_dict(policy.model.state_dict())
    assert_close(other.alpha, torch.tensor(0.7))


def test_it_collects_with_the_softmax_of_the_smaller_values() -> None:
    policy = make_policy()
    policy.seed(0)
    policy.model.tables.data = torch.tensor([[[0.0, LOG_3], [0.0, 0.0]], [[7.0, 7.0], [0.0, 0.0]]])
    action = policy.collect_mode.forward(torch.zeros(4000, 1), eps=0.0)["action"]
    assert np.isclose(action.float().mean().item(), 0.75, atol=0.02)
    action = policy.collect_mode.forward(torch.zeros(4000, 1), eps=1.0)["action"]
    assert np.isclose(action.float().mean().item(), 0.5, atol=0.024)
    assert policy.eval_mode.forward(torch.zeros(100, 1))["action"].float().mean() == 1


def test_dimensions_of_an_action_have_separate_targets() -> None:
    torch.manual_seed(0)
    policy: Any = create_policy({"type": "sqn", "model": {"obs_shape": 1, "action_shape": [2, 3]}})
    batch = make_batch(action=torch.tensor([[1, 2], [0, 0]]))
    whole = policy._targets(policy.prepare(batch))
    assert len(whole) == 2
    assert not torch.allclose(*whole)
    loss, report = prepared_loss(policy, batch)
    outputs, expected = policy.model(batch["obs"])["q_value"], []
    for one in outputs:
        for q, action, target in zip(one, batch["action"].unbind(1), whole, strict=True):
            expected.append(nn.functional.smooth_l1_loss(q.gather(1, action[:, None])[:, 0], target))
    assert_close(loss, sum(expected, torch.zeros(())) / 2)
    assert report["entropy"].shape == (2,)


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        ({"alpha": 0.0}, "learn.alpha must be > 0, got 0.0"),
        ({"double_q": True}, "learn.double_q must be False with a soft value, got True"),
        ({"learning_rate_alpha": 0.0}, "learn.learning_rate_alpha must be > 0, got 0.0"),
        ({"auto_alpha": False, "target_entropy": 0.5}, "left at their defaults without learn.auto_alpha"),
    ],
)
def test_wrong_options_are_refused(learn: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "sqn", "learn": learn})
