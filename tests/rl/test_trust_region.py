"""Conjugate gradients and the length of a step against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lightning_ding import rl


def positive_definite(size: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


def test_conjugate_gradients_solve_a_system_in_as_many_products_as_it_has_rows() -> None:
    matrix, b = positive_definite(8), torch.arange(1.0, 9, dtype=torch.float64)
    found = rl.conjugate_gradient(lambda v: matrix @ v, b, 8, 0.0)
    assert_close(found, torch.linalg.solve(matrix, b), rtol=1e-8, atol=1e-10)


def test_one_product_minimises_along_the_right_hand_side() -> None:
    # b = (1, 1), A b = (2, 4): the length is b.b / b.A b = 2 / 6
    found = rl.conjugate_gradient(lambda v: torch.tensor([2.0, 4.0]) * v, torch.ones(2), 1)
    assert_close(found, torch.full((2,), 1 / 3))


def test_products_end_where_the_residual_is_small_enough() -> None:
    calls = []

    def identity(v: torch.Tensor) -> torch.Tensor:
        calls.append(v)
        return v

    assert_close(rl.conjugate_gradient(identity, torch.ones(3), 10), torch.ones(3))
    assert len(calls) == 1


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_a_right_hand_side_of_zeros_or_nan_needs_no_product(value: float) -> None:
    def never(v: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no product is needed")

    assert_close(rl.conjugate_gradient(never, torch.full((2,), value), 5), torch.zeros(2))


def test_a_step_of_the_found_length_has_the_divergence() -> None:
    matrix = positive_definite(4)
    direction = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    step = rl.trust_region_length(direction, matrix @ direction, 0.02) * direction
    assert_close(0.5 * step @ matrix @ step, torch.tensor(0.02, dtype=torch.float64))


def test_no_direction_has_length_zero() -> None:
    assert rl.trust_region_length(torch.zeros(2), torch.zeros(2), 0.01).item() == 0
