"""The order in memory in which a CPU convolves images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding.model import image_encoders
from lightning_ding.model.encoder import create_encoder

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
