"""The Q-network of DQN, and building networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import DQN, DuelingHead, MLPEncoder, create_model
from lightning_ding.registry import ENCODER_REGISTRY


@ENCODER_REGISTRY.register("test_dqn_doubled", force_overwrite=True)
class DoubledEncoder(nn.Module):
    """An encoder of our own: the observation times two."""

    def __init__(self, obs_shape: int, hidden_size_list: Sequence[int] | None, activation: str) -> None:
        super().__init__()
        self.output_size = obs_shape

    def forward(self, obs: Tensor) -> Tensor:
        return 2 * obs


def seeded(*args: Any, **kwargs: Any) -> DQN:
    """Return a network whose weights depend on its arguments only."""
    torch.manual_seed(0)
    return DQN(*args, **kwargs)


def logits(model: nn.Module, obs: Any) -> list[Tensor]:
    """Return the action values of each dimension of the action."""
    values = model(obs)["logit"]
    return values if isinstance(values, list) else [values]


def test_dqn_is_its_encoder_and_then_its_head() -> None:
    model, obs = DQN(4, 3), torch.randn(5, 4)
    assert_close(logits(model, obs)[0], model.head(model.encoder(obs)))


def test_dqn_is_dueling_with_one_hidden_layer_of_the_width_of_the_encoder_by_default() -> None:
    torch.manual_seed(0)
    encoder = MLPEncoder(4)
    head = DuelingHead(64, 3, hidden_size=64, layer_num=1)
    obs = torch.randn(5, 4)
    assert_close(logits(seeded(4, 3), obs)[0], head(encoder(obs)))


def test_dqn_without_dueling_has_a_linear_head() -> None:
    model, obs = DQN(4, 3, dueling=False), torch.randn(5, 4)
    weight, bias = list(model.parameters())[-2:]
    assert_close(logits(model, obs)[0], model.encoder(obs) @ weight.T + bias)


@pytest.mark.parametrize("part", ["encoder", "head"])
def test_the_activation_reaches_encoder_and_head(part: str) -> None:
    relu, tanh = seeded(4, 3), seeded(4, 3, activation="tanh")
    rows = torch.linspace(-1, 1, 8 * (4 if part == "encoder" else 64)).reshape(8, -1)
    assert not torch.allclose(getattr(relu, part)(rows), getattr(tanh, part)(rows))


def test_dqn_gives_a_list_with_the_values_of_each_dimension_of_a_multi_discrete_action() -> None:
    assert [tuple(q.shape) for q in DQN(4, [3, 2])(torch.zeros(5, 4))["logit"]] == [(5, 3), (5, 2)]


def test_dqn_gives_a_list_for_a_multi_discrete_action_of_one_dimension() -> None:
    values = DQN(4, [3])(torch.zeros(5, 4))["logit"]
    assert [tuple(q.shape) for q in values] == [(5, 3)]


def test_the_heads_of_a_multi_discrete_action_are_dueling_each_on_its_own() -> None:
    # the mean over the actions of one dimension is the value of that dimension
    model, obs = DQN(4, [3, 2]), torch.randn(5, 4)
    features = model.encoder(obs)
    heads: Any = model.head.heads
    means = [q.mean(1, keepdim=True) for q in logits(model, obs)]
    assert_close(means, [head.value(features) for head in heads], rtol=1e-5, atol=1e-6)


def test_dqn_does_not_encode_the_action_mask() -> None:
    model = DQN({"state": 4, "action_mask": 3}, 3)
    state = torch.randn(5, 4)
    values = [logits(model, {"state": state, "action_mask": mask}) for mask in (torch.zeros(5, 3), torch.ones(5, 3))]
    assert_close(values[0], values[1])


def test_dqn_uses_the_encoder_named() -> None:
    model, obs = DQN(4, 3, encoder="test_dqn_doubled", dueling=False), torch.randn(5, 4)
    weight, bias = model.parameters()
    assert_close(logits(model, obs)[0], 2 * obs @ weight.T + bias)


@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_refuses_a_width_of_hidden_layers_when_there_are_none(dueling: bool) -> None:
    with pytest.raises(ValueError, match=r"head_hidden_size must be None or 64, the size of its input, .*, got 32"):
        DQN(4, 3, head_hidden_size=32, head_layer_num=0, dueling=dueling)


@pytest.mark.parametrize(("name", "value"), [("head_hidden_size", 0), ("head_layer_num", -1)])
def test_dqn_refuses_a_size_out_of_its_range(name: str, value: int) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        DQN(4, 3, **arguments)


OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "obs_shape": ({}, 5),
    "action_shape": ({}, 2),
    "encoder": ({}, "test_dqn_doubled"),
    "encoder_hidden_size_list": ({}, [128, 128, 32]),
    "dueling": ({"head_layer_num": 1}, False),
    "head_hidden_size": ({}, 32),
    "head_layer_num": ({}, 2),
    "activation": ({}, "tanh"),
    "layer_norm": ({}, True),
    "encoder_kwargs": ({}, {"activation": "silu"}),
    "noise": ({}, True),
    "noise_std": ({"noise": True}, 0.1),
}


def fingerprint(arguments: dict[str, Any]) -> list[Any]:
    """Return the shapes of the parameters and the values of one observation."""
    model = seeded(**arguments)
    noisy = arguments.get("noise", False)
    if noisy:
        model.reset_noise(np.random.default_rng(0))
    values: Any = model(torch.ones(1, arguments["obs_shape"]), noisy=noisy)["logit"]
    return [*(tuple(p.shape) for p in model.parameters()), *values.flatten().tolist()]


def test_the_options_above_are_all_that_the_network_has() -> None:
    assert set(OPTIONS) == set(inspect.signature(DQN).parameters)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_network_changes_its_values_or_its_size(option: str) -> None:
    base = {"obs_shape": 4, "action_shape": 3, **OPTIONS[option][0]}
    before, again = fingerprint(base), fingerprint(base)
    after = fingerprint({**base, option: OPTIONS[option][1]})
    assert (before == again, before == after) == (True, False)


def test_create_model_builds_the_type_named_with_the_other_keys() -> None:
    torch.manual_seed(0)
    model = create_model({"type": "dqn", "obs_shape": 4, "action_shape": 3, "dueling": False})
    obs = torch.randn(2, 4)
    assert_close(logits(model, obs), logits(seeded(4, 3, dueling=False), obs))


def test_create_model_leaves_its_config_as_it_is() -> None:
    cfg: dict[str, Any] = {"type": "dqn", "import_names": [], "obs_shape": 4, "action_shape": 3}
    create_model(cfg)
    assert cfg == {"type": "dqn", "import_names": [], "obs_shape": 4, "action_shape": 3}


def test_create_model_imports_modules_first() -> None:
    with pytest.raises(ImportError, match="no_such_plugin"):
        create_model({"type": "dqn", "import_names": ["no_such_plugin"], "obs_shape": 4, "action_shape": 3})


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="obs_shape must be a dict with at least one entry"):
        DQN({"action_mask": 3}, 3)
    with pytest.raises(KeyError, match=r"did you mean 'test_dqn_doubled'\?"):
        DQN(4, 3, encoder="test_dqn_double")
    with pytest.raises(ValueError, match=r"encoder_kwargs.kernel_size must be <= 5 in convolution 1"):
        DQN((3, 5, 5), 2, encoder_kwargs={"kernel_size": [8, 4, 3]})
    with pytest.raises(KeyError, match=r"no model is registered as 'dqm'; did you mean 'dqn'\? Registered: .*dqn"):
        create_model({"type": "dqm", "obs_shape": 4, "action_shape": 3})
