"""V-trace on numbers worked out by hand, against a slow loop over the paper's sums, and at ends of episodes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.rl import gae, vtrace

HALF, TWO = math.log(0.5), math.log(2.0)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def two_steps(discount: float = 0.5, ended: int = 0, **options: Any) -> Any:
    """Return V-trace of two steps with the ratios 2 and 1/2, rewards 1, values 1 and 2, and then a value of 4."""
    log_ratio, reward = column(TWO, HALF), column(1.0, 1.0)
    given = (log_ratio, reward, column(1.0, 2.0), column(2.0, 4.0), column(discount, 0.5), flags(ended, 1))
    found = vtrace(*given, **options)
    return found.target.flatten().tolist(), found.advantage.flatten().tolist()


def test_numbers_by_hand_with_ratios_clipped_at_1() -> None:
    # delta_1 = 1/2 (1 + 4/2 - 2) = 1/2, v_1 = 2 + 1/2; delta_0 = 1 (1 + 2/2 - 1) = 1, v_0 = 1 + 1 + 1/2 * 1 * 1/2
    # advantages: 1 (1 + 2.5/2 - 1) and 1/2 (1 + 4/2 - 2)
    target, advantage = two_steps()
    assert target == pytest.approx([2.25, 2.5])
    assert advantage == pytest.approx([1.25, 0.5])


def test_each_bound_has_its_own_place() -> None:
    # rho: delta_0 = 2, so v_0 = 1 + 2 + 1/4; c: v_0 = 1 + 1 + 1/2 * 2 * 1/2; rho_pg: twice the advantage
    assert two_steps(rho_clip_ratio=2.0)[0] == pytest.approx([3.25, 2.5])
    assert two_steps(c_clip_ratio=2.0)[0] == pytest.approx([2.5, 2.5])
    assert two_steps(rho_pg_clip_ratio=2.0)[1] == pytest.approx([2.5, 0.5])
    assert two_steps(rho_pg_clip_ratio=0.25)[1] == pytest.approx([0.3125, 0.25])


def test_lambda_weighs_later_errors() -> None:
    assert two_steps(lambda_=0.5)[0] == pytest.approx([2.125, 2.5])
    assert two_steps(lambda_=0.0)[0] == pytest.approx([2.0, 2.5])


def test_a_truncated_step_bootstraps_from_its_next_observation_and_takes_nothing_of_the_next_episode() -> None:
    # v_0 = 1 + delta_0 = 2; the advantage has V(s') = 2 in place of the target 2.5 of the other episode
    target, advantage = two_steps(ended=1)
    assert target == pytest.approx([2.0, 2.5])
    assert advantage == pytest.approx([1.0, 0.5])


def test_a_terminated_step_has_no_next_value() -> None:
    # discount 0: delta_0 = 1 (1 - 1) = 0
    assert two_steps(discount=0.0, ended=1) == (pytest.approx([1.0, 2.5]), pytest.approx([0.0, 0.5]))


def slow_vtrace(
    ratio: Tensor, reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ended: Tensor, bounds: Any
) -> tuple[Tensor, Tensor]:
    """Return the sums of eq. 1, each written out from its own step on."""
    lambda_, rho_bar, c_bar, rho_pg = bounds
    steps, width = reward.shape
    target, advantage = torch.zeros_like(value), torch.zeros_like(value)
    for b in range(width):
        for s in reversed(range(steps)):
            total, product = value[s, b].item(), 1.0
            for t in range(s, steps):
                delta = reward[t, b] + discount[t, b] * next_value[t, b] - value[t, b]
                total += product * min(rho_bar, ratio[t, b].item()) * delta.item()
                if ended[t, b]:
                    break
                product *= discount[t, b].item() * lambda_ * min(c_bar, ratio[t, b].item())
            target[s, b] = total
            follows = s + 1 < steps and not ended[s, b]
            after = target[s + 1, b] if follows else next_value[s, b]
            pg = min(rho_pg, ratio[s, b].item())
            advantage[s, b] = pg * (reward[s, b] + discount[s, b] * after - value[s, b])
    return target, advantage


@pytest.mark.parametrize("bounds", [(1.0, 1.0, 1.0, 1.0), (0.7, 1.3, 0.6, 2.0)])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_sums_at_random(seed: int, bounds: tuple[float, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_ratio, reward, value, next_value = torch.randn(4, 7, 5, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.rand(2, 7, 5, generator=generator) < 0.2
    discount, ended = 0.9 * ~terminated, terminated | truncated
    found = vtrace(log_ratio, reward, value, next_value, discount, ended, *bounds)
    expected = slow_vtrace(log_ratio.exp(), reward, value, next_value, discount, ended, bounds)
    assert_close(tuple(found), expected)


def test_on_policy_it_is_the_lambda_return_of_gae() -> None:
    generator = torch.Generator().manual_seed(0)
    reward, value, next_value = torch.randn(3, 6, 4, generator=generator)
    terminated = torch.rand(6, 4, generator=generator) < 0.3
    found = vtrace(torch.zeros(6, 4), reward, value, next_value, 0.9 * ~terminated, terminated, 0.8)
    ended = terminated.clone()
    ended[-1] = True
    assert_close(found.target - value, gae(reward, value, next_value, terminated, ended, 0.9, 0.8))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"rho_clip_ratio": 0.0}, "rho_clip_ratio must be > 0, got 0.0"),
        ({"c_clip_ratio": -1.0}, "c_clip_ratio must be > 0, got -1.0"),
        ({"rho_pg_clip_ratio": 0.0}, "rho_pg_clip_ratio must be > 0, got 0.0"),
        ({"lambda_": 1.5}, r"lambda_ must be in \[0, 1\], got 1.5"),
    ],
)
def test_options_out_of_their_ranges_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        two_steps(**option)


def test_no_gradient_flows_through_targets_and_advantages() -> None:
    value = torch.ones(2, 1, requires_grad=True)
    found = vtrace(value, value, value, value, value, flags(0, 1))
    assert not found.target.requires_grad
    assert not found.advantage.requires_grad
