"""Batch renormalisation against numbers worked out by hand and against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.model.batch_renorm import BatchRenorm, flat_statistics, update_layers
from lightning_ding.model.ensemble import EnsembleMLP

EPS = 1e-3


def make(warmup: int = 0, mean: float = 1.0, variance: float = 4.0) -> BatchRenorm:
    layer = BatchRenorm(1, 1, momentum=0.25, warmup=warmup)
    layer.mean.fill_(mean)
    layer.variance.fill_(variance)
    return layer


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, 1)


def test_running_statistics_normalise_without_a_batch() -> None:
    layer = make()
    layer.scale.data.fill_(3.0)
    layer.shift.data.fill_(0.5)
    expected = [3 * (x - 1) / math.sqrt(4 + EPS) + 0.5 for x in (1.0, 5.0)]
    assert_close(layer(column(1.0, 5.0)), column(*expected))


def test_a_batch_normalises_itself_during_the_warm_up() -> None:
    """1 and 5 have the mean 3 and the variance 4."""
    found = make(warmup=1)(column(1.0, 5.0), [])
    assert_close(found, column(-2 / math.sqrt(4 + EPS), 2 / math.sqrt(4 + EPS)))


def test_afterwards_the_correction_leads_to_the_running_statistics() -> None:
    """Within the limits it gives exactly the numbers of the running statistics."""
    layer = make()
    assert_close(layer(column(1.0, 5.0), []), layer(column(1.0, 5.0)))


def test_the_correction_is_limited() -> None:
    """The mean 103 is 51 deviations away, of which 5 count; the deviation 20 is ten times 2, of which 3 count."""
    values = [83.0, 123.0]
    deviation = math.sqrt(400 + EPS)
    expected = [(x - 103) / deviation * 3 + 5 for x in values]
    assert_close(make()(column(*values), []), column(*expected))
    small = [(x - 1) / math.sqrt(EPS + 0.01**2) / 3 for x in (0.99, 1.01)]
    assert_close(make()(column(0.99, 1.01), []), column(*small), rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_batch_with_a_constant_correction() -> None:
    x = column(1.0, 5.0, 6.0).requires_grad_()
    weight = column(1.0, 2.0, -4.0)
    (found,) = torch.autograd.grad((make()(x, []) * weight).sum(), x)
    deviation = ((x.var(1, unbiased=False) + EPS) / (4 + EPS)).sqrt().detach()
    plain = (x - x.mean(1)) / (x.var(1, unbiased=False) + EPS).sqrt()
    (expected,) = torch.autograd.grad((plain * deviation * weight).sum(), x)
    assert_close(found, expected)


def test_an_update_moves_the_running_statistics_and_ends_the_warm_up() -> None:
    layer = make(warmup=1)
    statistics: list[torch.Tensor] = []
    before = layer(column(1.0, 5.0), statistics)
    layer.update(statistics[0])
    assert (layer.mean.item(), layer.variance.item(), layer.updates.item()) == (1.5, 4.0, 1.0)
    assert not torch.allclose(layer(column(1.0, 5.0), []), before)


def test_statistics_that_are_not_finite_change_nothing() -> None:
    layer = make()
    statistics: list[torch.Tensor] = []
    layer(column(1.0, math.nan), statistics)
    layer.update(statistics[0])
    assert (layer.mean.item(), layer.variance.item()) == (1.0, 4.0)


def test_each_layer_of_an_ensemble_gets_its_statistics() -> None:
    """With a step size of 1, the running statistics of a layer are those of its inputs once the layer before has its
    own."""
    torch.manual_seed(0)
    ensemble, x = EnsembleMLP(2, [3, 4, 1], "tanh", renorm=(1.0, 0)), torch.randn(8, 3)
    for _ in range(2):
        statistics: list[torch.Tensor] = []
        ensemble(x, statistics=statistics)
        assert [tuple(one.shape) for one in statistics] == [(2, 2, 1, 3), (2, 2, 1, 4)]
        update_layers(ensemble, flat_statistics(statistics))
    expected = []
    for member in range(2):
        y = x
        for number, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            y = (y - y.mean(0)) / (y.var(0, unbiased=False) + EPS).sqrt()
            y = y @ weight[member] + bias[member]
            y = torch.tanh(y) if number == 0 else y
        expected.append(y)
    assert_close(ensemble(x), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_a_part_of_the_members_is_refused() -> None:
    with pytest.raises(ValueError, match="members must be None with batch renormalisation, got 1"):
        EnsembleMLP(2, [3, 4, 1], renorm=(0.1, 0))(torch.zeros(5, 3), members=1)


@pytest.mark.parametrize(("momentum", "warmup", "name"), [(0.0, 1, "renorm_momentum"), (0.1, -1, "renorm_warmup")])
def test_a_value_that_is_out_of_its_range_is_refused(momentum: float, warmup: int, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BatchRenorm(1, 1, momentum, warmup)


def test_each_network_of_an_ensemble_normalises_each_feature_by_itself() -> None:
    layer = BatchRenorm(3, 2, warmup=0)
    generator = torch.Generator().manual_seed(0)
    for tensor in (layer.scale.data, layer.shift.data, layer.mean, layer.variance):
        tensor.copy_(torch.rand(3, 1, 2, generator=generator) + 0.5)
    x = torch.randn(3, 7, 2, generator=generator)
    noted: list[torch.Tensor] = []
    found = layer(x, noted)
    assert_close(found, layer(x))  # the correction is within its limits
    for network in range(3):
        for feature in range(2):
            one = BatchRenorm(1, 1, warmup=0)
            for name in ("scale", "shift", "mean", "variance"):
                getattr(one, name).data.fill_(getattr(layer, name)[network, 0, feature].item())
            part: list[torch.Tensor] = []
            expected = one(x[network : network + 1, :, feature : feature + 1], part)
            assert_close(found[network, :, feature], expected[0, :, 0])
            assert_close(noted[0][:, network, 0, feature], part[0][:, 0, 0, 0])


def test_a_batch_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"learn.batch_size must be >= 2 with batch normalisation"):
        make()(column(1.0), [])
