"""The layers of SimBa, SimBa v2 and BroNet, and the normalised MLP, against networks written out one at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.model.batch_renorm import EPS, update_layers
from lightning_ding.model.qac import ContinuousQAC
from lightning_ding.model.residual import LayersConfig, constrained_layers, make_layers
from lightning_ding.policy import BROPolicy, CrossQPolicy, SACPolicy

KINDS = [
    *(
        {"type": kind, "weights": weights}
        for kind in ("mlp", "simba", "bronet")
        for weights in (None, "unit", "spectral")
    ),
    *(
        {"type": kind, "norm": norm}
        for kind in ("mlp", "simba", "bronet")
        for norm in ("layer", "batch", "batch_renorm")
    ),
    {"type": "mlp", "norm": "batch", "weights": "unit_all"},
    {"type": "simba_v2"},
]
SIZES = [3, 8, 8, 8, 2]  # two blocks


def made(config: dict[str, Any], members: int = 2) -> Any:
    """Return an ensemble whose parameters are all different from their first values."""
    torch.manual_seed(0)
    network = make_layers(config, members, SIZES).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    for layer in constrained_layers(network):
        layer.after_step()
    return network


def linear(layer: Any, member: int, x: Tensor) -> Any:
    weight = layer.weight[member].detach()
    if layer.weights == "spectral":
        weight = weight / (layer.left[member].T @ weight @ layer.right[member])
    out = torch.stack([sum(x[row, i] * weight[i] for i in range(len(weight))) for row in range(len(x))])
    return out if layer.bias is None else out + layer.bias[member, 0]


def norm(layer: Any, member: int, x: Tensor, by_batch: bool) -> Any:
    scale, shift = layer.scale[member, 0], layer.shift[member, 0]
    if not hasattr(layer, "variance"):
        return torch.stack([(row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt() for row in x]) * scale + shift
    mean, variance = (
        (x.mean(0), x.var(0, correction=0)) if by_batch else (layer.mean[member, 0], layer.variance[member, 0])
    )
    return (x - mean) / (variance + EPS).sqrt() * scale + shift


def project(x: Tensor) -> Tensor:
    return torch.stack([row / math.sqrt(sum(float(v.detach()) ** 2 for v in row)) for row in x])


def slowly(config: dict[str, Any], network: Any, member: int, x: Any, by_batch: bool = False) -> Any:
    """Return the output of one member, as the papers describe it."""
    if config["type"] == "simba_v2":
        width = 8
        x = project(torch.cat([x, torch.full((len(x), 1), 3.0, dtype=x.dtype)], 1))
        x = project(linear(network.first, member, x) * network.first_scaler.scale[member, 0])
        for widen, scaler, narrow, step in zip(
            network.widen, network.scalers, network.narrow, network.steps, strict=True
        ):
            inner = F.relu(linear(widen, member, x) * scaler.scale[member, 0]) + 1e-8
            alpha = step.scale[member, 0] * (1 / 3) * math.sqrt(width)
            x = project((1 - alpha) * x + alpha * project(linear(narrow, member, inner)))
        x = linear(network.last, member, x) * network.last_scaler.scale[member, 0]
        return linear(network.output, member, x) + network.bias[member, 0]
    hidden, norms = network.hidden, network.norms

    def normal(number: int, value: Tensor) -> Any:
        return norm(norms[number], member, value, by_batch)

    if config["type"] == "mlp":
        of_inputs = len(norms) - 3  # with batch normalisation also of the inputs
        x = normal(0, x) if of_inputs == 1 else x
        for number, layer in enumerate(hidden):
            x = linear(layer, member, x)
            x = F.relu(normal(number + of_inputs, x) if len(norms) else x)
    elif config["type"] == "simba":
        x = linear(hidden[0], member, x)
        x = x + linear(hidden[2], member, F.relu(linear(hidden[1], member, normal(0, x))))
        x = x + linear(hidden[4], member, F.relu(linear(hidden[3], member, normal(1, x))))
        x = normal(2, x)
    else:
        x = F.relu(normal(0, linear(hidden[0], member, x)))
        for first in (1, 3):
            inner = F.relu(normal(first, linear(hidden[first], member, x)))
            x = x + normal(first + 1, linear(hidden[first + 1], member, inner))
    return linear(network.output, member, x)


@pytest.mark.parametrize("config", KINDS, ids=lambda one: "-".join(map(str, one.values())))
def test_all_members_at_once_are_each_one_alone(config: dict[str, Any]) -> None:
    network, x = made(config), torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = network(x)
    assert_close(
        together, torch.stack([slowly(config, network, member, x) for member in range(2)]), atol=1e-6, rtol=1e-6
    )
    if not network.renorms:
        assert_close(network(x, 1), together[:1])
        assert_close(network(x, torch.tensor([1])), together[1:])
        assert_close(network(torch.stack([x, 2 * x]), torch.tensor([1, 0]))[1], network(2 * x)[0])
    else:
        statistics: list[Tensor] = []
        expected = torch.stack([slowly(config, network, member, x, True) for member in range(2)])
        assert_close(network(x, statistics=statistics), expected, atol=1e-6, rtol=1e-6)
        update_layers(network, torch.cat([one.flatten(1) for one in statistics], 1))
        if config["type"] == "mlp":
            assert_close(network.norms[0].mean[0, 0], 0.01 * x.mean(0))


def test_widths_and_first_weights_of_simba_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    network = make_layers({"type": "simba"}, 2, [3, 16, 16, 16, 1])
    assert [tuple(layer.weight.shape) for layer in network.hidden] == [(2, 3, 16), *[(2, 16, 64), (2, 64, 16)] * 2]
    first, wide = network.hidden[0].weight[0], network.hidden[1].weight
    assert_close(first @ first.T, torch.eye(3))  # orthogonal
    assert wide.std().item() == pytest.approx(math.sqrt(2 / 16), rel=0.1)  # He et al. 2015
    assert all(not layer.bias.any() for layer in (*network.hidden, network.output))


def test_the_weights_of_the_last_layer_can_be_of_norm_1_too() -> None:
    free, unit = (make_layers({"weights": kind}, 2, SIZES) for kind in ("unit", "unit_all"))
    assert [len(constrained_layers(one)) for one in (free, unit)] == [3, 4]
    assert constrained_layers(unit)[-1] is unit.output
    assert_close(unit.output.weight.norm(dim=1), torch.ones(2, 2))
    assert not torch.allclose(free.output.weight.norm(dim=1), torch.ones(2, 2), atol=0.01)


@pytest.mark.parametrize("kind", ["unit", "spectral"])
def test_the_weights_stay_restricted_after_every_update(kind: str) -> None:
    torch.manual_seed(0)
    layers = {"type": "bronet", "weights": kind}
    sizes: dict[str, Any] = {
        "obs_shape": 3,
        "action_shape": 1,
        "actor_head_hidden_size": 8,
        "critic_head_hidden_size": 8,
    }
    policy = SACPolicy(
        {"model": {**sizes, "actor_layers": layers, "critic_layers": layers}, "learn": {"learning_rate_q": 0.01}}
    )
    before = policy.model.critic.head.hidden[1].weight.detach().clone()
    numbers = {name: torch.randn(6, 3) for name in ("obs", "next_obs")}
    ends = torch.zeros(6, dtype=torch.bool)
    for _ in range(4):
        policy.learn_mode.forward({**numbers, "action": torch.rand(6, 1), "reward": torch.rand(6), "terminated": ends})
    assert not torch.allclose(policy.model.critic.head.hidden[1].weight, before, atol=0.001)
    for part in (policy.model.critic.head, policy.model.actor.head):
        assert len(constrained_layers(part)) == 3  # all but the last
        for layer in constrained_layers(part):
            if kind == "unit":
                assert_close(layer.weight.norm(dim=1), torch.ones_like(layer.weight[:, 0]))
            else:
                found = layer.left.mT @ layer.weight @ layer.right
                largest = torch.linalg.matrix_norm(layer.weight, 2)
                assert_close(found.flatten(), largest, rtol=0.1, atol=0.0)  # the power iteration follows the weights


def test_the_averaged_weights_of_a_target_network_have_a_spectral_norm_of_1_too() -> None:
    torch.manual_seed(0)
    model = {"obs_shape": 3, "action_shape": 1, "critic_head_hidden_size": 32, "critic_layers": {"weights": "spectral"}}
    policy = SACPolicy({"model": model, "learn": {"learning_rate_q": 0.003}})
    ends = torch.zeros(64, dtype=torch.bool)
    for _ in range(150):
        batch = {name: torch.randn(64, 3) for name in ("obs", "next_obs")} | {"terminated": ends}
        policy.learn_mode.forward({**batch, "action": torch.rand(64, 1), "reward": torch.rand(64)})
    layers = constrained_layers(policy.target_model.critic.head)
    assert len(layers) >= 1
    for layer in layers:
        norm = torch.linalg.matrix_norm(layer.weight, 2) / (layer.left.mT @ layer.weight @ layer.right).flatten()
        assert_close(norm, torch.ones(2), rtol=0.05, atol=0.0)


def test_simba_v2_is_on_the_unit_sphere_and_keeps_the_size_of_its_inputs() -> None:
    network = made({"type": "simba_v2"})
    assert len(constrained_layers(network)) == 7
    seen: list[Tensor] = []
    network.last.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    small, large = network(torch.ones(1, 3, dtype=torch.float64)), network(torch.full((1, 3), 2.0, dtype=torch.float64))
    assert all(torch.allclose(x.norm(dim=-1), torch.ones(2, 1, dtype=torch.float64)) for x in seen)
    assert not torch.allclose(small, large)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LayersConfig(type="simba_v2", norm="layer"),
            "norm must be None for layers of type 'simba_v2', got 'layer'",
        ),
        (lambda: LayersConfig(type="simba_v2", weights="unit"), "weights must be None for layers of type 'simba_v2'"),
        (
            lambda: SACPolicy({"model": {"actor_layers": {"weights": "unit_all"}}}),
            "last_layer_init must be None with model.actor_layers.weights 'unit_all'",
        ),
        (
            lambda: BROPolicy({"model": {"actor_layers": {"weights": "unit_all"}}}),
            "model.actor_layers.weights must be unit, spectral or None, for the explorer",
        ),
        (lambda: LayersConfig(momentum=0.0), r"momentum must be in \(0, 1\], got 0.0"),
        (lambda: LayersConfig(warmup=-1), "warmup must be >= 0, got -1"),
        (lambda: LayersConfig(momentum=0.1), "momentum must be 0.01 without batch normalisation, got 0.1"),
        (lambda: LayersConfig(norm="batch", warmup=1), "warmup must be 100000 without the norm 'batch_renorm', got 1"),
        (
            lambda: make_layers({"type": "simba"}, 1, [3, 8, 4, 1]),
            r"hidden layers must be of one width .* got \[8, 4\]",
        ),
        (lambda: make_layers({"norm": "batch"}, 2, SIZES)(torch.zeros(1, 3), 1), "members must be None with batch"),
        (
            lambda: SACPolicy({"model": {"actor_layers": {"norm": "batch"}}}),
            "actor_layers.norm must be 'layer' or None",
        ),
        (lambda: SACPolicy({"model": {"critic_layers": {"type": "simba_v2"}}}), "last_layer_init must be None with"),
        (
            lambda: CrossQPolicy({"model": {"critic_layers": {"norm": "batch"}}}),
            "must be both plain, or both with the norm",
        ),
        (lambda: _qac(layer_norm=True), "layer_norm must be False with other layers"),
        (lambda: _qac(critic_layer_norm=True), "critic_layer_norm must be False with critic_layers"),
        (lambda: _qac(critic_dropout=0.1), "critic_dropout must be 0 with critic_layers, got 0.1"),
        (lambda: _qac(batch_renorm=True), "batch_renorm must be False with other layers"),
        (lambda: _qac(use_sde=True), "use_sde must be False with actor_layers"),
        (
            lambda: _qac("mlp", unit=True, last_layer_init=0.1),
            "last_layer_init must be None with the weights 'unit_all'",
        ),
        (lambda: _qac("simba_v2", last_layer_init=0.1), "last_layer_init must be None for layers of type 'simba_v2'"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _qac(kind: str = "simba", unit: bool = False, **options: Any) -> ContinuousQAC:
    layers = {"type": kind, **({"weights": "unit_all"} if unit else {})}
    return ContinuousQAC(3, 1, "reparameterization", actor_layers=layers, critic_layers=layers, **options)


def test_the_last_layers_can_begin_near_zero() -> None:
    model = _qac(last_layer_init=1e-3, actor_head_hidden_size=8, critic_head_hidden_size=8)
    for head in (model.actor.head, model.critic.head):
        assert max(float(one.abs().max()) for one in head.output_parameters()) <= 1e-3
