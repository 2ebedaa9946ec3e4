"""LaProp, with adaptive gradient clipping and a warm-up, against a loop over numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.policy.base.laprop import LaProp


def slow_steps(weights: list[float], gradients: list[list[float]], agc: float | None, warmup: int) -> list[float]:
    """Return the weights after steps with these gradients, each a vector."""
    mean, square = [0.0] * len(weights), [0.0] * len(weights)
    for number, gradient in enumerate(gradients, start=1):
        norm, size = math.hypot(*gradient), math.hypot(*weights)
        factor = 1.0 if agc is None else min(1.0, agc * max(1e-3, size) / norm)
        rate = 0.1 * min(1.0, number / warmup if warmup else 1.0)
        for place, raw in enumerate(gradient):
            clipped = raw * factor
            square[place] = 0.99 * square[place] + 0.01 * clipped**2
            scaled = clipped / (math.sqrt(square[place] / (1 - 0.99**number)) + 1e-8)
            mean[place] = 0.9 * mean[place] + 0.1 * scaled
            weights[place] = weights[place] * (1 - rate * 0.5) - rate * mean[place] / (1 - 0.9**number)
    return weights


def steps(weights: Tensor, gradients: list[list[float]], agc: float | None, warmup: int) -> Tensor:
    parameter = nn.Parameter(weights.clone())
    optimizer = LaProp([parameter], 0.1, (0.9, 0.99), 1e-8, 0.5, agc, warmup)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.detach()


def test_steps_are_those_of_a_loop_over_numbers() -> None:
    start, gradients = [3.0, -4.0], [[1.0, 2.0], [-0.5, 4.0], [0.1, -0.2], [2.0, 2.0]]
    for agc, warmup in ((None, 0), (0.3, 0), (0.3, 3)):  # 0.3 times a norm of 5 clips two of the gradients
        found = steps(torch.tensor(start), gradients, agc, warmup)
        assert_close(found, torch.tensor(slow_steps(list(start), gradients, agc, warmup)), rtol=1e-5, atol=1e-6)


def test_a_weight_without_gradient_stays() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = LaProp(parameters, 0.1)
    parameters[0].grad = torch.ones(2)
    optimizer.step()
    assert parameters[1].tolist() == [1.0, 1.0]
    assert_close(parameters[0].detach(), torch.full((2,), 0.9))  # the first step has the size of the step size


def test_weights_that_begin_again_count_their_own_steps() -> None:
    """A reset removes the state of some weights; all weights step as they would without the others."""
    gradients = [[1.0, 2.0], [-0.5, 4.0], [0.1, -0.2], [2.0, 2.0]]
    first, second = (nn.Parameter(torch.tensor([3.0, -4.0])) for _ in range(2))
    optimizer = LaProp([first, second], 0.1, (0.9, 0.99), 1e-8, 0.5, 0.3, 3)
    for number, gradient in enumerate(gradients):
        if number == 2:
            del optimizer.state[second]
            second.data = torch.tensor([3.0, -4.0])
        first.grad, second.grad = torch.tensor(gradient), torch.tensor(gradient)
        optimizer.step()
    for parameter, seen in ((first, gradients), (second, gradients[2:])):
        expected = torch.tensor(slow_steps([3.0, -4.0], seen, 0.3, 3))
        assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-6)
