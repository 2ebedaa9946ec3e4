"""An ensemble against its members one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model import EnsembleMLP
from lightning_ding.model.encoder import MLP


def member(ensemble: EnsembleMLP, number: int, sizes: list[int], activation: str) -> MLP:
    """Return one member as a network of its own."""
    network = MLP(sizes, activation, activate_last=False)
    for layer, weight, bias in zip(network.layers, ensemble.weights, ensemble.biases, strict=True):
        layer.weight.data, layer.bias.data = weight[number].T.detach(), bias[number, 0].detach()
    return network


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("members", [None, 1, 2])
def test_an_ensemble_equals_its_members_one_by_one(activation: str, members: int | None) -> None:
    sizes, x = [4, 8, 6, 2], torch.randn(5, 4)
    ensemble = EnsembleMLP(3, sizes, activation)
    singles: list[Tensor] = [member(ensemble, number, sizes, activation)(x) for number in range(members or 3)]
    assert_close(ensemble(x, members), torch.stack(singles), rtol=0, atol=1e-6)


def test_the_gradient_of_an_ensemble_is_that_of_its_members() -> None:
    x = torch.randn(5, 4)
    ensemble = EnsembleMLP(2, [4, 8, 1])
    ensemble(x).square().sum().backward()
    single = member(ensemble, 1, [4, 8, 1], "relu")
    single(x).square().sum().backward()
    weight = single.layers[0].weight
    assert_close(ensemble.weights[0].grad[1].T, weight.grad, rtol=0, atol=1e-5)


def test_members_start_as_linear_layers_do_and_differ() -> None:
    """Uniform in [-1 / sqrt(16), 1 / sqrt(16)], whatever the number of members."""
    ensemble = EnsembleMLP(5, [16, 400])
    weight, bias = ensemble.weights[0].detach(), ensemble.biases[0].detach()
    assert weight.shape == (5, 16, 400)
    assert 0.24 < weight.abs().max() <= 0.25
    assert 0.2 < bias.abs().max() <= 0.25
    assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("members", [None, 1])
def test_normalised_layers_of_members_are_those_of_single_networks(members: int | None) -> None:
    ensemble, x = EnsembleMLP(2, [4, 8, 1], "tanh", layer_norm=True), torch.randn(5, 4)
    ensemble.scales[0].data.uniform_(0.5, 2)
    ensemble.shifts[0].data.uniform_(-1, 1)
    for index, found in enumerate(ensemble(x, members)):
        single = MLP([4, 8, 1], "tanh", activate_last=False, layer_norm=True)
        single.load_state_dict(
            {
                **member(ensemble, index, [4, 8, 1], "tanh").state_dict(),
                "norms.0.weight": ensemble.scales[0][index, 0],
                "norms.0.bias": ensemble.shifts[0][index, 0],
            }
        )
        assert_close(found, single(x), rtol=0, atol=1e-5)


def test_an_ensemble_has_a_member() -> None:
    with pytest.raises(ValueError, match="ensemble_size must be >= 1, got 0"):
        EnsembleMLP(0, [1, 1])
