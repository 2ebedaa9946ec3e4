"""Noise to add to continuous actions: independent, autocorrelated, or a function of the features of a state.

Shapes: B batch (one row for each env), N envs, F features, A dimensions of an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def gaussian_noise(
    shape: Sequence[int], sigma: float, rng: np.random.Generator, noise_range: tuple[float, float] | None = None
) -> NDArray[np.float32]:
    """Return independent normal noise.

    Args:
        shape: Shape of the noise.
        sigma: Standard deviation before clipping, >= 0.
        rng: Random number generator; with :class:`TensorDraws` the noise is a tensor.
        noise_range: Smallest and largest value, to which the noise is clipped; None for no limit.
    """
    noise = rng.standard_normal(tuple(shape), dtype=np.float32) * np.float32(sigma)
    return noise if noise_range is None else noise.clip(*noise_range)


class OrnsteinUhlenbeckNoise:
    """Autocorrelated noise: x <- x + theta (0 - x) dt + sigma sqrt(dt) N(0, 1), with one state for each env.

    Uhlenbeck and Ornstein 1930 (https://doi.org/10.1103/PhysRev.36.823), with the constants of Lillicrap et al. 2016,
    section 7 (https://arxiv.org/abs/1509.02971). Its stationary variance is about sigma^2 / (2 theta).

    Args:
        sigma: Scale of the noise of a step, >= 0.
        theta: Pull towards 0, >= 0.
        dt: Duration of a step, > 0.

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
        """Return the next noise of B envs, shape (B, A); all states restart at 0 if the shape changes.

        Args:
            shape: Shape (B, A) of the noise.
            rng: Random number generator.
            sigma: Scale of the noise of this step; None means the ``sigma`` of the constructor.
        """
        if self.state.shape != shape:
            self.state = np.zeros(shape)
        step = (self.sigma if sigma is None else sigma) * self.dt**0.5
        self.state = self.state * (1 - self.theta * self.dt) + step * rng.standard_normal(shape)
        return self.state.astype(np.float32)

    def reset(self, ids: Sequence[int] | None = None) -> None:
        """Set the states of envs to 0, as at the start of an episode; None means all envs."""
        if ids is None:
            self.state = np.zeros((0, 0))
        else:
            self.state[[env_id for env_id in ids if env_id < len(self.state)]] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the noise as a list of rows."""
        return {"state": self.state.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.state = np.array(state["state"]) if state["state"] else np.zeros((0, 0))


class StateDependentNoise:
    """Noise that is a linear function of the features of a state, with a matrix of weights for each env.

    Generalised state-dependent exploration (Raffin et al. 2022, section 3, https://arxiv.org/abs/2005.05719). The noise
    is the same whenever a state occurs again, so actions are smooth while the matrix stays. It is drawn again for each
    episode, and after a number of steps.

    Args:
        sample_freq: Steps for which an env keeps its matrix, >= 1; None for a whole episode.

    Example:
        >>> noise, arguments = StateDependentNoise(), (torch.ones(1, 2), torch.ones(2, 1), np.random.default_rng(0))
        >>> first = noise.sample(*arguments)
        >>> bool(noise.sample(*arguments) == first)  # the same state in the same episode
        True
        >>> noise.reset()
        >>> bool(noise.sample(*arguments) == first)
        False
    """

    def __init__(self, sample_freq: int | None = None) -> None:
        self.sample_freq = sample_freq
        self.matrix = torch.zeros(0, 0, 0)
        """Standard normal numbers of each env, shape (N, F, A)."""
        self.steps: NDArray[np.int64] = np.zeros(0, np.int64)
        """Steps of each env with its matrix, shape (N,); -1 for an env that has none."""

    def sample(
        self, features: Tensor, std: Tensor, rng: np.random.Generator, env_ids: Sequence[int] | None = None
    ) -> Tensor:
        """Return the noise of B envs in their states, shape (B, A), without gradient.

        Args:
            features: Features of the states, shape (B, F).
            std: Standard deviations of the weights, shape (F, A). The matrices follow them from step to step.
            rng: Random number generator.
            env_ids: The envs, each once; None means 0 to B - 1.
        """
        rows = np.arange(len(features)) if env_ids is None else np.asarray(env_ids, np.int64)
        self._renew(rows, features, std.shape, rng)
        self.steps[rows] += 1
        weights = self.matrix[torch.from_numpy(rows).to(self.matrix.device)] * std.detach()
        return (features.detach().unsqueeze(2) * weights).sum(1)

    def _renew(self, rows: NDArray[np.int64], features: Tensor, shape: Sequence[int], rng: np.random.Generator) -> None:
        """Draw new matrices for those of the envs that need one."""
        if self.matrix.shape[1:] != tuple(shape):
            self.matrix, self.steps = features.new_zeros(0, *shape), self.steps[:0]
        missing = int(rows.max(initial=-1)) + 1 - len(self.steps)
        self.matrix = self.matrix.to(features.device)
        if missing > 0:
            self.matrix = torch.cat([self.matrix, self.matrix.new_zeros(missing, *shape)])
            self.steps = np.append(self.steps, np.full(missing, -1))
        used = self.steps[rows]
        stale = rows[(used < 0) if self.sample_freq is None else (used < 0) | (used >= self.sample_freq)]
        if len(stale):
            drawn = torch.from_numpy(rng.standard_normal((len(stale), *shape), dtype=np.float32))
            self.matrix[torch.from_numpy(stale).to(self.matrix.device)] = drawn.to(self.matrix)
            self.steps[stale] = 0

    def reset(self, ids: Sequence[int] | None = None) -> None:
        """Let envs draw new matrices at their next step, as at the start of an episode; None means all envs."""
        known = slice(None) if ids is None else [env_id for env_id in ids if env_id < len(self.steps)]
        self.steps[known] = -1

    def state_dict(self) -> dict[str, Any]:
        """Return the matrices and the steps of each env with its own."""
        return {"matrix": self.matrix.clone(), "steps": self.steps.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.matrix, self.steps = state["matrix"].clone(), np.array(state["steps"], np.int64)
