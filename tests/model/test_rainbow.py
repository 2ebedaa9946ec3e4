"""Linear layers with factorised noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lightning_ding.model import DQN, MLPEncoder, NoisyLinear, NoisyMLP
from lightning_ding.model.mlp import MLP


class Generator:
    """Draws the numbers it is given."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def standard_normal(self, size: int, dtype: type) -> np.ndarray:
        assert size == len(self.numbers)
        return np.array(self.numbers, dtype=dtype)


def make_layer() -> NoisyLinear:
    """Return a layer of two inputs and one output: mu (1, 2), sigma (0.5, 0.25), biases 3 and 2."""
    layer = NoisyLinear(2, 1)
    values = {"weight_mu": [[1.0, 2.0]], "weight_sigma": [[0.5, 0.25]], "bias_mu": [3.0], "bias_sigma": [2.0]}
    layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    return layer


def test_a_noisy_layer_adds_factorised_noise() -> None:
    # f(4) = 2, f(-9) = -3 at the inputs, f(0.25) = 0.5 at the output: weights 1 + 0.5 * 2 * 0.5 = 1.5 and
    # 2 - 0.25 * 3 * 0.5 = 1.625, bias 3 + 2 * 0.5 = 4: 1.5 * 1 + 1.625 * 2 + 4
    layer = make_layer()
    layer.reset_noise(Generator([4.0, -9.0, 0.25]))  # type: ignore[arg-type]
    assert_close(layer(torch.tensor([[1.0, 2.0]]), noisy=True), torch.tensor([[8.75]]))


@pytest.mark.parametrize("training", [True, False])
def test_a_noisy_layer_that_is_not_asked_for_noise_uses_the_mean_weights(training: bool) -> None:
    layer = make_layer().train(training)
    layer.reset_noise(np.random.default_rng(0))
    assert layer(torch.tensor([[1.0, 2.0]])).tolist() == [[8.0]]


@pytest.mark.parametrize("training", [True, False])
def test_a_noisy_layer_is_noisy_in_training_and_in_evaluation_if_asked(training: bool) -> None:
    layer = make_layer().train(training)
    layer.reset_noise(np.random.default_rng(0))
    assert layer(torch.tensor([[1.0, 2.0]]), noisy=True).tolist() != [[8.0]]


def test_a_noisy_layer_has_no_noise_before_it_is_drawn() -> None:
    assert make_layer()(torch.tensor([[1.0, 2.0]]), noisy=True).tolist() == [[8.0]]


def test_noise_of_a_layer_stays_until_it_is_drawn_again() -> None:
    layer, x, rng = NoisyLinear(4, 3), torch.ones(1, 4), np.random.default_rng(0)
    layer.reset_noise(rng)
    first, again = layer(x, noisy=True), layer(x, noisy=True)
    layer.reset_noise(rng)
    assert (torch.equal(first, again), torch.equal(first, layer(x, noisy=True))) == (True, False)


def test_the_noise_comes_from_the_generator_alone() -> None:
    x, seen = torch.ones(1, 4), []
    layer = NoisyLinear(4, 3)
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)
        layer.reset_noise(np.random.default_rng(5))
        seen.append(layer(x, noisy=True))
    assert torch.equal(*seen)


def test_the_weights_of_a_noisy_layer_start_as_in_the_paper() -> None:
    # p = 16 inputs: mu within 1 / 4, sigma 0.5 / 4
    layer = NoisyLinear(16, 50)
    mu = torch.cat([layer.weight_mu.flatten(), layer.bias_mu])
    sigma = torch.cat([layer.weight_sigma.flatten(), layer.bias_sigma])
    assert 0.2 < mu.abs().max().item() <= 0.25
    assert_close(sigma, torch.full_like(sigma, 0.125))


def test_noise_of_a_layer_has_the_scale_noise_std() -> None:
    assert_close(NoisyLinear(16, 2, noise_std=2.0).bias_sigma, torch.tensor([0.5, 0.5]))


def test_the_noise_is_no_part_of_the_state() -> None:
    assert sorted(make_layer().state_dict()) == ["bias_mu", "bias_sigma", "weight_mu", "weight_sigma"]


def test_the_noise_of_a_weight_is_a_product_of_signed_roots() -> None:
    # E f(e)^2 = E abs(e) = sqrt(2 / pi)
    layer = NoisyLinear(2000, 2000)
    layer.reset_noise(np.random.default_rng(0))
    assert_close(layer.noise.square().mean().item(), math.sqrt(2 / math.pi), rtol=0, atol=0.03)
    assert abs(layer.noise.mean().item()) < 0.05


def test_layers_that_are_not_noisy_are_an_mlp_of_the_means() -> None:
    net, plain, x = NoisyMLP([4, 8, 3], "tanh"), MLPEncoder(4, [8, 3], "tanh"), torch.randn(5, 4)
    mean = {name: value for name, value in net.state_dict().items() if name.endswith("mu")}
    plain.load_state_dict({name.removesuffix("_mu"): value for name, value in mean.items()})
    assert_close(net(x).tanh(), plain(x))


def test_hidden_layers_are_normalised_if_asked() -> None:
    net, plain = NoisyMLP([4, 8, 3], layer_norm=True), MLP([4, 8, 3], activate_last=False, layer_norm=True)
    x = torch.randn(5, 4)
    means = {name.removesuffix("_mu"): value for name, value in net.state_dict().items() if "sigma" not in name}
    plain.load_state_dict(means)
    assert_close(net(x), plain(x))


def test_layers_have_independent_noise() -> None:
    net = NoisyMLP([4, 4, 4])
    net.reset_noise(np.random.default_rng(0))
    first, second = (layer.noise for layer in net.layers)
    assert not torch.equal(first, second)  # type: ignore[arg-type]


@pytest.mark.parametrize("dueling", [True, False])
def test_a_dqn_with_noisy_layers_has_the_values_of_one_with_their_means(dueling: bool) -> None:
    options: dict[str, Any] = {"encoder_hidden_size_list": [5], "head_layer_num": 1, "dueling": dueling}
    noisy, plain, obs = DQN(3, 2, noise=True, **options), DQN(3, 2, **options), torch.randn(4, 3)
    means = {name.removesuffix("_mu"): one for name, one in noisy.state_dict().items() if not name.endswith("_sigma")}
    if not dueling:
        means = {name.replace("head.advantage", "head"): one for name, one in means.items()}
    plain.load_state_dict(means)
    noisy.reset_noise(np.random.default_rng(0))
    assert_close(noisy(obs)["logit"], plain(obs)["logit"])
    assert not torch.allclose(noisy(obs, noisy=True)["logit"], plain(obs)["logit"])


def test_every_dimension_of_an_action_has_noisy_layers() -> None:
    model, obs = DQN(3, [2, 3], encoder_hidden_size_list=[5], noise=True), torch.randn(4, 3)
    model.reset_noise(np.random.default_rng(0))
    pairs = list(zip(model(obs)["logit"], model(obs, noisy=True)["logit"], strict=True))
    assert [mean.shape[1] for mean, _ in pairs] == [2, 3]
    assert not any(torch.allclose(mean, noisy) for mean, noisy in pairs)


def test_a_noisy_dqn_refuses_a_scale_of_0() -> None:
    with pytest.raises(ValueError, match=r"^noise_std must be > 0, got 0"):
        DQN(3, 2, noise=True, noise_std=0.0)
