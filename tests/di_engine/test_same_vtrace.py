"""V-trace losses and gradients equal to those that DI-engine computed; ``make_ding_vtrace.py`` stored them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from tests.di_engine.make_ding_vtrace import OPTIONS
from tests.di_engine.stored import parts_of

part = parts_of("ding_vtrace.safetensors")


def distribution(kind: str, logit: Tensor, sigma: Tensor) -> Any:
    return rl.distribution_of(logit if kind == "discrete" else {"mu": logit, "sigma": sigma})


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients_are_those_of_ding(kind: str, name: str) -> None:
    x, expected = part(f"{kind}_{name}", "in"), part(f"{kind}_{name}", "out")
    logit, value = x["logit"].requires_grad_(), x["value"].requires_grad_()
    new, old = distribution(kind, logit, x["sigma"]), distribution(kind, x["old_logit"], x["old_sigma"])
    options = dict(OPTIONS[name])
    log_prob, reward = new.log_prob(x["action"]), x["reward"]
    discount, ended = torch.full_like(reward, options.pop("gamma")), torch.zeros_like(reward).bool()
    log_ratio = log_prob - old.log_prob(x["action"])
    found = rl.vtrace(log_ratio, reward, value[:-1], value[1:], discount, ended, **options)

    policy_loss = -(log_prob * found.advantage * x["weight"]).mean()
    value_loss = ((value[:-1] - found.target).square() * x["weight"]).mean()
    entropy_loss = (new.entropy() * x["weight"]).mean()
    (policy_loss + value_loss).backward()
    made = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}
    made |= {"logit_gradient": logit.grad, "value_gradient": value.grad}
    assert made.keys() == expected.keys()
    for key, one in made.items():
        assert_close(one.detach(), expected[key])


X = [-120.5, -7.25, -1.0, -0.03, 0.0, 0.4, 2.0, 33.0]
TRANSFORMED = [
    -11.2277038425,
    -1.94478132327,
    -0.424213562373,
    -0.0151891565092,
    0.0,
    0.18721595662,
    0.752050807569,
    5.16095189485,
]
INVERTED = [
    -5045.86847395,
    -57.8516578815,
    -2.88541592549,
    -0.0596711307705,
    0.0,
    0.933936988161,
    7.5525510403,
    718.203335157,
]


def test_values_are_those_of_di_engine() -> None:
    x, expected, inverted = (torch.tensor(numbers, dtype=torch.float64) for numbers in (X, TRANSFORMED, INVERTED))
    assert_close(rl.value_rescale(x, slope=0.01), expected, rtol=1e-10, atol=1e-12)
    assert_close(rl.value_unscale(x, slope=0.01), inverted, rtol=1e-8, atol=1e-10)
