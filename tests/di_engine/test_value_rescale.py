"""Rescaled values, equal to those of DI-engine's ``value_transform`` and ``value_inv_transform`` with a slope of 0.01.

Computed by ``ding.rl_utils.value_rescale`` of DI-engine 0.5.3 in float64 for the numbers below:
``value_transform(torch.tensor(X, dtype=torch.float64))``, and ``value_inv_transform`` of the same numbers.
"""

from __future__ import annotations

import torch
from torch.testing import assert_close

from lightning_ding import rl

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
