"""The direct step of a fused Adam against ``optimizer.step``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from lightning_ding.policy.base.fused_adam import DenormalsAreZero, FusedAdam, adam_tensors, can_step

SIZES = [(3, 2), (3,), (1, 3), (1,)]
Make = Callable[[list[Tensor]], Optimizer]


def parameters() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]


def gradients(number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(size, generator=generator) for size in SIZES]


class Pair:
    """Two optimizers of equal parameters, one stepped by ``optimizer.step``, the other by a :class:`FusedAdam`."""

    def __init__(self, make: Make) -> None:
        self.weights = parameters(), parameters()
        self.optimizers = [make(weights) for weights in self.weights]
        self.stepper = FusedAdam(self.optimizers[1])

    def step(self, number: int, without: int | None = None) -> None:
        """Step both on the gradients of this number; ``without`` is the index of a parameter that has none."""
        for weights in self.weights:
            for place, (weight, gradient) in enumerate(zip(weights, gradients(number), strict=True)):
                weight.grad = None if place == without else gradient
        self.optimizers[0].step()
        self.stepper.step([weight.grad for weight in self.weights[1] if weight.grad is not None])

    def both(self, change: Callable[[Optimizer], object]) -> None:
        for optimizer in self.optimizers:
            change(optimizer)

    def assert_equal(self) -> None:
        torch.testing.assert_close(self.weights[0], self.weights[1], rtol=0, atol=0)
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        assert states[0]["param_groups"] == states[1]["param_groups"]
        torch.testing.assert_close(states[0]["state"], states[1]["state"], rtol=0, atol=0)


def adam(weights: list[Tensor]) -> Optimizer:
    return Adam(weights, lr=0.1, fused=True)


def adamw(weights: list[Tensor]) -> Optimizer:
    return AdamW(weights, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2, fused=True)


@pytest.mark.parametrize("make", [adam, adamw, lambda w: Adam(w, lr=0.1, weight_decay=0.2, maximize=True, fused=True)])
def test_steps_equal_those_of_the_optimizer_to_the_last_bit(make: Make) -> None:
    pair = Pair(make)
    for number in range(5):
        pair.step(number)
        pair.assert_equal()


def test_the_second_step_is_made_without_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(adam)
    pair.step(0)
    calls: list[int] = []
    monkeypatch.setattr(Adam, "step", lambda self: calls.append(1))
    pair.stepper.step(gradients(1))
    assert not calls
    assert [float(state["step"]) for state in pair.optimizers[1].state.values()] == [2, 2, 2, 2]


def test_a_new_learning_rate_is_used() -> None:
    pair = Pair(adam)
    for number in range(4):
        pair.step(number)
        pair.both(lambda optimizer: optimizer.param_groups[0].update(lr=optimizer.param_groups[0]["lr"] / 2))
    pair.assert_equal()


def test_a_loaded_state_is_used() -> None:
    pair = Pair(adamw)
    for number in range(2):
        pair.step(number)
    saved = copy.deepcopy(pair.optimizers[1].state_dict())
    for number in range(2, 4):
        pair.step(number)
    pair.both(lambda optimizer: optimizer.load_state_dict(copy.deepcopy(saved)))
    pair.step(4)
    pair.assert_equal()
    assert float(pair.optimizers[1].state[pair.weights[1][0]]["step"]) == 3


def test_a_cleared_state_starts_again() -> None:
    pair = Pair(adam)
    for number in range(3):
        pair.step(number)
    pair.both(lambda optimizer: optimizer.state.clear())
    for number in range(3, 6):
        pair.step(number)
        pair.assert_equal()


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer, weight: optimizer.state.pop(weight),
        lambda optimizer, weight: optimizer.state[weight].update(exp_avg=torch.zeros_like(weight)),
        lambda optimizer, weight: optimizer.state[weight].update(step=torch.tensor(1.0)),
    ],
)
def test_a_changed_state_of_one_parameter_is_used(change: Callable[[Optimizer, Tensor], object]) -> None:
    pair = Pair(adam)
    for number in range(3):
        pair.step(number)
    for optimizer, weights in zip(pair.optimizers, pair.weights, strict=True):
        change(optimizer, weights[2])
    for number in range(3, 6):
        pair.step(number)
        pair.assert_equal()


@pytest.mark.parametrize("without", [0, 2])
def test_a_parameter_without_gradient_is_left_out(without: int) -> None:
    pair = Pair(adamw)
    for number in range(5):
        pair.step(number, without if number in (0, 2, 3) else None)
        pair.assert_equal()


def test_hooks_of_the_optimizer_are_called() -> None:
    pair, seen = Pair(adam), []
    pair.step(0)
    pair.optimizers[1].register_step_post_hook(lambda *_: seen.append(1))
    pair.step(1)
    pair.assert_equal()
    assert seen == [1]


def test_a_scheduler_sees_the_steps() -> None:
    pair = Pair(adam)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in pair.optimizers]
    assert not can_step(pair.optimizers[1])
    for number in range(3):
        pair.step(number)
        for scheduler in schedulers:
            scheduler.step()
    pair.assert_equal()


def test_a_step_that_the_device_skips_is_left_to_the_optimizer() -> None:
    pair = Pair(adam)
    pair.step(0)
    for optimizer in pair.optimizers:
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    pair.step(1)
    pair.assert_equal()
    assert float(pair.optimizers[1].state[pair.weights[1][0]]["step"]) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda w: torch.optim.SGD(w, lr=0.1),
        lambda w: Adam(w, lr=0.1),
        lambda w: Adam(w, lr=0.1, amsgrad=True, fused=True),
        lambda w: Adam([{"params": w[:2]}, {"params": w[2:], "lr": 0.3}], lr=0.1, fused=True),
        lambda w: torch.optim.NAdam(w, lr=0.1),
    ],
)
def test_other_optimizers_step_by_themselves(make: Make) -> None:
    pair = Pair(make)
    assert not can_step(pair.optimizers[1])
    for number in range(3):
        pair.step(number)
    pair.assert_equal()


def test_parameters_of_several_types_are_left_to_the_optimizer() -> None:
    weights: list[Any] = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))]
    optimizer = adam(weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert adam_tensors(optimizer, weights) is None


def test_denormal_moments_become_zero() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = adam([weight])
    stepper = FusedAdam(optimizer)
    for number in range(3):
        weight.grad = torch.zeros(2)
        stepper.step([weight.grad])
        if number == 0:
            optimizer.state[weight]["exp_avg"].fill_(1e-39)
        assert not optimizer.state[weight]["exp_avg"].any() or number == 0
    assert weight.tolist() == [1, 1]


def test_denormal_moments_are_kept_with_a_tiny_eps() -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    first, second = (Adam([weight], lr=0.1, eps=1e-30, fused=True) for weight in weights)
    stepper = FusedAdam(second)
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.full((1,), 1e-18)  # whose square is denormal
        first.step()
        stepper.step([weights[1].grad])  # type: ignore[list-item]
    assert weights[0].tolist() == weights[1].tolist()
    assert second.state[weights[1]]["exp_avg_sq"].view(torch.int32).item()


def test_denormals_are_kept_outside_of_the_context() -> None:
    tiny = torch.tensor(1e-39)
    with DenormalsAreZero():
        assert float(tiny * 1) == 0
    assert float(tiny * 1) > 0


def test_denormals_stay_zero_for_a_thread_that_asked_for_it() -> None:
    tiny = torch.tensor(1e-39)
    torch.set_flush_denormal(True)
    try:
        with DenormalsAreZero():
            pass
        is_zero = not (tiny * 1).view(torch.int32)
    finally:
        torch.set_flush_denormal(False)
    assert is_zero
