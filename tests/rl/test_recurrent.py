"""Rescaled values, targets within sequences and their priorities, by hand and against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl


def test_rescaled_values_by_hand() -> None:
    x = torch.tensor([0.0, 3.0, -3.0, 99.0])
    assert_close(rl.value_rescale(x), torch.tensor([0.0, 1.003, -1.003, 9.099]))
    assert_close(rl.value_rescale(x, slope=0.1), torch.tensor([0.0, 1.3, -1.3, 18.9]))


def test_rescaling_and_its_inverse_cancel_in_32_bits() -> None:
    x = torch.cat([torch.linspace(-1, 1, 41), torch.tensor([1e-6, -50.0, 1e3, -1e5])])
    assert_close(rl.value_unscale(rl.value_rescale(x)), x, rtol=1e-4, atol=1e-6)
    assert_close(rl.value_unscale(torch.tensor([1.003, -9.099])), torch.tensor([3.0, -99.0]))


def targets_by_loop(
    reward: Tensor, terminated: Tensor, mask: Tensor, value: Tensor, gamma: float, n_step: int
) -> Tensor:
    found = torch.zeros_like(reward)
    for column in range(reward.shape[1]):
        for begin in range(len(reward)):
            if not mask[begin, column]:
                continue
            total, step = 0.0, begin
            for taken in range(n_step):
                step = begin + taken
                if step == len(reward) or not mask[step, column]:
                    step -= 1
                    break
                total += gamma**taken * float(reward[step, column])
            if not terminated[step, column]:
                total += gamma ** (step + 1 - begin) * float(value[step + 1, column])
            found[begin, column] = total
    return found


@pytest.mark.parametrize("n_step", [1, 2, 5, 9])
def test_targets_are_those_of_a_loop(n_step: int) -> None:
    torch.manual_seed(n_step)
    length = torch.tensor([7, 7, 4, 1, 5, 7])
    mask = torch.arange(7).unsqueeze(1) < length
    terminated = torch.zeros(7, 6, dtype=torch.bool)
    terminated[6, 1] = terminated[3, 2] = terminated[0, 3] = True  # the others are cut, so they bootstrap
    terminated[4:, 2] = True  # padding repeats the last step
    reward, value = torch.randn(7, 6), torch.randn(8, 6)
    found = rl.sequence_targets(reward, terminated, mask, value, 0.9, n_step)
    assert_close(found * mask, targets_by_loop(reward, terminated, mask, value, 0.9, n_step))


def test_targets_by_hand_terminated_truncated_and_cut() -> None:
    reward, value = torch.ones(3, 3), 10 * torch.ones(4, 3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 0, 1]]).bool()
    terminated = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 0]]).bool()
    found = rl.sequence_targets(reward, terminated, mask, value, 0.5, 2)
    assert_close(found[0], torch.tensor([1.5, 1.5 + 2.5, 1.5 + 2.5]))
    assert_close(found[1], torch.tensor([1.0, 1.0 + 5.0, 1.5 + 2.5]))
    assert_close(found[2, 2], torch.tensor(1.0 + 5.0))


def test_priority_of_a_sequence_by_hand() -> None:
    error = torch.tensor([[1.0, 2.0, 7.0], [-4.0, 9.0, 7.0], [1.0, 9.0, 7.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 0]]).bool()
    assert_close(rl.sequence_priority(error, mask), torch.tensor([0.9 * 4 + 0.1 * 2, 2.0, 0.0]))
    assert_close(rl.sequence_priority(error, mask, eta=0.0), torch.tensor([2.0, 2.0, 0.0]))


def test_rescaled_target_by_hand() -> None:
    """With h(Q') = 1.003, so Q' = 3, a reward of 12 and gamma 1, the target is h(15) = 3.015."""
    value = rl.value_unscale(torch.tensor([[0.0], [1.003]]))
    target = rl.sequence_targets(torch.tensor([[12.0]]), torch.zeros(1, 1), torch.ones(1, 1), value, 1.0, 1)
    assert_close(rl.value_rescale(target), torch.tensor([[math.sqrt(16) - 1 + 0.015]]))
