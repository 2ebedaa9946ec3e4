"""Exploration noise."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_ding.rl import OrnsteinUhlenbeckNoise, gaussian_noise


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


def test_noise_of_ornstein_and_uhlenbeck_begins_anew_for_the_envs_whose_episode_ended() -> None:
    noise = OrnsteinUhlenbeckNoise(0.0)
    noise.state = np.ones((3, 1))
    noise.reset([1, 7])
    assert noise.sample((3, 1), np.random.default_rng()).ravel().tolist() == pytest.approx([0.85, 0.0, 0.85])
    noise.reset()
    assert noise.sample((3, 1), np.random.default_rng()).ravel().tolist() == [0.0, 0.0, 0.0]


def test_the_size_of_a_step_can_be_overridden() -> None:
    assert OrnsteinUhlenbeckNoise(1.0).sample((4, 1), np.random.default_rng(), sigma=0.0).any() == np.False_


def test_noise_goes_on_where_it_was_saved() -> None:
    noise, other = OrnsteinUhlenbeckNoise(0.2), OrnsteinUhlenbeckNoise(0.2)
    noise.sample((2, 1), np.random.default_rng(0))
    other.load_state_dict(noise.state_dict())
    again = [one.sample((2, 1), np.random.default_rng(1)).tolist() for one in (noise, other)]
    assert again[0] == again[1]
    other.load_state_dict(OrnsteinUhlenbeckNoise(0.2).state_dict())
    assert other.state.shape == (0, 0)
