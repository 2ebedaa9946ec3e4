"""The keys of DI-engine that describe a network give networks of its sizes.

The layers were counted by hand from its documentation: a head has ``layer_num`` hidden layers, and an actor or critic
of continuous actions one more; an image encoder has three convolutions and a linear layer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_ding.model import create_model, image_encoders
from lightning_ding.model.encoder import create_encoder

Sizes = list[tuple[int, ...]]


def sizes_of(module: Any) -> Sizes:
    """Return (inputs, outputs) of each linear layer, with the kernel's side of a convolution."""
    layers = [one for one in module.modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
    return [
        (one.in_features, one.out_features)
        if isinstance(one, nn.Linear)
        else (one.in_channels, one.out_channels, one.kernel_size[0])
        for one in layers
    ]


def make(kind: str, **arguments: Any) -> Any:
    return create_model({"type": kind, "obs_shape": 4, "action_shape": 2, **arguments})


@pytest.mark.parametrize("head", ["actor", "critic"])
def test_a_width_of_a_head_alone_gives_one_hidden_layer(head: str) -> None:
    model = make("vac", **{f"{head}_head_hidden_size": 32})
    assert sizes_of(getattr(model, head)) == [(64, 32), (32, 2 if head == "actor" else 1)]


@pytest.mark.parametrize(("kind", "outputs"), [("dqn", 2), ("c51dqn", 2 * 51), ("qrdqn", 2 * 32)])
def test_a_width_of_a_q_network_alone_gives_one_hidden_layer(kind: str, outputs: int) -> None:
    assert sizes_of(make(kind, head_hidden_size=32, dueling=False).head) == [(64, 32), (32, outputs)]


def test_the_number_of_a_heads_layers_counts_its_hidden_layers() -> None:
    model = make("vac", actor_head_layer_num=2, critic_head_layer_num=1, critic_head_hidden_size=16)
    assert sizes_of(model.actor) == [(64, 64), (64, 64), (64, 2)]
    assert sizes_of(model.critic) == [(64, 16), (16, 1)]


def test_a_head_without_hidden_layers_may_be_given_the_width_of_its_input() -> None:
    assert sizes_of(make("vac", actor_head_hidden_size=64, actor_head_layer_num=0).actor) == [(64, 2)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_actors_and_critics_of_continuous_actions_have_one_hidden_layer_more_than_their_number(number: int) -> None:
    layers = {"actor_head_layer_num": number, "critic_head_layer_num": number}
    model = make("continuous_qac", actor_head_hidden_size=8, critic_head_hidden_size=9, **layers)
    assert sizes_of(model.actor) == [(4, 8), *[(8, 8)] * number, (8, 2)]
    weights = [tuple(weight.shape[-2:]) for weight in model.critic.head.weights]
    assert weights == [(6, 9), *[(9, 9)] * number, (9, 1)]


CONVOLUTIONS = [(4, 16, 8), (16, 32, 4), (32, 48, 3)]  # 84 pixels become 20, 9 and 7


@pytest.mark.parametrize(
    ("widths", "options", "features"),
    [
        ([16, 32, 48], {}, 48),
        ([16, 32, 48], {"kernel_size": [8, 4, 3], "stride": [4, 2, 1]}, 48),
        ([16, 32, 48, 64], {}, 64),
        ([16, 32, 48, 64], {"kernel_size": [8, 4, 3]}, 64),
    ],
)
def test_the_last_of_three_widths_of_an_image_encoder_is_the_size_of_its_features_too(
    widths: list[int], options: Any, features: int
) -> None:
    model = make("dqn", obs_shape=(4, 84, 84), encoder_hidden_size_list=widths, encoder_kwargs=options)
    assert sizes_of(model.encoder) == [*CONVOLUTIONS, (48 * 7 * 7, features)]


def test_an_image_encoder_with_two_kernels_and_two_widths_has_two_convolutions() -> None:
    model = make("dqn", obs_shape=(3, 12, 12), encoder_hidden_size_list=[8, 9], encoder_kwargs={"kernel_size": [3, 3]})
    assert sizes_of(model.encoder) == [(3, 8, 3), (8, 9, 3), (9 * 8 * 8, 9)]


def test_more_widths_of_an_image_encoder_than_convolutions_and_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"encoder_hidden_size_list must be at most four numbers for images; set "):
        make("dqn", obs_shape=(4, 84, 84), encoder_hidden_size_list=[8, 8, 8, 8, 16])


ENCODERS = ("conv", "impala")


def inputs_of_first_convolution(encoder: Any, obs: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = encoder.convolutions[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    encoder(obs)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("name", ENCODERS)
def test_images_have_the_channels_last_on_a_cpu_where_a_gradient_is_needed(name: str) -> None:
    obs = torch.randint(0, 256, (2, 4, 36, 36), dtype=torch.uint8)
    image = inputs_of_first_convolution(create_encoder((4, 36, 36), name), obs)

    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(image, obs.float() / 255)


def test_images_of_dqns_network_keep_their_order_while_acting() -> None:
    obs = torch.randint(0, 256, (2, 4, 36, 36), dtype=torch.uint8)
    with torch.no_grad():
        assert inputs_of_first_convolution(create_encoder((4, 36, 36)), obs).is_contiguous()


def test_images_of_a_user_are_not_changed() -> None:
    bytes_, floats = torch.full((2, 4, 36, 36), 255, dtype=torch.uint8), torch.rand(2, 4, 36, 36)
    before = floats.clone()
    for obs in (bytes_, floats):
        create_encoder((4, 36, 36))(obs)

    assert bytes_.eq(255).all()
    assert torch.equal(floats, before)


@pytest.mark.parametrize("name", ENCODERS)
def test_the_order_in_memory_changes_features_and_gradients_only_by_rounding(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    encoder, obs = create_encoder((4, 36, 36), name), torch.randint(0, 256, (2, 4, 36, 36), dtype=torch.uint8)
    results = []
    for is_plain in (False, True):
        if is_plain:
            monkeypatch.setattr(image_encoders, "channels_last_on_cpu", lambda x: x)
        features = encoder(obs)
        gradients = torch.autograd.grad(features.square().sum(), list(encoder.parameters()))
        results.append([features.detach(), *gradients])

    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
