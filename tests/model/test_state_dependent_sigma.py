"""The standard deviation of state-dependent noise, on numbers worked out by hand and against a slow loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model import VAC, ContinuousQAC, StateDependentSigma

FEATURES = torch.tensor([[3.0, 4.0], [0.0, 1.0]])


def make(**options: Any) -> StateDependentSigma:
    return StateDependentSigma(2, 2, **options)


@torch.no_grad()
def test_variance_is_the_sum_of_squares_of_features_times_those_of_deviations() -> None:
    layer = make()
    layer.log_std.copy_(torch.tensor([[0.5, 1.0], [2.0, 1.0]]).log())
    # 9 * 0.25 + 16 * 4 = 66.25 and 9 + 16 = 25; 4 and 1
    assert_close(layer(FEATURES)["sigma"].square() - 1e-6, torch.tensor([[66.25, 25.0], [4.0, 1.0]]), rtol=1e-6, atol=0)


@torch.no_grad()
def test_one_deviation_for_a_feature_holds_for_all_dimensions() -> None:
    layer = make(full_std=False, log_std_init=math.log(2.0))
    assert layer.log_std.shape == (2, 1)
    assert_close(layer.std(), torch.full((2, 2), 2.0))
    assert_close(layer(FEATURES)["sigma"], torch.tensor([[10.0, 10.0], [2.0, 2.0]]))


def test_expln_is_exponential_below_zero_and_logarithmic_above() -> None:
    layer = make(use_expln=True)
    with torch.no_grad():
        layer.log_std.copy_(torch.tensor([[-1.0, 0.0], [1.0, 3.0]]))
    std = layer.std()
    assert_close(std, torch.tensor([[math.exp(-1), 1.0], [1 + math.log(2), 1 + math.log(4)]]))
    std.sum().backward()
    # the derivatives are e^-1, 1 on both sides of 0, 1/2 and 1/4
    assert layer.log_std.grad is not None
    assert_close(layer.log_std.grad, torch.tensor([[math.exp(-1), 1.0], [0.5, 0.25]]))


@pytest.mark.parametrize("options", [{}, {"full_std": False}, {"use_expln": True}])
@torch.no_grad()
def test_sigma_is_that_of_a_slow_loop(options: dict[str, Any]) -> None:
    layer = StateDependentSigma(5, 3, **options)
    layer.log_std.copy_(torch.randn(layer.log_std.shape))
    features = torch.randn(4, 5)

    def std(i: int, j: int) -> float:
        x = float(layer.log_std[i, 0 if "full_std" in options else j])
        return 1 + math.log1p(x) if "use_expln" in options and x > 0 else math.exp(x)

    slow = [
        [math.sqrt(sum((float(row[i]) * std(i, j)) ** 2 for i in range(5)) + 1e-6) for j in range(3)]
        for row in features
    ]
    assert_close(layer(features)["sigma"], torch.tensor(slow))


@pytest.mark.parametrize("learn_features", [False, True])
def test_features_learn_from_the_deviation_only_if_asked(learn_features: bool) -> None:
    features = FEATURES.clone().requires_grad_()
    make(learn_features=learn_features)(features)["sigma"].sum().backward()
    assert (features.grad is not None) == learn_features


@torch.no_grad()
def test_mixed_precision_keeps_the_digits() -> None:
    layer, features = make(), torch.tensor([[3.001, 4.0]])
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(features)["sigma"]
    assert found.dtype == torch.float32
    assert torch.equal(found, layer(features)["sigma"])


def test_networks_give_the_mean_and_what_describes_the_noise() -> None:
    vac = VAC(3, 2, "continuous", use_sde=True, actor_hidden_size_list=[5], critic_hidden_size_list=[7])
    logit = vac.compute_actor(torch.randn(4, 3))["logit"]
    shapes = {name: tuple(part.shape) for name, part in logit.items()}
    assert shapes == {"mu": (4, 2), "sigma": (4, 2), "features": (4, 5), "std": (5, 2)}
    assert_close(logit["std"], torch.ones(5, 2))  # e^0
    qac = ContinuousQAC(3, 2, "reparameterization", use_sde=True, actor_hidden_size_list=[6, 5])
    output = qac.compute_actor(torch.randn(4, 3))
    assert_close(output["std"], torch.full((5, 2), math.exp(-3)))
    assert_close(output["log_sigma"], output["sigma"].log())
    assert output["features"].requires_grad
    assert not logit["features"].requires_grad


def test_mean_before_squashing_is_bounded_unless_the_bound_is_zero() -> None:
    def mean(clip_mean: float | None) -> Tensor:
        qac = ContinuousQAC(3, 1, "reparameterization", use_sde=True, clip_mean=clip_mean)
        with torch.no_grad():
            qac.actor.head.mu.bias.fill_(7.0)
            qac.actor.head.mu.weight.zero_()
        return qac.compute_actor(torch.randn(1, 3))["mu"]

    assert [mean(one).item() for one in (None, 0.5, 0.0)] == [2.0, 0.5, 7.0]


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (VAC, {"full_std": False}, "full_std must be True without use_sde, got False"),
        (VAC, {"use_expln": True}, "use_expln must be False without use_sde, got True"),
        (VAC, {"use_sde": True, "action_space": "discrete"}, "use_sde must be False for discrete actions, got True"),
        (VAC, {"use_sde": True, "sigma_type": "conditioned"}, "sigma_type must be 'independent' with use_sde"),
        (VAC, {"log_std_init": 1.0, "sigma_type": "fixed"}, "log_std_init must be None unless actions are continuous"),
        (VAC, {"log_std_init": 1.0, "action_space": "discrete"}, "log_std_init must be None unless"),
        (ContinuousQAC, {"full_std": False}, "full_std must be True without use_sde, got False"),
        (ContinuousQAC, {"log_std_init": 1.0}, "log_std_init must be None without use_sde, got 1.0"),
        (ContinuousQAC, {"clip_mean": 1.0}, "clip_mean must be None without use_sde, got 1.0"),
        (ContinuousQAC, {"use_sde": True, "clip_mean": -1.0}, "clip_mean must be >= 0 or None, got -1.0"),
        (ContinuousQAC, {"use_sde": True, "batch_renorm": True}, "use_sde must be False .* batch_renorm"),
        (ContinuousQAC, {"use_sde": True, "action_space": "regression"}, "use_sde must be False without 'reparam"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(network: Any, options: dict[str, Any], message: str) -> None:
    kind = "continuous" if network is VAC else "reparameterization"
    with pytest.raises(ValueError, match=message):
        network(**{"obs_shape": 3, "action_shape": 2, "action_space": kind, **options})
