"""The ensemble of models of an env against loops over its members, and the choice of its elites."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightning_ding import rl
from lightning_ding.model.dynamics import BestMembers, DynamicsEnsemble
from lightning_ding.rl.dynamics import hopper_terminated, inverted_pendulum_terminated, walker2d_terminated


def make(**kwargs: object) -> DynamicsEnsemble:
    torch.manual_seed(0)
    options = {"ensemble_num": 3, "elite_num": 2, "hidden_size_list": [8, 8], **kwargs}
    return DynamicsEnsemble(2, 1, **options).double()  # type: ignore[arg-type]


def member(model: DynamicsEnsemble, number: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means, log variances and logit of one member for one input, written as a loop over its layers."""
    x = (x - model.input_mean) / model.input_std
    for layer, (weight, bias) in enumerate(zip(model.layers.weights, model.layers.biases, strict=True)):
        x = x @ weight[number] + bias[number, 0]
        x = F.silu(x) if layer < len(model.layers.weights) - 1 else x
    mean, raw = x[:3], x[3:6]
    log_var = [
        low + math.log1p(math.exp(high - math.log1p(math.exp(high - one)) - low))
        for one, low, high in zip(raw.tolist(), model.low.tolist(), model.high.tolist(), strict=True)
    ]
    return mean, torch.tensor(log_var, dtype=torch.float64), x[6:]


def test_the_loss_is_twice_the_gaussian_nll_without_its_constant_by_hand() -> None:
    mean, log_var, target = torch.tensor([1.0]), torch.tensor([math.log(4.0)]), torch.tensor([4.0])
    assert float(rl.gaussian_nll(mean, log_var, target)) == pytest.approx(9 / 4 + math.log(4.0))
    exact = torch.distributions.Normal(mean, 2.0).log_prob(target)
    assert float(rl.gaussian_nll(mean, log_var, target) / 2 + math.log(2 * math.pi) / 2) == pytest.approx(float(-exact))


def test_bounds_of_the_log_variance() -> None:
    x, low, high = torch.tensor([-100.0, -5.0, 100.0]), torch.tensor(-10.0), torch.tensor(0.5)
    found = rl.softly_bounded(x, low, high)
    assert torch.allclose(found, torch.tensor([-10.0, -5.0, 0.5]), atol=0.02)
    x.requires_grad_()
    rl.softly_bounded(x, low, high).sum().backward()
    assert x.grad is not None
    assert x.grad[1] > 0.9  # unlike a clamp, the bounds leave a gradient near them


def test_predictions_and_loss_equal_loops_over_members() -> None:
    model = make(learns_end=True)
    model.normalise_by(torch.tensor([0.5, -1.0, 0.0]), torch.tensor([2.0, 0.5, 0.0]))
    x, target = torch.randn(3, 4, 3, dtype=torch.float64), torch.randn(3, 4, 3, dtype=torch.float64)
    terminated = torch.tensor([[True, False, False, True]] * 3)
    found, expected = model(x), 0.0
    for number in range(3):
        for row in range(4):
            mean, log_var, logit = (one.detach() for one in member(model, number, x[number, row]))
            assert torch.allclose(found.mean[number, row], mean)
            assert torch.allclose(found.log_var[number, row], log_var)
            assert torch.allclose(found.end[number, row], logit)
            for one in range(3):
                error = float(target[number, row, one] - mean[one])
                expected += (error**2 * math.exp(-float(log_var[one])) + float(log_var[one])) / 12
            chance = 1 / (1 + math.exp(-float(logit)))
            expected -= math.log(chance if terminated[number, row] else 1 - chance) / 4
    expected += 0.01 * float((model.high - model.low).sum())
    assert float(model.loss(x, target, terminated)) == pytest.approx(expected)
    norm = sum(float((weight**2).sum()) for weight in model.layers.weights)
    assert float(model.loss(x, target, terminated, 0.1)) == pytest.approx(expected + 0.05 * norm)


def test_an_input_that_never_varies_is_not_divided() -> None:
    model = make()
    model.normalise_by(torch.ones(3), torch.tensor([2.0, 0.0, 1e-9]))
    assert model.input_std.tolist() == [2.0, 1.0, 1.0]


def test_each_elite_steps_its_part_of_the_rows() -> None:
    model = make(learns_end=True)
    model.elites.copy_(torch.tensor([2, 0]))
    x, noise = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    reward, change, end = model.step(x, noise)
    means, _, _ = model.step(x, None)
    for row in range(4):
        mean, log_var, logit = member(model, 2 if row < 2 else 0, x[row])
        sample = mean + noise[row] * (log_var / 2).exp()
        assert torch.allclose(torch.cat([reward[row, None], change[row]]), sample)
        assert torch.allclose(means[row], mean[0])
        assert bool(end[row]) == (float(logit) > 0)


def test_members_keep_their_best_weights_and_the_best_become_elites() -> None:
    model = make()
    best, history = BestMembers(model), []
    errors = [[3.0, 2.0, 1.0], [2.0, 1.99, 1.5], [2.5, 0.5, 0.995]]
    for error in errors:
        with torch.no_grad():
            for one in model.of_members():
                one.add_(1.0)
        history.append([one.detach().clone() for one in model.of_members()])
        best.note(torch.tensor(error, dtype=torch.float64))
    assert not best.note(torch.tensor([1.99, 0.499, 0.99], dtype=torch.float64))  # less than 1 % better
    best.restore()
    for one, *kept in zip(model.of_members(), *history, strict=True):
        for number, epoch in enumerate((1, 2, 0)):
            assert torch.equal(one[number], kept[epoch][number])
    assert best.error.tolist() == [2.0, 0.5, 1.0]
    assert model.elites.tolist() == [1, 2]


def test_known_ends_of_episodes() -> None:
    none = torch.zeros(0)
    pendulum = torch.tensor([[0.0, 0.1, 0.0, 0.0], [0.0, -0.21, 0.0, 0.0], [math.nan, 0.0, 0.0, 0.0]])
    assert inverted_pendulum_terminated(none, none, pendulum).tolist() == [False, True, True]
    hopper = torch.tensor([[1.2, 0.0, 0.0], [0.6, 0.0, 0.0], [1.2, 0.3, 0.0], [1.2, 0.0, 101.0]])
    assert hopper_terminated(none, none, hopper).tolist() == [False, True, True, True]
    walker = torch.tensor([[1.2, 0.0], [2.1, 0.0], [0.7, 0.0], [1.2, -1.1]])
    assert walker2d_terminated(none, none, walker).tolist() == [False, True, True, True]
    assert rl.never_terminated(none, none, walker).tolist() == [False] * 4


def test_elites_must_be_members() -> None:
    with pytest.raises(ValueError, match=r"elite_num must be in \[1, 3\]"):
        make(elite_num=4)
