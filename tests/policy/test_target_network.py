"""Target networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from lightning_ding.policy.replay_policy import TargetUpdate, copy_parameters, make_target, polyak_update


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


@pytest.mark.parametrize(
    ("thetas", "expected"),
    [
        ([], [1.0, 2.0, -2.0, 3]),  # copied
        ([1.0], [1.0, 2.0, -2.0, 3]),
        ([0.25], [4.0, 5.0, -5.0, 3]),  # 0.75 * 5 + 0.25 * 1 = 4;  0.75 * 6 + 0.25 * 2 = 5; the buffer is copied
        ([0.25, 0.25], [3.25, 4.25, -4.25, 3]),  # 0.75 * 4 + 0.25 * 1 = 3.25; 0.75 * 5 + 0.25 * 2 = 4.25
    ],
)
def test_target_updates_move_the_target_by_theta_and_leave_the_source_alone(
    thetas: list[float], expected: list[float]
) -> None:
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7)
    for theta in thetas:
        polyak_update(source, target, theta)
    if not thetas:
        copy_parameters(source, target)
    assert values(target) == expected
    target.first.data += 1
    assert values(source) == [1.0, 2.0, -2.0, 3]


def test_target_updates_carry_no_gradient() -> None:
    source, target = Scaled(1.0, 2.0, 3), Scaled(5.0, 6.0, 7).requires_grad_(False)
    polyak_update(source, target, 0.5)
    copy_parameters(source, target)
    assert [p.requires_grad or p.grad_fn is not None for p in target.parameters()] == [False, False]


def test_target_updates_refuse_networks_of_different_size() -> None:
    with pytest.raises((RuntimeError, ValueError)):
        copy_parameters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))


def pruned(network: nn.Linear) -> nn.Linear:
    return prune.custom_from_mask(network, "weight", torch.tensor([[1.0, 0.0]]))  # type: ignore[no-any-return]


def test_the_target_of_a_pruned_network_computes_with_its_weights() -> None:
    network = pruned(nn.Linear(2, 1))
    target = make_target(network)
    with torch.no_grad():
        network.weight_orig.copy_(torch.tensor([[3.0, 5.0]]))  # type: ignore[operator]
        network.bias.fill_(1.0)
    TargetUpdate(1, None, 100).apply(network, target, 0)
    output = target(torch.ones(1, 2))
    assert (output.item(), output.requires_grad) == (4.0, False)  # 3 * 1 + 5 * 0 + 1


@pytest.mark.parametrize(("freq", "theta"), [(1, None), (None, 0.5)])
def test_layers_that_are_changed_after_the_target_was_made_are_named(freq: int | None, theta: float | None) -> None:
    network = nn.Linear(2, 1)
    target = make_target(network)
    pruned(network)
    with pytest.raises(
        ValueError, match=r"must be those of the target network.*\['weight', 'weight_mask', 'weight_orig'\]"
    ):
        TargetUpdate(freq, theta, 100).apply(network, target, 0)
