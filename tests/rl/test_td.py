"""Temporal-difference targets and losses of Q-learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import double_q_target, masked, n_step_return, q_target, take_action_value, td_error, td_loss

Q_T = torch.tensor([[1.0, 4.0, 2.0], [6.0, 5.0, 3.0]])
Q_T_SELECTOR = torch.tensor([[9.0, 0.0, 1.0], [0.0, 2.0, 8.0]])
REWARD = torch.tensor([1.0, -1.0])


def test_take_action_value_picks_one_value_of_each_row() -> None:
    assert take_action_value(Q_T, torch.tensor([2, 0])).tolist() == [2.0, 6.0]


def test_take_action_value_passes_the_gradient_to_the_action_taken_only() -> None:
    q = Q_T.clone().requires_grad_()
    take_action_value(q, torch.tensor([2, 0])).sum().backward()
    assert q.grad is not None
    assert q.grad.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


def test_masked_sets_illegal_actions_to_minus_infinity() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]])
    assert masked(Q_T, mask).tolist() == [[1.0, -torch.inf, 2.0], [-torch.inf, 5.0, 3.0]]


def test_masked_without_a_mask_returns_the_values() -> None:
    assert masked(Q_T, None) is Q_T


def test_masked_leaves_a_row_without_a_legal_action() -> None:
    mask = torch.tensor([[False, False, False], [True, False, False]])
    assert masked(Q_T, mask).tolist() == [[1.0, 4.0, 2.0], [6.0, -torch.inf, -torch.inf]]


def test_q_target_adds_the_discounted_largest_value() -> None:
    # 1 + 0.5 * 4 = 3;  -1 + 0.9 * 6 = 4.4
    assert_close(q_target(REWARD, torch.tensor([0.5, 0.9]), Q_T), torch.tensor([3.0, 4.4]))


def test_q_target_ignores_the_next_state_after_termination() -> None:
    # -1 + 0 * 6 = -1
    assert_close(q_target(REWARD, torch.tensor([0.5, 0.0]), Q_T), torch.tensor([3.0, -1.0]))


def test_q_target_never_takes_an_illegal_action() -> None:
    # without the 4 and the 6: 1 + 0.5 * 2 = 2;  -1 + 0.5 * 5 = 1.5
    q_t = masked(Q_T, torch.tensor([[1, 0, 1], [0, 1, 1]]))
    assert_close(q_target(REWARD, torch.tensor([0.5, 0.5]), q_t), torch.tensor([2.0, 1.5]))


def test_q_target_is_finite_for_a_terminal_row_without_a_legal_action() -> None:
    q_t = masked(Q_T, torch.zeros(2, 3))
    assert_close(q_target(REWARD, torch.zeros(2), q_t), REWARD)


def test_double_q_target_values_the_action_that_the_selector_chooses() -> None:
    # the selector takes actions 0 and 2, worth 1 and 3:  1 + 0.5 * 1 = 1.5;  -1 + 0.9 * 3 = 1.7
    target = double_q_target(REWARD, torch.tensor([0.5, 0.9]), Q_T, Q_T_SELECTOR)
    assert_close(target, torch.tensor([1.5, 1.7]))


def test_double_q_target_ignores_the_next_state_after_termination() -> None:
    target = double_q_target(REWARD, torch.zeros(2), Q_T, Q_T_SELECTOR)
    assert_close(target, REWARD)


def test_double_q_target_with_the_same_network_is_the_q_target() -> None:
    discount_t = torch.tensor([0.5, 0.9])
    assert_close(double_q_target(REWARD, discount_t, Q_T, Q_T), q_target(REWARD, discount_t, Q_T))


@pytest.mark.parametrize("target", [q_target, lambda r, d, q: double_q_target(r, d, q, q)])
def test_targets_carry_no_gradient(target: Any) -> None:
    q = Q_T.clone().requires_grad_()
    assert not target(REWARD, torch.tensor([0.5, 0.9]), q).requires_grad


@pytest.mark.parametrize("target", [q_target, lambda r, d, q: double_q_target(r, d, q, q.flip(1))])
def test_targets_of_a_batch_are_those_of_its_rows(target: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    reward, discount_t, q = (torch.randn(shape, generator=generator) for shape in ((16,), (16,), (16, 4)))
    rows = [target(reward[i : i + 1], discount_t[i : i + 1], q[i : i + 1]) for i in range(16)]
    assert_close(target(reward, discount_t, q), torch.cat(rows))


@pytest.mark.parametrize(
    ("kind", "weight", "expected"),
    [
        # errors 2 and 0.5: squares 4 and 0.25; Huber 2 - 0.5 = 1.5 and 0.25 / 2 = 0.125
        ("mse", None, 2.125),
        ("huber", None, 0.8125),
        # weights 0.5 and 2: (2 + 0.5) / 2 = 1.25;  (0.75 + 0.25) / 2 = 0.5
        ("mse", torch.tensor([0.5, 2.0]), 1.25),
        ("huber", torch.tensor([0.5, 2.0]), 0.5),
    ],
)
def test_td_loss_is_the_weighted_mean(kind: Any, weight: Tensor | None, expected: float) -> None:
    loss = td_loss(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 2.5]), weight, kind)
    assert_close(loss, torch.tensor(expected))


def test_td_loss_with_weights_of_one_is_the_plain_loss() -> None:
    prediction, target = torch.tensor([1.0, 3.0]), torch.tensor([3.0, 2.5])
    assert_close(td_loss(prediction, target, torch.ones(2)), td_loss(prediction, target))


def test_td_loss_is_huber_unless_asked() -> None:
    assert_close(td_loss(torch.tensor([0.0]), torch.tensor([3.0])), torch.tensor(2.5))


def test_td_error_is_the_size_of_the_error_without_gradient() -> None:
    prediction = torch.tensor([1.0, 3.0], requires_grad=True)
    error = td_error(prediction, torch.tensor([3.0, 2.5]))
    assert (error.tolist(), error.requires_grad) == ([2.0, 0.5], False)


def test_td_loss_leads_the_prediction_to_the_target() -> None:
    # d/dp of ((p - 3)^2 + (p - 2.5)^2) / 2 at 1 and 3 is (p - target): -2 and 0.5
    prediction = torch.tensor([1.0, 3.0], requires_grad=True)
    td_loss(prediction, torch.tensor([3.0, 2.5]), kind="mse").backward()
    assert prediction.grad is not None
    assert prediction.grad.tolist() == [-2.0, 0.5]


def test_td_loss_refuses_an_unknown_kind() -> None:
    with pytest.raises(ValueError, match=r"kind must be one of \('huber', 'mse'\), got 'mae'"):
        td_loss(torch.zeros(1), torch.zeros(1), kind="mae")  # type: ignore[arg-type]


def slow_n_step_return(reward: Tensor, alive: Tensor, gamma: float) -> tuple[list[float], list[float]]:
    """Return what `n_step_return` should, one step of one item at a time."""
    totals, discounts = [], []
    for item in range(reward.shape[1]):
        total, discount = 0.0, 1.0
        for step in range(reward.shape[0]):
            if not alive[step, item]:
                break
            total += discount * reward[step, item].item()
            discount *= gamma
        totals.append(total)
        discounts.append(discount)
    return totals, discounts


def test_n_step_return_of_a_whole_window() -> None:
    # 1 + 0.5 * 2 + 0.25 * 4 = 3, and 0.5^3 = 0.125
    total, discount = n_step_return(torch.tensor([[1.0], [2.0], [4.0]]), torch.ones(3, 1, dtype=torch.bool), 0.5)
    assert (total.tolist(), discount.tolist()) == ([3.0], [0.125])


def test_n_step_return_stops_where_the_window_stops() -> None:
    # windows of 1, 2 and 3 steps with rewards 1, 2, 4: 1, 1 + 1 = 2, 3; discounts 0.5, 0.25, 0.125
    alive = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]], dtype=torch.bool)
    total, discount = n_step_return(torch.tensor([1.0, 2.0, 4.0]).unsqueeze(1).expand(3, 3), alive, 0.5)
    assert (total.tolist(), discount.tolist()) == ([1.0, 2.0, 3.0], [0.5, 0.25, 0.125])


def test_n_step_return_of_one_step_is_the_reward() -> None:
    reward = torch.tensor([[3.0, -2.0]])
    total, discount = n_step_return(reward, torch.ones(1, 2, dtype=torch.bool), 0.9)
    assert_close((total, discount), (reward[0], torch.tensor([0.9, 0.9])))


@pytest.mark.parametrize(("gamma", "total", "discount"), [(0.0, 5.0, 0.0), (1.0, 12.0, 1.0)])
def test_n_step_return_at_the_ends_of_the_range_of_gamma(gamma: float, total: float, discount: float) -> None:
    # gamma 0 keeps the first reward, 5; gamma 1 adds all, 5 + 3 + 4 = 12
    got = n_step_return(torch.tensor([[5.0], [3.0], [4.0]]), torch.ones(3, 1, dtype=torch.bool), gamma)
    assert (got[0].item(), got[1].item()) == (total, discount)


@pytest.mark.parametrize("seed", range(5))
def test_n_step_return_equals_the_slow_loop_for_windows_cut_at_random(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    steps = seed + 2
    reward = torch.randn(steps, 40, generator=generator)
    lengths = torch.randint(1, steps + 1, (40,), generator=generator)
    alive = torch.arange(steps).unsqueeze(1) < lengths
    total, discount = n_step_return(reward, alive, 0.9)
    expected = slow_n_step_return(reward, alive, 0.9)
    assert_close((total, discount), (torch.tensor(expected[0]), torch.tensor(expected[1])), rtol=1e-6, atol=1e-6)


def test_n_step_returns_chain_to_the_return_of_the_episode() -> None:
    # an episode of 4 rewards in windows of 3: R(0) = G3(0) + 0.9^3 * R(3), R(3) = 4; R(0) = 1 + 1.8 + 2.43 + 2.916
    reward, alive = torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 1, dtype=torch.bool)
    total, discount = n_step_return(reward, alive, 0.9)
    assert_close(total + discount * 4.0, torch.tensor([8.146]), rtol=1e-6, atol=1e-6)
