"""The networks of policy gradients."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import PG, VAC, create_model

HYBRID = {"action_type_shape": 3, "action_args_shape": 2}


def seeded(model_class: Any = VAC, **kwargs: Any) -> Any:
    """Return a network whose weights depend on its arguments only."""
    torch.manual_seed(0)
    return model_class(**{"obs_shape": 4, "action_shape": 3, **kwargs})


def leaves(output: Any) -> list[Tensor]:
    """Return the tensors of nested dicts and lists."""
    if isinstance(output, Tensor):
        return [output]
    return [leaf for part in (output.values() if isinstance(output, dict) else output) for leaf in leaves(part)]


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        ({"action_shape": 3}, [(5, 3)]),
        ({"action_shape": [3, 2]}, [(5, 3), (5, 2)]),
        ({"action_shape": 2, "action_space": "continuous"}, [(5, 2), (5, 2)]),
        ({"action_shape": HYBRID, "action_space": "hybrid"}, [(5, 3), (5, 2), (5, 2)]),
    ],
)
@pytest.mark.parametrize("share_encoder", [True, False])
def test_vac_computes_actor_and_critic_together_as_each_alone(
    arguments: dict[str, Any], shapes: list[Any], share_encoder: bool
) -> None:
    model, obs = seeded(**arguments, share_encoder=share_encoder), torch.randn(5, 4)
    both = model(obs)
    assert_close(both["logit"], model(obs, mode="compute_actor")["logit"])
    assert_close(both["value"], model(obs, mode="compute_critic")["value"])
    assert ([tuple(x.shape) for x in leaves(both["logit"])], both["value"].shape) == (shapes, (5,))


def test_vac_refuses_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match=r"mode must be one of .*, got 'train'"):
        seeded()(torch.zeros(1, 4), mode="train")


@pytest.mark.parametrize("share_encoder", [True, False])
def test_the_value_trains_the_encoder_of_the_actor_only_if_it_is_shared(share_encoder: bool) -> None:
    model = seeded(share_encoder=share_encoder)
    model.compute_critic(torch.randn(5, 4))["value"].sum().backward()
    assert all((p.grad is not None) == share_encoder for p in model.encoder.parameters())


def test_vac_does_not_encode_the_action_mask() -> None:
    model, state = seeded(obs_shape={"state": 4, "action_mask": 3}), torch.randn(5, 4)
    outputs = [model({"state": state, "action_mask": mask}) for mask in (torch.zeros(5, 3), torch.ones(5, 3))]
    assert_close(outputs[0], outputs[1])


def sigma_of(arguments: dict[str, Any], obs: Tensor) -> Tensor:
    sigma: Tensor = seeded(action_space="continuous", **arguments).compute_actor(obs)["logit"]["sigma"]
    return sigma


def test_independent_sigma_is_a_parameter_that_starts_at_the_exponential_of_minus_a_half() -> None:
    model = seeded(action_space="continuous")
    sigma = model.compute_actor(torch.randn(5, 4))["logit"]["sigma"]
    assert_close(sigma.detach(), torch.full((5, 3), math.exp(-0.5)))
    sigma.sum().backward()
    assert model.actor.log_sigma.grad is not None


def test_fixed_sigma_is_the_value_given_and_not_learned() -> None:
    sigma = sigma_of({"sigma_type": "fixed", "fixed_sigma_value": 0.7}, torch.randn(5, 4))
    assert_close(sigma, torch.full((5, 3), 0.7))
    assert not sigma.requires_grad


def test_conditioned_sigma_depends_on_the_observation_within_its_range() -> None:
    obs = torch.tensor([[0.0], [1.0], [1e6], [-1e6]]).expand(4, 4)
    sigma = sigma_of({"sigma_type": "conditioned"}, obs)
    assert not torch.allclose(sigma[0], sigma[1])
    assert sigma.min().item() >= math.exp(-20) * 0.999
    assert sigma.max().item() == pytest.approx(math.exp(2))


def test_tanh_bounds_the_mean() -> None:
    obs = 10 * torch.randn(5, 4)
    free, bounded = (
        seeded(action_space="continuous", bound_type=bound).compute_actor(obs)["logit"]["mu"]
        for bound in (None, "tanh")
    )
    assert_close(bounded, free.tanh())


@pytest.mark.parametrize("model_class", [VAC, PG])
@pytest.mark.parametrize("arguments", [{}, {"action_space": "continuous", "sigma_type": "conditioned"}])
def test_orthogonal_start_has_the_gains_of_each_layer(model_class: Any, arguments: dict[str, Any]) -> None:
    # the rows of a wide orthogonal matrix have the length of the gain
    model = seeded(model_class, actor_head_layer_num=1, **arguments)
    model.init_orthogonally()
    gains: dict[nn.Module, float] = {layer: math.sqrt(2) for layer in model.modules() if isinstance(layer, nn.Linear)}
    actor = model.actor
    gains |= dict.fromkeys([actor.mu, actor.sigma_layer] if arguments else [actor.layers[-1]], 0.01)
    gains |= dict.fromkeys([model.critic.layers[-1]] if model_class is VAC else [], 1.0)
    for layer, gain in gains.items():
        weight: Any = layer.weight
        largest = torch.linalg.matrix_norm(weight, ord=2)
        assert_close(largest, torch.tensor(gain), rtol=1e-4, atol=0)
        assert not torch.any(layer.bias)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"action_shape": [3, 2]}, {"action_shape": HYBRID, "action_space": "hybrid"}])
def test_orthogonal_start_prefers_no_action_in_any_part(arguments: dict[str, Any]) -> None:
    model = seeded(**arguments)
    model.init_orthogonally()
    logit = model.compute_actor(torch.ones(1, 4))["logit"]
    parts = logit if isinstance(logit, list) else [logit["action_type"], logit["action_args"]["mu"]]
    assert all(part.abs().max() < 0.05 for part in parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma_type": "fixed"}, "sigma_type must be 'independent' for discrete actions"),
        ({"bound_type": "tanh"}, "bound_type must be None for discrete actions"),
        ({"action_space": "continuous", "fixed_sigma_value": 0.5}, "fixed_sigma_value must be 0.3 unless"),
        ({"action_space": "continuous", "fixed_sigma_value": 0.0}, "fixed_sigma_value must be > 0"),
        ({"action_space": "continuous", "sigma_type": "none"}, "sigma_type must be one of"),
        ({"action_space": "continuous", "bound_type": "clip"}, "bound_type must be 'tanh' or None"),
        ({"action_space": "general"}, "action_space must be one of"),
        ({"action_space": "hybrid"}, "action_shape must be a dict with action_type_shape and action_args_shape"),
        ({"action_shape": HYBRID}, "action_shape must be a size for discrete actions"),
        ({"actor_head_hidden_size": 8, "actor_head_layer_num": 0}, "actor_head_hidden_size must be None or 64"),
        ({"critic_head_hidden_size": 8, "critic_head_layer_num": 0}, "critic_head_hidden_size must be None or 64"),
        ({"actor_head_layer_num": -1}, "actor_head_layer_num must be >= 0"),
        ({"critic_head_layer_num": 1, "critic_head_hidden_size": 0}, "critic_head_hidden_size must be >= 1"),
    ],
)
def test_vac_refuses_arguments_out_of_range_or_without_effect(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeded(**arguments)


CONTINUOUS = {"action_space": "continuous"}
SDE = {**CONTINUOUS, "action_shape": 2, "use_sde": True}
LISTS = {"actor_hidden_size_list": [8], "critic_hidden_size_list": [8]}
OPTIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "obs_shape": ({}, 5),
    "action_shape": ({}, 2),
    "action_space": ({}, "continuous"),
    "share_encoder": ({}, False),
    "encoder": ({"obs_shape": (40, 40, 3)}, "mlp"),
    "encoder_hidden_size_list": ({}, [128, 128, 32]),
    "actor_head_hidden_size": ({"actor_head_layer_num": 1}, 32),
    "actor_head_layer_num": ({}, 2),
    "critic_head_hidden_size": ({"critic_head_layer_num": 1}, 32),
    "critic_head_layer_num": ({}, 2),
    "activation": ({}, "tanh"),
    "sigma_type": (CONTINUOUS, "conditioned"),
    "fixed_sigma_value": ({**CONTINUOUS, "sigma_type": "fixed"}, 0.5),
    "bound_type": (CONTINUOUS, "tanh"),
    "layer_norm": ({}, True),
    "encoder_kwargs": ({}, {"activation": "silu"}),
    "actor_hidden_size_list": (LISTS, [4]),
    "critic_hidden_size_list": (LISTS, [4]),
    "log_std_init": (CONTINUOUS, 0.5),
    "use_sde": (CONTINUOUS, True),
    "full_std": (SDE, False),
    "use_expln": ({**SDE, "log_std_init": 0.5}, True),
}


def fingerprint(model_class: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return the shapes of the parameters and the outputs for one observation."""
    model = seeded(model_class, **arguments)
    shape = arguments.get("obs_shape", 4)
    output = model(torch.ones(1, shape) if isinstance(shape, int) else torch.ones(1, *shape))
    numbers = [number for leaf in leaves(output) for number in leaf.flatten().tolist()]
    return [tuple(p.shape) for p in model.parameters()] + numbers


@pytest.mark.parametrize("model_class", [VAC, PG])
def test_the_options_above_are_all_that_the_networks_have(model_class: Any) -> None:
    only_of_vac = {"share_encoder", "critic_head_hidden_size", "critic_head_layer_num", "critic_hidden_size_list"}
    only_of_vac |= {"use_sde", "full_std", "use_expln"}
    expected = set(OPTIONS) - (only_of_vac if model_class is PG else set())
    assert set(inspect.signature(model_class).parameters) == expected


@pytest.mark.parametrize("model_class", [VAC, PG])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_the_networks_changes_outputs_or_size(model_class: Any, option: str) -> None:
    base, value = OPTIONS[option]
    if option not in inspect.signature(model_class).parameters:
        return
    base = {"actor_hidden_size_list": [8]} if base is LISTS and model_class is PG else base  # which has no critic
    before, again = fingerprint(model_class, base), fingerprint(model_class, base)
    assert (before == again, before == fingerprint(model_class, {**base, option: value})) == (True, False)


def test_pg_gives_the_logit_alone() -> None:
    model, obs = seeded(PG), torch.randn(5, 4)
    output = model(obs)
    assert list(output) == ["logit"]
    assert_close(output["logit"], model.actor(model.encoder(obs)))


@pytest.mark.parametrize(("name", "model_class"), [("vac", VAC), ("pg", PG)])
def test_create_model_builds_the_networks_by_name(name: str, model_class: type) -> None:
    assert type(create_model({"type": name, "obs_shape": 4, "action_shape": 3})) is model_class
