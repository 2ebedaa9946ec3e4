"""The layers of all registered networks are called, so that they can have hooks, be replaced, pruned and wrapped."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

from lightning_ding.model import create_model, decision_transformer  # noqa: F401 - registers its network
from lightning_ding.model.ensemble import UnitDropout
from lightning_ding.registry import MODEL_REGISTRY

Call = Callable[[Any], Any]

BATCH, SIZE, ACTIONS = 4, 6, 3
OBS = torch.linspace(-2, 2, BATCH * SIZE).reshape(BATCH, SIZE)
IMAGES = {"image": torch.arange(BATCH * 2 * 12 * 12).reshape(BATCH, 2, 12, 12).remainder(250).byte(), "vector": OBS}
IMAGE_SHAPES: dict[str, Any] = {"obs_shape": {"image": [2, 12, 12], "vector": SIZE}}
SMALL_IMAGES = {**IMAGE_SHAPES, "encoder_kwargs": {"channels": [2, 3], "feature_size": 5}}
IMPALA = {**IMAGE_SHAPES, "encoder_kwargs": {"image_encoder": "impala", "channels": [2, 3], "feature_size": 5}}
ACTION = OBS[:, :2].tanh()
STEPS, CHOICES = OBS[None].repeat(3, 1, 1), torch.arange(BATCH) % ACTIONS
HYBRID = {"action_type_shape": ACTIONS, "action_args_shape": 2}
STARTS = torch.zeros(3, BATCH, dtype=torch.bool)


def logit(model: Any) -> Any:
    return model(OBS)


def of_images(model: Any) -> Any:
    return model(IMAGES)


def actor_and_critics(model: Any) -> Any:
    value = [model.compute_value(OBS)] if hasattr(model, "value") else []
    return [model.compute_actor(OBS), model.compute_critic(OBS, ACTION)["q_value"], *value]


def explorer_and_critics(model: Any) -> Any:
    actor = model.compute_actor(OBS)
    return [actor, model.compute_explorer(OBS, actor["mu"]), *model.compute_critic(OBS, ACTION).values()]


def embeddings_and_critics(model: Any) -> Any:
    return [*actor_and_critics(model), model.embedding.of_action(model.embedding.of_state(OBS), ACTION)]


def hybrid_actor_and_critics(model: Any) -> Any:
    action = {"action_type": CHOICES, "action_args": ACTION}
    return [model.compute_actor(OBS), model.compute_critic(OBS, action)["q_value"]]


def actor_and_vae(model: Any) -> Any:
    return [*actor_and_critics(model), *model.encode(OBS, ACTION)]


def unrolled(model: Any) -> Any:
    """Return the outputs of a network with memory when it acts, learns, and learns over the ends of episodes."""
    state = model.first_state(BATCH)
    return [model(STEPS[:1], state), model(STEPS, state), model(STEPS, state, STARTS)]


def of_family(model: Any) -> Any:
    """Return the outputs of a network with memory, and those of its novelty."""
    return [*unrolled(model), model.novelty(OBS), model.novelty.inverse_error(OBS, -OBS, CHOICES)]


def of_world(model: Any) -> Any:
    """Return the outputs of a world model, and those of its actor and critic."""
    state = model.first_state(BATCH) + 1
    latent, after = model.latent(OBS, state)
    action = torch.eye(ACTIONS)[CHOICES]
    prior = model.rssm.prior(model.rssm.step(*model.unpack(state)[:2], model.rssm.from_action(action)))
    heads = [model.actor(latent), model.critic(latent), model.reward(latent), model.alive(latent)]
    return [latent, after, prior, *model.decoder(latent), *heads]


def of_plans(model: Any) -> Any:
    """Return the outputs of a latent model, its critics and its policy prior."""
    latent, action = model.encoder(OBS), OBS[:, :2]
    heads = [model.reward_logit(latent, action).softmax(-1), model.value_logit(latent, action), model.end_logit(latent)]
    return [latent, model.next(latent, action), *heads, *model.prior(latent)]


def transformed(model: Any) -> Any:
    steps = torch.arange(2).expand(BATCH, 2)
    return model(torch.stack([OBS, -OBS], 1), steps, steps.float(), steps)


TEAM = {"agent_state": OBS.view(BATCH, 2, 3)}
TEAM_ACTION = torch.arange(2 * BATCH).view(BATCH, 2) % ACTIONS
TEAM_SHAPES = {"agent_num": 2, "agent_obs_shape": 3, "global_obs_shape": 6, "action_shape": ACTIONS}


def valued_team(model: Any) -> Any:
    """Return what a network of Q-learning of teams computes: values of agents, and those of its mixers."""
    steps = {"agent_state": STEPS.view(3, BATCH, 2, 3)}
    output = model(steps, model.first_state(BATCH))
    found: list[Any] = [{name: one for name, one in output.items() if one.numel()}]  # a state may have no numbers
    found.append(model.mix(output["logit"].amax(-1), steps))
    if hasattr(model, "mix_central"):
        found.append(model.mix_central(output["central"].amax(-1), steps))
    if hasattr(model, "joint"):
        state, alive = model.state_of(steps), torch.ones(3, BATCH, 2)
        found += [model.joint(output["feature"], output["logit"].argmax(-1), alive, state), model.joint.of_state(state)]
    return found


def unrolled_team(model: Any) -> Any:
    steps, state = {"agent_state": STEPS.view(3, BATCH, 2, 3)}, model.first_state(BATCH)
    return [model.act(TEAM, state), model(steps, state), model(steps, state, STARTS)]


NETWORKS: dict[str, tuple[str, dict[str, Any], Call]] = {  # registered name, arguments, what is called
    "dqn": ("dqn", {"layer_norm": True}, logit),
    "dqn of images": ("dqn", SMALL_IMAGES, of_images),
    "dqn of several dimensions": ("dqn", {"action_shape": [2, 3], **IMPALA, "activation": "tanh"}, of_images),
    "noisy dqn": ("dqn", {"noise": True}, lambda model: model(OBS, noisy=True)),
    "c51dqn": ("c51dqn", {"n_atom": 3}, logit),
    "qrdqn": ("qrdqn", {"num_quantiles": 3}, logit),
    "rainbowdqn": ("rainbowdqn", {"n_atom": 3, "layer_norm": True}, lambda model: model(OBS, noisy=True)),
    "iqn": ("iqn", {"num_quantiles": 3}, logit),
    "fqf": ("fqf", {"num_quantiles": 3}, lambda model: [model(OBS), model.propose(OBS)]),
    "drqn": ("drqn", {"core": {"hidden_size": 4, "num_layers": 2}, "activation": "silu"}, unrolled),
    "ngu": ("ngu", {"core": {"hidden_size": 4}, "embedding_size": 5}, of_family),
    "recurrent_vac": ("recurrent_vac", {"core": {"type": "gru", "hidden_size": 4}, "share_encoder": False}, unrolled),
    "dreamerv3": (
        "dreamerv3",
        {"deter": 8, "hidden": 4, "units": 4, "groups": 2, "classes": 3, "blocks": 2, "bins": 5},
        of_world,
    ),
    "tdmpc2": ("tdmpc2", {"action_shape": 2, "encoder": 16, "hidden": 16, "latent": 8, "bins": 5}, of_plans),
    "drqn with gtrxl": (
        "drqn",
        {"core": {"type": "gtrxl", "hidden_size": 16, "num_layers": 2, "memory_length": 2}},
        unrolled,
    ),
    "pg": ("pg", {"action_shape": HYBRID, "action_space": "hybrid"}, logit),
    "vac": ("vac", {"action_space": "continuous", "sigma_type": "conditioned", "actor_head_hidden_size": 4}, logit),
    "vac of images": ("vac", {**SMALL_IMAGES, "share_encoder": False, "layer_norm": True}, of_images),
    "continuous_qac": ("continuous_qac", {"action_shape": 2, "with_value": True}, actor_and_critics),
    "discrete_qac": ("discrete_qac", {}, lambda model: [model.compute_actor(OBS), model.compute_critic(OBS)]),
    "optimistic_qac": (
        "optimistic_qac",
        {"action_shape": 2, "action_space": "reparameterization"},
        explorer_and_critics,
    ),
    "sale_qac": ("sale_qac", {"action_shape": 2}, embeddings_and_critics),
    "bcq": ("bcq", {"action_shape": 2, "vae_hidden_size_list": [4]}, actor_and_vae),
    "pdqn": ("pdqn", {"action_shape": HYBRID, "action_space": "hybrid"}, hybrid_actor_and_critics),
    "bdq": ("bdq", {"action_shape": [2, 3]}, logit),
    "sqn": ("sqn", {}, logit),
    "ppg": (
        "ppg",
        {"action_space": "discrete"},
        lambda model: [model(OBS, "compute_actor_critic"), model.compute_auxiliary(OBS)],
    ),
    "team_qac": (
        "team_qac",
        {**TEAM_SHAPES, "layer_norm": True},
        lambda model: model.compute_critic(TEAM, model.compute_actor(TEAM)["action"]),
    ),
    "team_vac": ("team_vac", {**TEAM_SHAPES, "layer_norm": True}, lambda model: model(TEAM)),
    "havac": ("havac", {**TEAM_SHAPES, "layer_norm": True}, lambda model: model(TEAM)),
    "iql_ma": ("iql_ma", {**TEAM_SHAPES, "layer_norm": True}, valued_team),
    "vdn": ("vdn", {**TEAM_SHAPES, "agent_id": False}, valued_team),
    "qmix": ("qmix", {**TEAM_SHAPES, "core": {"type": "lstm", "hidden_size": 4}}, valued_team),
    "wqmix": ("wqmix", {**TEAM_SHAPES, "central_embed_dim": 8}, valued_team),
    "madqn": ("madqn", {**TEAM_SHAPES, "layer_norm": True}, valued_team),
    "qtran": ("qtran", {**TEAM_SHAPES, "embedding_size": 8}, valued_team),
    "coma": ("coma", {**TEAM_SHAPES, "layer_norm": True}, lambda model: model(TEAM, TEAM_ACTION)),
    "mat": ("mat", {**TEAM_SHAPES, "layer_norm": True}, lambda model: model(TEAM, TEAM_ACTION)),
    "recurrent_team_vac": ("recurrent_team_vac", {**TEAM_SHAPES, "core": {"hidden_size": 4}}, unrolled_team),
    "dt": ("dt", {"embed_dim": 4, "n_blocks": 1}, transformed),
}
EVERY = pytest.mark.parametrize("name", NETWORKS)


def make(name: str) -> tuple[Any, Call]:
    """Return a network in evaluation mode, with the function that calls it."""
    kind, arguments, call = NETWORKS[name]
    torch.manual_seed(0)
    shapes = {} if "agent_num" in arguments else {"obs_shape": SIZE, "action_shape": ACTIONS}
    model = create_model({"type": kind, **shapes, **arguments}).eval()
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():  # as output layers of DreamerV3 are at first
            nn.init.normal_(layer.weight)
    return model, call


def tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [leaf for part in (output.values() if isinstance(output, dict) else output) for leaf in tensors(part)]


def linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield each linear layer that learns with its parent and its name there."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and is_trained(layer) and not isinstance(parent, Wrapper):
                yield parent, name, layer


class Wrapper(nn.Module):
    """A layer of a user around a linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base


class Squashed(Wrapper):
    """A layer whose backward pass needs its output."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x)
        return output.sigmoid()


class LoRA(Wrapper):
    """Adds a product of two small matrices to the weights (Hu et al. 2022)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.down, self.up = nn.Linear(base.in_features, 1, False), nn.Linear(1, base.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + self.up(self.down(x))
        return output

    @property
    def weight(self) -> Tensor:
        return self.base.weight + self.up.weight @ self.down.weight


def spectral_weight(layer: Any) -> Tensor:
    return layer.weight_orig / (layer.weight_u @ layer.weight_orig @ layer.weight_v)  # type: ignore[no-any-return]


CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Tensor]]] = {  # of a layer; the weights it then has
    "hook": (
        lambda layer: layer.register_forward_hook(lambda *_: None) and layer,
        lambda layer: layer.weight,
    ),
    "spectral_norm": (nn.utils.spectral_norm, spectral_weight),
    "parametrizations.spectral_norm": (parametrizations.spectral_norm, lambda layer: layer.weight),
    "prune": (
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: layer.weight_orig * layer.weight_mask,
    ),
    "lora": (LoRA, lambda layer: layer.weight),
}


def change(model: nn.Module, of_layer: Callable[[Any], Any]) -> list[Any]:
    """Change all linear layers of a network, and return them."""
    changed = []
    for parent, name, layer in linear_layers(model):
        changed.append(of_layer(layer))
        setattr(parent, name, changed[-1])
    return changed


def test_every_registered_network_is_in_the_table() -> None:
    ours = {name for name in MODEL_REGISTRY if MODEL_REGISTRY.get(name).__module__.startswith("lightning_ding.")}
    assert {kind for kind, _, _ in NETWORKS.values()} == ours


@EVERY
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning", "ignore:For backward hooks:UserWarning")
def test_hooks_of_all_layers_fire_and_may_keep_what_they_see(name: str) -> None:
    model, call = make(name)
    outputs: dict[nn.Module, Any] = {}
    copies: dict[nn.Module, list[Tensor]] = {}
    gradients: set[nn.Module] = set()

    def see(layer: nn.Module, _: Any, output: Any) -> None:
        outputs[layer], copies[layer] = output, [leaf.clone() for leaf in tensors(output)]

    layers = [one for one in model.modules() if is_layer(one)]
    for layer in layers:
        layer.register_forward_hook(see)
        layer.register_full_backward_hook(lambda layer, *_: gradients.add(layer))
    plain, _ = make(name)
    expected, found = tensors(call(plain)), tensors(call(model))
    sum(leaf.sum() for leaf in found).backward()  # type: ignore[union-attr]
    assert len(layers) >= 3
    assert set(outputs) == set(layers)
    assert gradients >= {layer for layer in layers if isinstance(layer, (nn.Linear, nn.Conv2d)) and is_trained(layer)}
    for layer in layers:
        assert [leaf.tolist() for leaf in tensors(outputs[layer])] == [leaf.tolist() for leaf in copies[layer]]
    assert_close(found, expected, rtol=1e-6, atol=1e-6)  # a recurrent layer with hooks is called for each step


def is_trained(layer: nn.Module) -> bool:
    """Return whether a layer learns, as those of a network of random features do not."""
    return all(parameter.requires_grad for parameter in layer.parameters())


def is_layer(module: nn.Module) -> bool:
    """Return whether a module has no parts and is called; the units of a dropout are only drawn with random numbers."""
    containers = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.Sequential, UnitDropout)
    return not isinstance(module, containers) and not any(module.children())


@EVERY
@pytest.mark.parametrize("kind", CHANGES)
def test_changed_layers_compute_with_the_weights_that_they_have_now(name: str, kind: str) -> None:
    model, call = make(name)
    of_layer, weight_of = CHANGES[kind]
    layers = change(model, of_layer)
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)  # as an update does
        found = tensors(call(model))
        plain, _ = make(name)
        for parameter in plain.parameters():
            parameter.add_(0.1)
        for (_, _, layer), changed in zip(linear_layers(plain), layers, strict=True):
            layer.weight.copy_(weight_of(changed))
        assert len(layers) >= 1
        assert_close(found, tensors(call(plain)), rtol=1e-4, atol=1e-4)


@EVERY
@pytest.mark.parametrize("kind", [*CHANGES, "squashed"])
def test_changed_layers_learn_in_several_updates(name: str, kind: str) -> None:
    model, call = make(name)
    layers = change(model.train(), Squashed if kind == "squashed" else CHANGES[kind][0])
    for _ in range(3):
        model.zero_grad()
        sum(leaf.square().sum() for leaf in tensors(call(model))).backward()  # type: ignore[union-attr]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-4 * (0 if parameter.grad is None else parameter.grad)
    trained: Iterable[Tensor] = (one for layer in layers for one in layer.parameters() if one.ndim == 2)
    assert all(bool((parameter.grad != 0).any()) for parameter in trained)  # type: ignore[union-attr]


@EVERY
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_layers_compute_nearly_the_same(name: str) -> None:
    model, call = make(name)
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model))
    with torch.no_grad():
        expected, found = tensors(call(model)), tensors(call(quantised))
    assert not any(type(layer) in (nn.Linear, nn.LSTM, nn.GRU) for layer in quantised.modules())
    differences = [float((one - other).abs().max()) for one, other in zip(expected, found, strict=True)]
    assert 0 < max(differences) < 0.1
