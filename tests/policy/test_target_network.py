"""Target networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lightning_ding.policy.target_network import copy_parameters, polyak_update


class Scaled(nn.Module):
    """Two parameters and a buffer."""

    def __init__(self, first: float, second: float, count: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([first]))
        self.second = nn.Parameter(torch.tensor([[second, -second]]))
        self.register_buffer("count", torch.tensor(count))


def values(module: nn.Module) -> list[float]:
    """Return all parameters and buffers as numbers."""
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def test_copy_parameters_copies_parameters_and_buffers() -> None:
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7)
    copy_parameters(source, target)
    assert values(target) == [1.0, 2.0, -2.0, 3]


def test_copy_parameters_leaves_the_networks_apart() -> None:
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7)
    copy_parameters(source, target)
    target.first.data += 1
    assert values(source) == [1.0, 2.0, -2.0, 3]


def test_polyak_update_moves_the_target_by_theta() -> None:
    # 0.75 * 5 + 0.25 * 1 = 4;  0.75 * 6 + 0.25 * 2 = 5; the buffer is copied
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7)
    polyak_update(source, target, 0.25)
    assert values(target) == [4.0, 5.0, -5.0, 3]


def test_second_polyak_update_starts_from_the_first() -> None:
    # 5 -> 4 -> 0.75 * 4 + 0.25 * 1 = 3.25
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7)
    polyak_update(source, target, 0.25)
    polyak_update(source, target, 0.25)
    assert target.first.item() == 3.25


def test_polyak_update_with_theta_one_copies() -> None:
    source, target = Scaled(0.1, 0.7, 3), Scaled(5.0, 6.0, 7)
    polyak_update(source, target, 1.0)
    assert values(target) == values(source)


def test_polyak_update_leaves_the_source_alone() -> None:
    source = Scaled(1.0, 2.0, 3)
    polyak_update(source, Scaled(5.0, 6.0, 7), 0.25)
    assert values(source) == [1.0, 2.0, -2.0, 3]


def test_target_updates_carry_no_gradient() -> None:
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7).requires_grad_(False)
    polyak_update(source, target, 0.5)
    copy_parameters(source, target)
    assert [p.requires_grad or p.grad_fn is not None for p in target.parameters()] == [False, False]


def test_target_updates_refuse_networks_of_different_size() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        copy_parameters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
