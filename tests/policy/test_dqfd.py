"""DQfD against numbers worked out by hand, on networks that are tables of values; and SQIL's target.

gamma is 0.5 and the loss the squared error. State 0 is where the agent was, state 1 where it went after one step, and
state 2 after two. The network's values are (1, 2) in state 0, (0, 3) in state 1 and (4, 0) in state 2; the target
network's are (1, 1), (2, 4) and (6, 8), so double Q-learning takes 4 from state 1 and 6 from state 2.

Row 0 took action 0 for rewards of 1 and 2: one step 1 + 0.5 * 4 = 3, two steps 1 + 0.5 * 2 + 0.25 * 6 = 3.5; errors 2
and 2.5. It is a demonstration: its margin loss is max(1, 2 + 0.5) - 1 = 1.5. Row 1 took action 1 for rewards of -1 and
0, and ended after two steps: targets 1 and -1; errors 1 and 3.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding import nested, rl
from lightning_ding.policy import DQfDPolicy, SQILPolicy, SQLPolicy
from tests.policy.tables import TableNet, prepared_loss

ONLINE = [[1.0, 2.0], [0.0, 3.0], [4.0, 0.0]]
TARGET = [[1.0, 1.0], [2.0, 4.0], [6.0, 8.0]]
HALF_SQUARE = (1 + 4 + 9 + 16) / 2
ONE_STEP, N_STEP, MARGIN = (4 + 1) / 2, (6.25 + 9) / 2, 1.5 / 2


def make_policy(**learn: Any) -> Any:
    options = {"loss": "mse", "margin_function": 0.5, "lambda3": 0.0, **learn}
    config = {"discount_factor": 0.5, "nstep": 2, "priority_IS_weight": "IS" in learn}
    options.pop("IS", None)
    policy: Any = DQfDPolicy({**config, "learn": options}, model=TableNet(ONLINE))
    policy.target_model.table.data = torch.tensor(TARGET)
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    return {
        "obs": torch.zeros(2, 1),
        "action": torch.tensor([0, 1]),
        "reward": torch.tensor([2.0, -1.0]),
        "next_obs": torch.full((2, 1), 2.0),
        "terminated": torch.tensor([False, True]),
        "discount": torch.full((2,), 0.25),
        "reward_1": torch.tensor([1.0, -1.0]),
        "next_obs_1": torch.ones(2, 1),
        "terminated_1": torch.tensor([False, False]),
        "is_expert": torch.tensor([True, False]),
        **changes,
    }


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ({"lambda1": 0.0, "lambda2": 0.0}, ONE_STEP),
        ({"lambda2": 0.0}, ONE_STEP + N_STEP),
        ({"lambda1": 0.5, "lambda2": 3.0}, ONE_STEP + 0.5 * N_STEP + 3 * MARGIN),
        ({"lambda1": 0.0, "lambda2": 0.0, "lambda3": 0.1}, ONE_STEP + 0.1 * HALF_SQUARE),
        ({"lambda1": 0.0, "lambda2": 1.0, "margin_function": 2.0}, ONE_STEP + 3 / 2),
    ],
)
def test_loss_is_the_weighted_sum(learn: dict[str, Any], expected: float) -> None:
    loss, report = prepared_loss(make_policy(**learn), make_batch())
    assert_close(loss, torch.tensor(expected))
    assert_close(report["total_loss"], loss.detach())


def test_importance_weights_weigh_rows_and_their_mean_the_squares() -> None:
    loss, _ = prepared_loss(make_policy(IS=True, lambda3=0.1), make_batch(IS=torch.tensor([0.5, 2.0])))
    rows = 0.5 * (4 + 6.25 + 1.5) + 2 * (1 + 9)
    assert_close(loss, torch.tensor(rows / 2 + 1.25 * 0.1 * HALF_SQUARE))


def test_share_of_the_squares_does_not_depend_on_the_scale_of_importance_weights() -> None:
    weights = torch.tensor([0.5, 2.0])
    losses = [
        prepared_loss(make_policy(IS=True, lambda3=0.1), make_batch(IS=scale * weights))[0] for scale in (1.0, 0.01)
    ]
    assert_close(losses[1], 0.01 * losses[0])


def test_priority_is_the_one_step_error_and_targets_bootstrap_unless_terminated() -> None:
    _, report = prepared_loss(make_policy(), make_batch())
    assert_close(report["priority"], torch.tensor([2.0, 1.0]))
    _, report = prepared_loss(make_policy(), make_batch(terminated_1=torch.tensor([True, False])))
    assert_close(report["priority"], torch.tensor([0.0, 1.0]))


def test_illegal_actions_have_no_margin() -> None:
    obs = {"state": torch.zeros(2), "action_mask": torch.tensor([[1, 0], [1, 1]])}
    rest = {
        name: {"state": torch.full((2,), 1.0), "action_mask": torch.ones(2, 2)} for name in ("next_obs", "next_obs_1")
    }
    _, report = prepared_loss(make_policy(), make_batch(obs=obs, **rest))
    assert report["margin_loss"] == 0


def test_prepared_round_gives_the_same_loss() -> None:
    policy, batch = make_policy(), make_batch()
    prepared = policy._prepare_round({name: value.unsqueeze(0) for name, value in batch.items()})
    assert {"logit", "first"} <= prepared["target"].keys()
    one = nested.apply(lambda column: column[0], prepared)
    assert_close(prepared_loss(policy, one)[0], prepared_loss(policy, batch)[0])
    policy.target_model.table.data.zero_()  # the prepared values are used
    assert_close(prepared_loss(policy, one)[0], prepared_loss(make_policy(), batch)[0])


def test_large_margin_equals_a_loop() -> None:
    torch.manual_seed(0)
    q, action = torch.randn(20, 4), torch.randint(4, (20,))
    expected = [
        max(float(q[i, a]) + (0.3 if a != action[i] else 0.0) for a in range(4)) - float(q[i, action[i]])
        for i in range(20)
    ]
    assert_close(rl.large_margin(q, action, 0.3), torch.tensor(expected))


@pytest.mark.parametrize("name", ["lambda1", "lambda2", "lambda3", "margin_function", "per_train_iter_k"])
def test_negative_options_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"learn\.{name} must be >= 0, got -1"):
        DQfDPolicy({"learn": {name: -1}})


def test_targets_of_sqil_are_those_of_soft_q_learning() -> None:
    losses = []
    for policy_class in (SQILPolicy, SQLPolicy):
        policy: Any = policy_class({"discount_factor": 0.5}, model=TableNet(ONLINE))
        policy.target_model.table.data = torch.tensor(TARGET)
        losses.append(prepared_loss(policy, make_batch())[0])
    assert losses[0] == losses[1]
