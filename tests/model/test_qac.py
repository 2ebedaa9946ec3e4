"""The network of an actor and critics, and the ensemble of critics compared with its single members."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding.model import ContinuousQAC, EnsembleMLP, create_model
from lightning_ding.model.ensemble import UnitDropout
from lightning_ding.model.mlp import MLP

IMAGE = (3, 36, 36)


DICT = {"place": 2, "pixels": IMAGE}


HYBRID: dict[str, Any] = {
    "action_space": "hybrid",
    "action_shape": {"action_type_shape": 3, "action_args_shape": 2},
}


def observation(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {name: observation(below) for name, below in shape.items()}
    return torch.rand(5, *shape) if isinstance(shape, tuple) else torch.rand(5, shape)


@pytest.mark.parametrize("obs_shape", [4, IMAGE, DICT])
@pytest.mark.parametrize("twin_critic", [False, True])
def test_the_network_takes_vectors_images_and_dicts(obs_shape: Any, twin_critic: bool) -> None:
    model = ContinuousQAC(obs_shape, 2, twin_critic=twin_critic)
    obs = observation(obs_shape)
    action = model.compute_actor(obs)["action"]
    assert action.shape == (5, 2)
    assert model.compute_critic(obs, action)["q_value"].shape == (1 + twin_critic, 5)


def test_actions_are_in_the_normalised_range() -> None:
    model = ContinuousQAC(1, 2)
    assert_close(model.compute_actor(torch.full((1, 1), 1e6))["action"].abs(), torch.ones(1, 2))


def test_a_vector_goes_through_two_hidden_layers_by_default() -> None:
    model = ContinuousQAC(3, 1, "reparameterization", twin_critic=True)
    assert [tuple(p.shape) for p in model.actor.parameters()][::2] == [(256, 3), (256, 256), (2, 256)]
    assert [tuple(p.shape) for p in model.critic.head.weights] == [(2, 4, 256), (2, 256, 256), (2, 256, 1)]


def test_the_logarithm_of_the_deviation_is_limited() -> None:
    output = ContinuousQAC(1, 1, "reparameterization").compute_actor(torch.tensor([[1e6], [-1e6]]))
    assert sorted(output) == ["log_sigma", "mu"]
    assert output["log_sigma"].min() >= -20
    assert output["log_sigma"].max() <= 2


def test_actor_and_critic_have_all_parameters_between_them_and_share_none() -> None:
    model = ContinuousQAC(IMAGE, 2)
    actor, critic = set(model.actor.parameters()), set(model.critic.parameters())
    assert actor | critic == set(model.parameters())
    assert not actor & critic


def test_the_actor_does_not_train_an_encoder_that_is_shared() -> None:
    model = ContinuousQAC(4, 2, encoder_hidden_size_list=[8], share_encoder=True)
    obs = torch.rand(5, 4)
    model.compute_actor(obs)["action"].sum().backward()
    assert all(parameter.grad is None for parameter in model.critic.parameters())
    model.compute_critic(obs, torch.zeros(5, 2))["q_value"].sum().backward()
    assert all(parameter.grad is not None for parameter in model.critic.parameters())


def test_the_last_layers_start_small_if_asked() -> None:
    model = ContinuousQAC(4, 2, last_layer_init=3e-3)
    head: Any = model.actor.head.layers[-1]
    for parameter in (head.weight, head.bias, model.critic.head.weights[-1], model.critic.head.biases[-1]):
        assert 0 < parameter.abs().max() <= 3e-3
    assert model.critic.head.weights[0].abs().max() > 3e-3


def test_the_first_critic_can_be_asked_alone() -> None:
    model = ContinuousQAC(4, 2, twin_critic=True)
    obs, action = torch.rand(5, 4), torch.rand(5, 2)
    both = model.compute_critic(obs, action)["q_value"]
    assert_close(model.compute_critic(obs, action, members=1)["q_value"], both[:1])


@pytest.mark.parametrize("members", [None, 2])
def test_any_number_of_critics_predicts_quantiles(members: int | None) -> None:
    model = ContinuousQAC(4, 2, ensemble_num=3, num_quantiles=4)
    output = model.compute_critic(torch.rand(5, 4), torch.rand(5, 2), members)
    critics = members or 3
    assert (output["q_value"].shape, output["quantile"].shape) == ((critics, 5), (critics, 5, 4))
    assert_close(output["q_value"], output["quantile"].mean(2))
    assert output["tau"].tolist() == [0.125, 0.375, 0.625, 0.875]


def test_critics_predict_distributions_over_a_support() -> None:
    model = ContinuousQAC(4, 2, twin_critic=True, n_atom=3, v_min=-1.0, v_max=3.0)
    output = model.compute_critic(torch.rand(5, 4), torch.rand(5, 2))
    probability = output["distribution"]
    assert probability.shape == (2, 5, 3)
    assert_close(probability.sum(2), torch.ones(2, 5))
    assert_close(output["log_distribution"], probability.log())
    assert output["support"].tolist() == [-1.0, 1.0, 3.0]
    assert_close(output["q_value"], -probability[..., 0] + probability[..., 1] + 3 * probability[..., 2])


def test_the_number_of_critics_is_given_once() -> None:
    with pytest.raises(ValueError, match="twin_critic must be False with ensemble_num, got True"):
        ContinuousQAC(4, 2, twin_critic=True, ensemble_num=3)
    with pytest.raises(ValueError, match="ensemble_size must be >= 1, got 0"):
        ContinuousQAC(4, 2, ensemble_num=0)
    with pytest.raises(ValueError, match="num_quantiles must be >= 1, got 0"):
        ContinuousQAC(4, 2, num_quantiles=0)


def test_a_hybrid_action_is_a_choice_with_arguments() -> None:
    model, obs = ContinuousQAC(4, **HYBRID), torch.rand(5, 4)
    output = model.compute_actor(obs)
    assert (output["logit"].shape, output["action_args"].shape) == ((5, 3), (5, 2))
    args = output["action_args"]
    number = torch.tensor([0, 1, 2, 0, 1])
    weights = nn.functional.one_hot(number, 3).float()
    values: list[Tensor] = [
        model.compute_critic(obs, {"action_type": choice, "action_args": args})["q_value"]
        for choice in (number, weights)
    ]
    assert_close(values[0], values[1])


def test_the_network_is_found_by_name() -> None:
    assert isinstance(create_model({"type": "continuous_qac", "obs_shape": 3, "action_shape": 1}), ContinuousQAC)


def member(ensemble: EnsembleMLP, number: int, sizes: list[int], activation: str) -> MLP:
    """Return one member as a separate network."""
    network = MLP(sizes, activation, activate_last=False)
    for layer, weight, bias in zip(network.layers, ensemble.weights, ensemble.biases, strict=True):
        layer.weight.data, layer.bias.data = weight[number].T.detach(), bias[number, 0].detach()
    return network


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("members", [None, 1, 2])
def test_an_ensemble_equals_its_members_one_by_one(activation: str, members: int | None) -> None:
    sizes, x = [4, 8, 6, 2], torch.randn(5, 4)
    ensemble = EnsembleMLP(3, sizes, activation)
    singles: list[Tensor] = [member(ensemble, number, sizes, activation)(x) for number in range(members or 3)]
    assert_close(ensemble(x, members), torch.stack(singles), rtol=0, atol=1e-6)


def test_the_gradient_of_an_ensemble_is_that_of_its_members() -> None:
    x = torch.randn(5, 4)
    ensemble = EnsembleMLP(2, [4, 8, 1])
    ensemble(x).square().sum().backward()
    single = member(ensemble, 1, [4, 8, 1], "relu")
    single(x).square().sum().backward()
    weight = single.layers[0].weight
    assert_close(ensemble.weights[0].grad[1].T, weight.grad, rtol=0, atol=1e-5)


def test_members_start_as_linear_layers_do_and_differ() -> None:
    """Uniform in [-1 / sqrt(16), 1 / sqrt(16)], whatever the number of members."""
    ensemble = EnsembleMLP(5, [16, 400])
    weight, bias = ensemble.weights[0].detach(), ensemble.biases[0].detach()
    assert weight.shape == (5, 16, 400)
    assert 0.24 < weight.abs().max() <= 0.25
    assert 0.2 < bias.abs().max() <= 0.25
    assert not torch.equal(weight[0], weight[1])


@pytest.mark.parametrize("members", [None, 1])
def test_normalised_layers_of_members_are_those_of_single_networks(members: int | None) -> None:
    ensemble, x = EnsembleMLP(2, [4, 8, 1], "tanh", layer_norm=True), torch.randn(5, 4)
    ensemble.scales[0].data.uniform_(0.5, 2)
    ensemble.shifts[0].data.uniform_(-1, 1)
    for index, found in enumerate(ensemble(x, members)):
        single = MLP([4, 8, 1], "tanh", activate_last=False, layer_norm=True)
        single.load_state_dict(
            {
                **member(ensemble, index, [4, 8, 1], "tanh").state_dict(),
                "norms.0.weight": ensemble.scales[0][index, 0],
                "norms.0.bias": ensemble.shifts[0][index, 0],
            }
        )
        assert_close(found, single(x), rtol=0, atol=1e-5)


def test_members_are_chosen_by_their_indices() -> None:
    ensemble, x = EnsembleMLP(4, [4, 8, 1], layer_norm=True), torch.randn(5, 4)
    ensemble.scales[0].data.uniform_(0.5, 2)
    assert_close(ensemble(x, torch.tensor([3, 1])), ensemble(x)[[3, 1]])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_dropout_multiplies_the_hidden_units_of_each_member_before_they_are_normalised(layer_norm: bool) -> None:
    ensemble, x = EnsembleMLP(3, [4, 8, 6, 2], "tanh", layer_norm, dropout=0.25), torch.randn(5, 4)
    number = torch.randint(2**32, (5,))
    assert ensemble.dropout is not None
    factors, members = ensemble.dropout(number), torch.tensor([2, 0])
    expected = []
    for index in members:
        y = x
        for layer, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
            y = y @ weight[index] + bias[index]
            if layer < 2:
                y = y * factors[layer][index]
                y = torch.tanh(nn.functional.layer_norm(y, y.shape[1:]) if layer_norm else y)
        expected.append(y)
    assert_close(ensemble(x, members, number), torch.stack(expected))
    assert not torch.allclose(ensemble(x, members, number), ensemble(x, members))


def test_dropout_is_that_of_the_products_and_keeps_the_mean() -> None:
    dropout = UnitDropout(2, [3, 4], 0.25)
    number = torch.randint(2**32, (20_000,))
    found = torch.cat(dropout(number), 2)
    for item in range(5):  # in Python's integers
        for member in range(2):
            for unit in range(7):
                product = int(number[item]) * int(dropout.constants[member, 0, unit]) % 2**32
                assert found[member, item, unit].item() == pytest.approx(0 if product < 2**30 else 4 / 3)
    assert_close(found.mean(1), torch.ones(2, 7), rtol=0, atol=0.02)


def test_dropout_of_two_units_is_close_to_independent() -> None:
    is_left_out = torch.cat([x == 0 for x in UnitDropout(2, [32, 32], 0.25)(torch.randint(2**32, (20_000,)))], 2)
    columns = is_left_out.float().transpose(1, 2).flatten(0, 1)
    correlation = torch.corrcoef(columns).fill_diagonal_(0)
    assert correlation.abs().max() < 0.05  # seven standard errors


def test_critics_alone_are_normalised_if_asked() -> None:
    model = ContinuousQAC(4, 2, critic_layer_norm=True)
    assert len(model.critic.head.scales) == 2
    assert model.actor.head.norms is None


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="share_encoder must be False without an encoder, got True"):
        ContinuousQAC(4, 2, share_encoder=True)
    with pytest.raises(ValueError, match="num_quantiles must be None with n_atom, got 4"):
        ContinuousQAC(4, 2, num_quantiles=4, n_atom=3)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1.0"):
        ContinuousQAC(4, 2, critic_dropout=1.0)
    with pytest.raises(ValueError, match="ensemble_size must be >= 1, got 0"):
        EnsembleMLP(0, [1, 1])


# ---------------------------------------------------------------------- DI-engine's calls


@pytest.mark.parametrize("twin_critic", [False, True])
def test_forward_of_a_mode_has_the_form_of_ding(twin_critic: bool) -> None:
    model = ContinuousQAC(3, 1, "reparameterization", twin_critic)
    obs, action = torch.rand(5, 3), torch.rand(5, 1)
    mu, sigma = model.forward(obs, mode="compute_actor")["logit"]
    expected = model.compute_actor(obs)
    assert_close(mu, expected["mu"])
    assert_close(sigma, expected["log_sigma"].exp())
    values = model.compute_critic(obs, action)["q_value"]
    for given in (action, action.squeeze(1)):
        q_value = model({"obs": obs, "action": given}, mode="compute_critic")["q_value"]
        assert isinstance(q_value, list if twin_critic else Tensor)
        found = q_value if isinstance(q_value, list) else [q_value]
        assert_close(torch.stack(found), values)
    with pytest.raises(ValueError, match="mode must be 'compute_actor' or 'compute_critic', got 'compute_actr'"):
        model.forward(obs, mode="compute_actr")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"action_space": "hybrid"}, {"encoder_hidden_size_list": [8]}])
def test_each_critic_of_ding_is_differentiated_alone(options: dict[str, Any]) -> None:
    shape: Any = {"action_type_shape": 2, "action_args_shape": 1} if "action_space" in options else 1
    obs, action, logit = torch.rand(5, 3), torch.rand(5, 1), torch.rand(5, 2)
    model = ContinuousQAC(3, shape, twin_critic=True, **options)
    weights: Any = {"action_type": logit.softmax(1), "action_args": action} if "action_space" in options else action
    together = model.compute_critic(obs, weights)["q_value"]
    together.square().mean(1).sum().backward()
    expected = [one.grad.clone() for one in model.critic.parameters() if one.grad is not None]
    model.zero_grad()
    given = {"action_args": action} if "action_space" in options else action
    values = model({"obs": obs, "action": given, "logit": logit}, mode="compute_critic")["q_value"]
    assert_close(torch.stack(values), together)
    for q_value in values:  # as DI-engine's TD3 does
        q_value.square().mean().backward()
    assert_close([one.grad for one in model.critic.parameters() if one.grad is not None], expected)


def test_forward_of_a_mode_returns_actions_and_hybrid_choices() -> None:
    obs = torch.rand(5, 3)
    model = ContinuousQAC(3, 2)
    assert_close(model(obs, mode="compute_actor"), model.compute_actor(obs))
    model = ContinuousQAC(3, **HYBRID)
    output = model(obs, mode="compute_actor")
    assert sorted(output) == ["action_args", "logit"]
    inputs = {"obs": obs, "logit": output["logit"], "action": {"action_args": output["action_args"]}}
    weights = {"action_type": output["logit"].softmax(1), "action_args": output["action_args"]}
    assert_close(model(inputs, mode="compute_critic")["q_value"], model.compute_critic(obs, weights)["q_value"][0])
