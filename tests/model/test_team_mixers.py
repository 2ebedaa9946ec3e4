"""Mixers against plain loops, and what they may and may not represent."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.testing import assert_close

from lightning_ding.model.teams.mixers import JointValues, MonotonicMixer, UnrestrictedMixer


def relu_layers(net: nn.Module, x: list[float]) -> list[float]:
    """Return the output of linear layers with ReLU between them."""
    for number, layer in enumerate(net.layers):  # type: ignore[arg-type]
        x = linear(layer, x if number == 0 else [max(one, 0.0) for one in x])
    return x


def linear(layer: nn.Module, x: list[float]) -> list[float]:
    weight, bias = layer.weight.tolist(), layer.bias.tolist()  # type: ignore[operator]
    return [sum(w * one for w, one in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def test_monotonic_mixer_is_that_of_plain_loops() -> None:
    torch.manual_seed(0)
    mixer = MonotonicMixer(3, 4, mixing_embed_dim=5, hypernet_embed=6)
    value, state = torch.randn(2, 7, 3), torch.randn(2, 7, 4)
    found = mixer(value, state)
    assert found.shape == (2, 7)
    for q, s, total in zip(value.flatten(0, 1).tolist(), state.flatten(0, 1).tolist(), found.flatten(), strict=True):
        first, bias = relu_layers(mixer.first_weight, s), linear(mixer.first_bias, s)
        last, (by_state,) = relu_layers(mixer.last_weight, s), relu_layers(mixer.state_value, s)
        expected = by_state
        for unit in range(5):
            x = sum(q[agent] * abs(first[agent * 5 + unit]) for agent in range(3)) + bias[unit]
            expected += abs(last[unit]) * (x if x > 0 else math.exp(x) - 1)
        assert_close(float(total), expected, rtol=1e-4, atol=1e-5)


def test_monotonic_mixer_never_falls_when_an_agent_rises_and_the_central_one_may() -> None:
    torch.manual_seed(0)
    value, state = torch.randn(500, 3), torch.randn(500, 4)
    higher = value + torch.rand(500, 3)
    monotonic, central = MonotonicMixer(3, 4), UnrestrictedMixer(3, 4, central_embed_dim=16)
    assert bool((monotonic(higher, state) >= monotonic(value, state)).all())
    assert bool((central(higher, state) < central(value, state)).any())


def test_joint_values_are_those_of_plain_loops_and_leave_out_agents_that_have_left() -> None:
    torch.manual_seed(0)
    joint = JointValues(feature_size=4, action_size=3, state_size=2, embedding_size=5)
    feature, action, state = torch.randn(6, 2, 4), torch.randint(3, (6, 2)), torch.randn(6, 2)
    alive = torch.tensor([[1.0, 1.0], [1.0, 0.0]]).repeat(3, 1)
    found = joint(feature, action, alive, state)
    for row in range(6):
        encoded = [0.0] * 7
        for agent in range(2):
            taken = [float(int(action[row, agent]) == a) for a in range(3)]
            one = relu_layers(joint.encoder, feature[row, agent].tolist() + taken)
            encoded = [old + float(alive[row, agent]) * new for old, new in zip(encoded, one, strict=True)]
        (expected,) = relu_layers(joint.action_value, state[row].tolist() + encoded)
        assert_close(float(found[row]), expected, rtol=1e-4, atol=1e-5)
        assert_close(float(joint.of_state(state)[row]), relu_layers(joint.state_value, state[row].tolist())[0])
