"""The Q-networks that return distributions: C51, QR-DQN and Rainbow."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import C51DQN, QRDQN, DistributionHead, RainbowDQN, create_model
from lightning_ding.registry import ENCODER_REGISTRY

NETWORKS: list[Any] = [C51DQN, QRDQN, RainbowDQN]


@ENCODER_REGISTRY.register("test_c51_doubled", force_overwrite=True)
class DoubledEncoder(nn.Module):
    """An encoder of our own: the observation times two."""

    def __init__(self, obs_shape: int, hidden_size_list: Sequence[int] | None, activation: str) -> None:
        super().__init__()
        self.output_size = obs_shape

    def forward(self, obs: Tensor) -> Tensor:
        return 2 * obs


def seeded(network: Any, **arguments: Any) -> Any:
    """Return a network whose weights depend on its arguments only."""
    torch.manual_seed(0)
    return network(**{"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [8, 8], **arguments})


# Head


def test_a_dueling_head_adds_the_state_to_the_advantages_less_their_mean() -> None:
    head, features = DistributionHead(4, 3, 5, 8, 1, dueling=True), torch.randn(6, 4)
    assert head.value is not None
    numbers, advantage = head(features), head.advantage(features).reshape(6, 3, 5)
    assert_close(numbers.mean(1), head.value(features), rtol=1e-5, atol=1e-6)
    assert_close(numbers[:, 0] - numbers[:, 2], advantage[:, 0] - advantage[:, 2], rtol=1e-5, atol=1e-6)


def test_a_plain_head_is_linear_layers_action_by_action() -> None:
    head, features = DistributionHead(4, 3, 5, 8), torch.randn(6, 4)
    weight, bias = head.parameters()
    assert_close(head(features)[:, 1], features @ weight[5:10].T + bias[5:10])


# Outputs


@pytest.mark.parametrize("network", [C51DQN, RainbowDQN])
def test_a_categorical_network_tells_probabilities_their_logarithms_and_their_means(network: Any) -> None:
    output = seeded(network, v_min=-1.0, v_max=3.0, n_atom=5)(torch.randn(6, 4))
    atoms = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0])
    assert output["distribution"].shape == (6, 3, 5)
    assert_close(output["distribution"].sum(2), torch.ones(6, 3))
    assert_close(output["log_distribution"], output["distribution"].log())
    assert_close(output["logit"], (output["distribution"] * atoms).sum(2))


def test_a_quantile_network_tells_quantiles_their_means_and_which_they_are() -> None:
    output = seeded(QRDQN, num_quantiles=4)(torch.randn(6, 4))
    assert (output["q"].shape, output["tau"].tolist()) == ((6, 3, 4), [0.125, 0.375, 0.625, 0.875])
    assert_close(output["logit"], output["q"].sum(2) / 4)


# Common behaviour


@pytest.mark.parametrize("network", NETWORKS)
def test_an_image_goes_through_convolutions(network: Any) -> None:
    model = seeded(network, obs_shape=(1, 36, 36), encoder_hidden_size_list=None)
    assert model(torch.zeros(2, 1, 36, 36, dtype=torch.uint8))["logit"].shape == (2, 3)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_action_mask_of_a_dict_is_not_encoded(network: Any) -> None:
    model, state = seeded(network, obs_shape={"state": 4, "action_mask": 3}), torch.randn(5, 4)
    values = [model({"state": state, "action_mask": mask})["logit"] for mask in (torch.zeros(5, 3), torch.ones(5, 3))]
    assert_close(values[0], values[1])


@pytest.mark.parametrize("network", NETWORKS)
def test_an_action_of_several_dimensions_is_refused(network: Any) -> None:
    with pytest.raises(TypeError, match=r"action_shape must be a number of discrete actions, got \[3, 2\]"):
        network(4, [3, 2])


@pytest.mark.parametrize(
    ("network", "arguments", "message"),
    [
        (C51DQN, {"v_min": 10.0}, r"v_min must be below v_max \(10.0\), got 10.0"),
        (C51DQN, {"n_atom": 1}, "n_atom must be >= 2, got 1"),
        (RainbowDQN, {"v_max": -10.0}, r"v_min must be below v_max \(-10.0\), got -10.0"),
        (RainbowDQN, {"n_atom": 1}, "n_atom must be >= 2, got 1"),
        (RainbowDQN, {"noise_std": 0.0}, "noise_std must be > 0, got 0.0"),
        (QRDQN, {"num_quantiles": 0}, "num_quantiles must be >= 1, got 0"),
        (C51DQN, {"head_hidden_size": 9, "head_layer_num": 0}, "head_hidden_size must be None or 8, .*, got 9"),
        (QRDQN, {"head_hidden_size": 9, "head_layer_num": 0}, "head_hidden_size must be None or 8, .*, got 9"),
        (RainbowDQN, {"head_layer_num": -1}, "head_layer_num must be >= 0, got -1"),
    ],
)
def test_a_size_out_of_its_range_is_refused(network: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        seeded(network, **arguments)


@pytest.mark.parametrize(("name", "network"), [("c51dqn", C51DQN), ("qrdqn", QRDQN), ("rainbowdqn", RainbowDQN)])
def test_the_networks_are_registered(name: str, network: Any) -> None:
    assert isinstance(create_model({"type": name, "obs_shape": 4, "action_shape": 3}), network)


# Rainbow's noise


def test_rainbow_uses_its_noise_only_if_asked() -> None:
    model, obs = seeded(RainbowDQN), torch.randn(5, 4)
    before = model(obs)["logit"]
    model.reset_noise(np.random.default_rng(0))
    assert torch.equal(model(obs)["logit"], before)
    assert not torch.equal(model(obs, noisy=True)["logit"], before)


def test_rainbow_draws_the_noise_of_both_streams() -> None:
    model, obs = seeded(RainbowDQN), torch.randn(5, 4)
    features = model.encoder(obs)
    model.reset_noise(np.random.default_rng(0))
    for stream in (model.value, model.advantage):
        assert not torch.equal(stream(features, noisy=True), stream(features))


# Options

OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "obs_shape": ({}, 5),
    "action_shape": ({}, 2),
    "encoder": ({}, "test_c51_doubled"),
    "encoder_hidden_size_list": ({}, [8, 16]),
    "v_min": ({}, -5.0),
    "v_max": ({}, 5.0),
    "n_atom": ({}, 21),
    "num_quantiles": ({}, 8),
    "noise_std": ({}, 1.0),
    "dueling": ({"head_layer_num": 1}, True),
    "head_hidden_size": ({"head_layer_num": 1}, 16),
    "head_layer_num": ({}, 2),
    "activation": ({}, "tanh"),
    "layer_norm": ({}, True),
    "encoder_kwargs": ({}, {"activation": "silu"}),
}


def fingerprint(network: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return shapes and sums of the parameters and the values of one observation."""
    model = seeded(network, **arguments)
    values: Tensor = model(torch.ones(1, arguments.get("obs_shape", 4)))["logit"]
    return [(tuple(p.shape), p.sum().item()) for p in model.parameters()] + values.flatten().tolist()


@pytest.mark.parametrize(
    ("network", "option"), [(n, option) for n in NETWORKS for option in inspect.signature(n).parameters]
)
def test_every_option_of_a_network_changes_its_values_or_its_size(network: Any, option: str) -> None:
    beside, value = OPTIONS[option]
    before, again = fingerprint(network, beside), fingerprint(network, beside)
    assert (before == again, before == fingerprint(network, {**beside, option: value})) == (True, False)
