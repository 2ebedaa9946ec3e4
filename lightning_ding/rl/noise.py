"""Noise that is added to continuous actions to explore.

Shapes: B envs, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def gaussian_noise(
    shape: Sequence[int],
    sigma: float,
    rng: np.random.Generator,
    noise_range: tuple[float, float] | None = None,
) -> NDArray[np.float32]:
    """Return independent normal noise.

    Args:
        shape: Of the result.
        sigma: Standard deviation before clipping, >= 0.
        rng: Source of the noise.
        noise_range: Smallest and largest value; what lies beyond is clipped. None for no limit.
    """
    noise = rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(sigma)
    return noise if noise_range is None else noise.clip(*noise_range)


class OrnsteinUhlenbeckNoise:
    """Noise that drifts: x <- x + theta (0 - x) dt + sigma sqrt(dt) N(0, 1), one state for each env.

    Uhlenbeck and Ornstein 1930 (https://doi.org/10.1103/PhysRev.36.823), with the constants of Lillicrap et al. 2016,
    section 7 (https://arxiv.org/abs/1509.02971). In the long run its variance is near sigma^2 / (2 theta).

    Args:
        sigma: Size of a step, >= 0.
        theta: Pull towards 0, >= 0.
        dt: Time of a step, > 0.

    Example:
        >>> noise = OrnsteinUhlenbeckNoise(sigma=0.0)
        >>> noise.state = np.array([[1.0]])
        >>> float(noise.sample((1, 1), np.random.default_rng())[0, 0])
        0.8500000238418579
    """

    def __init__(self, sigma: float, theta: float = 0.15, dt: float = 1.0) -> None:
        self.sigma, self.theta, self.dt = sigma, theta, dt
        self.state: NDArray[np.float64] = np.zeros((0, 0))  # (B, A)

    def sample(
        self, shape: tuple[int, int], rng: np.random.Generator, sigma: float | None = None
    ) -> NDArray[np.float32]:
        """Return the next noise of B envs, shape (B, A); all start at 0 when the shape is not that of the last call.

        Args:
            shape: (B, A).
            rng: Source of the noise.
            sigma: Overrides the size of this step.
        """
        if self.state.shape != shape:
            self.state = np.zeros(shape)
        step = (self.sigma if sigma is None else sigma) * self.dt**0.5
        self.state = self.state * (1 - self.theta * self.dt) + step * rng.standard_normal(shape)
        return self.state.astype(np.float32)

    def reset(self, ids: Sequence[int] | None = None) -> None:
        """Let these envs (None: all) begin at 0 again, as an episode does."""
        if ids is None:
            self.state = np.zeros((0, 0))
        else:
            self.state[[env_id for env_id in ids if env_id < len(self.state)]] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the states as a list of rows."""
        return {"state": self.state.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave."""
        self.state = np.array(state["state"]) if state["state"] else np.zeros((0, 0))
