"""Maths of natural gradients: linear systems of a matrix that is known by its products, and lengths of steps.

Paper: Schulman et al. 2015 (https://arxiv.org/abs/1502.05477).

Shapes: P parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """Return an approximate solution x of A x = b, shape (P,) (Schulman et al. 2015, appendix C.1).

    It is exact after P iterations, apart from rounding (Hestenes and Stiefel 1952). With b = 0 it is 0.

    Args:
        product: Returns A v for a vector v, shape (P,); A is symmetric and positive definite, shape (P, P).
        b: The right-hand side, shape (P,).
        iterations: Products at the most, >= 1.
        tolerance: Squared norm of the residual b - A x, relative to that of b, below which it ends, >= 0.

    Example:
        >>> conjugate_gradient(lambda v: torch.tensor([2.0, 4.0]) * v, torch.tensor([1.0, 1.0]), 2)
        tensor([0.5000, 0.2500])
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, size = residual, residual.dot(residual)
    enough = tolerance * float(size)
    for _ in range(iterations):
        if not float(size) > enough:  # also if it is NaN
            break
        image = product(direction)
        length = size / direction.dot(image)
        x = x + length * direction
        residual = residual - length * image
        last, size = size, residual.dot(residual)
        direction = residual + size / last * direction
    return x


def trust_region_length(direction: Tensor, image: Tensor, max_kl: float) -> Tensor:
    """Return the factor beta of a direction s at which 0.5 (beta s)^T F (beta s) = ``max_kl``, a scalar.

    This is sqrt(2 max_kl / s^T F s) (Schulman et al. 2015, appendix C). It is 0 where s^T F s is 0.

    Args:
        direction: s, shape (P,).
        image: F s, shape (P,), of the Fisher information matrix F, which is positive semidefinite.
        max_kl: The quadratic estimate of the divergence after the step, in nats, > 0.

    Example:
        >>> trust_region_length(torch.tensor([1.0, 0.0]), torch.tensor([8.0, 0.0]), 0.01)
        tensor(0.0500)
    """
    curvature = direction.dot(image)
    return torch.where(curvature == 0, 0.0, (2 * max_kl / curvature).sqrt())
