"""Noise of continuous actions, on numbers worked out by hand and against a slow loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_ding.rl import OrnsteinUhlenbeckNoise, StateDependentNoise, gaussian_noise

STD = torch.tensor([[0.5, 1.0], [2.0, 1.0]])


def test_noise_is_the_product_of_features_and_scaled_weights() -> None:
    noise = StateDependentNoise()
    noise.matrix, noise.steps = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), np.zeros(1, np.int64)
    # the weights are [[0.5, 2], [6, 4]], so the noise of the features (1, 2) is (0.5 + 2 * 6, 2 + 2 * 4)
    found = noise.sample(torch.tensor([[1.0, 2.0]]), STD, np.random.default_rng(0))
    assert found.tolist() == [[12.5, 10.0]]
    # the matrix stays, and follows the standard deviations
    assert noise.sample(torch.tensor([[1.0, 2.0]]), 2 * STD, np.random.default_rng(0)).tolist() == [[25.0, 20.0]]


class SlowNoise:
    """The same in loops over envs, features and dimensions."""

    def __init__(self, sample_freq: int | None) -> None:
        self.sample_freq = sample_freq
        self.matrices: dict[int, Any] = {}
        self.steps: dict[int, int] = {}

    def sample(self, features: Tensor, std: Tensor, rng: np.random.Generator, env_ids: list[int]) -> list[list[float]]:
        found = []
        for env_id, row in zip(env_ids, features.tolist(), strict=True):
            if env_id not in self.matrices or self.steps[env_id] == self.sample_freq:
                self.matrices[env_id] = rng.standard_normal(tuple(std.shape), dtype=np.float32).tolist()
                self.steps[env_id] = 0
            self.steps[env_id] += 1
            matrix = self.matrices[env_id]
            pairs = [[row[i] * matrix[i][j] * float(std[i, j]) for i in range(len(row))] for j in range(std.shape[1])]
            found.append([sum(of_dimension) for of_dimension in pairs])
        return found

    def reset(self, env_ids: list[int]) -> None:
        for env_id in env_ids:
            self.matrices.pop(env_id, None)


@pytest.mark.parametrize("sample_freq", [None, 1, 3])
def test_noise_of_any_envs_is_that_of_a_slow_loop(sample_freq: int | None) -> None:
    fast, slow = StateDependentNoise(sample_freq), SlowNoise(sample_freq)
    rngs = [np.random.default_rng(0) for _ in range(2)]
    order = np.random.default_rng(1)
    std = torch.rand(4, 2) + 0.1
    for _ in range(20):
        env_ids = order.permutation(6)[: order.integers(1, 7)].tolist()
        features = torch.randn(len(env_ids), 4)
        found = fast.sample(features, std, rngs[0], env_ids)
        assert torch.allclose(found, torch.tensor(slow.sample(features, std, rngs[1], env_ids)), rtol=1e-5, atol=1e-6)
        ended = order.permutation(8)[: order.integers(3)].tolist()  # also of envs that have not been seen
        fast.reset(ended)
        slow.reset(ended)


def test_noise_has_the_variance_of_the_squares() -> None:
    # 3^2 * 0.5^2 + 4^2 * 2^2 = 66.25 and 3^2 + 4^2 = 25; 40,000 draws have a relative error of 1/283
    features = torch.tensor([[3.0, 4.0]]).expand(40_000, 2)
    noise = StateDependentNoise().sample(features, STD, np.random.default_rng(0))
    assert noise.var(0).tolist() == pytest.approx([66.25, 25.0], rel=0.03)
    assert noise.mean(0).abs().max() < 0.15


def test_envs_keep_their_matrix_for_the_steps_or_until_a_reset() -> None:
    def numbers(noise: StateDependentNoise, steps: int) -> list[list[float]]:
        rng, features = np.random.default_rng(0), torch.ones(2, 2)
        return [noise.sample(features, STD, rng)[:, 0].tolist() for _ in range(steps)]

    kept = numbers(StateDependentNoise(), 50)
    assert all(one == kept[0] for one in kept)
    changing = numbers(StateDependentNoise(2), 4)
    assert changing[0] == changing[1] != changing[2] == changing[3]
    noise = StateDependentNoise()
    before = numbers(noise, 1)[0]
    noise.reset([1])
    after = numbers(noise, 1)[0]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)
    noise.reset()
    assert numbers(noise, 1)[0][1] != after[1]


def test_state_continues_with_the_same_bits() -> None:
    noise, rng = StateDependentNoise(3), np.random.default_rng(0)
    features = torch.randn(2, 3, 2)
    noise.sample(features[0], STD, rng)
    state, generator = noise.state_dict(), rng.bit_generator.state
    wanted = [noise.sample(features[1], STD, rng) for _ in range(4)]
    other, other_rng = StateDependentNoise(3), np.random.default_rng(9)
    other.load_state_dict(state)
    other_rng.bit_generator.state = generator
    assert all(torch.equal(other.sample(features[1], STD, other_rng), one) for one in wanted)


def test_new_sizes_start_with_new_matrices() -> None:
    noise, rng = StateDependentNoise(), np.random.default_rng(0)
    noise.sample(torch.ones(2, 2), STD, rng)
    assert noise.sample(torch.ones(3, 5), torch.ones(5, 1), rng).shape == (3, 1)
    assert noise.steps.tolist() == [1, 1, 1]


def test_gaussian_noise_has_the_standard_deviation_asked_for() -> None:
    noise = gaussian_noise((100_000,), 0.3, np.random.default_rng(0))
    assert noise.std() == pytest.approx(0.3, rel=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=0.01)


def test_gaussian_noise_is_clipped_to_its_range() -> None:
    noise = gaussian_noise((1000,), 5.0, np.random.default_rng(0), (-0.5, 0.25))
    assert (noise.min(), noise.max()) == (-0.5, 0.25)


def test_noise_of_ornstein_and_uhlenbeck_follows_its_recursion() -> None:
    """From 0: x1 = 0.2 n1, x2 = (1 - 0.15) x1 + 0.2 n2."""
    noise, draws = OrnsteinUhlenbeckNoise(0.2), np.random.default_rng(3).standard_normal((2, 1, 2))
    rng = np.random.default_rng(3)
    first, second = noise.sample((1, 2), rng), noise.sample((1, 2), rng)
    np.testing.assert_allclose(first, 0.2 * draws[0], rtol=1e-6)
    np.testing.assert_allclose(second, 0.85 * 0.2 * draws[0] + 0.2 * draws[1], rtol=1e-6)


def test_a_step_of_time_scales_pull_and_noise() -> None:
    """With dt = 0.25 and theta = 0.4: x = (1 - 0.1) * 1 + 2 * 0.5 * n."""
    noise, draw = OrnsteinUhlenbeckNoise(2.0, theta=0.4, dt=0.25), np.random.default_rng(3).standard_normal((1, 1))
    noise.state = np.ones((1, 1))
    np.testing.assert_allclose(noise.sample((1, 1), np.random.default_rng(3)), 0.9 + draw, rtol=1e-6)


def test_ornstein_uhlenbeck_noise_restarts_for_envs_whose_episode_ended() -> None:
    noise = OrnsteinUhlenbeckNoise(0.0)
    noise.state = np.ones((3, 1))
    noise.reset([1, 7])
    assert noise.sample((3, 1), np.random.default_rng()).ravel().tolist() == pytest.approx([0.85, 0.0, 0.85])
    noise.reset()
    assert noise.sample((3, 1), np.random.default_rng()).ravel().tolist() == [0.0, 0.0, 0.0]


def test_the_size_of_a_step_can_be_overridden() -> None:
    assert OrnsteinUhlenbeckNoise(1.0).sample((4, 1), np.random.default_rng(), sigma=0.0).any() == np.False_


def test_noise_continues_from_a_saved_state() -> None:
    noise, other = OrnsteinUhlenbeckNoise(0.2), OrnsteinUhlenbeckNoise(0.2)
    noise.sample((2, 1), np.random.default_rng(0))
    other.load_state_dict(noise.state_dict())
    again = [one.sample((2, 1), np.random.default_rng(1)).tolist() for one in (noise, other)]
    assert again[0] == again[1]
    other.load_state_dict(OrnsteinUhlenbeckNoise(0.2).state_dict())
    assert other.state.shape == (0, 0)
