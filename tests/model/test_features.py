"""Conversion of raw observations: one-hot vectors, bytes in [0, 1], channels of stacked images."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_ding.model import create_encoder
from lightning_ding.model.encoder import encoder_for, is_described
from lightning_ding.model.features import Described, OneHot, Scaled, create_features
from lightning_ding.model.image_encoders import ImageInput

vector_kept = functools.partial(encoder_for, keeps_vectors=True)


def test_one_hot_puts_the_values_of_each_integer_side_by_side() -> None:
    features = OneHot([3, 2], start=[0, 5])
    assert features(torch.tensor([[0, 6], [2, 5]])).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert features.output_shape == 5


def test_one_integer_needs_no_axis() -> None:
    features = OneHot(3)
    assert features(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert features(torch.tensor([[2], [0]])).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_value_out_of_range_is_no_error_but_zeros() -> None:
    assert OneHot(2, start=1)(torch.tensor([0, 3])).tolist() == [[0, 0], [0, 0]]  # what an env fills gaps with


def test_a_table_of_integers_is_read_row_by_row() -> None:
    assert OneHot([2] * 4)(torch.tensor([[[0, 1], [1, 0]]])).tolist() == [[1, 0, 0, 1, 0, 1, 1, 0]]


def test_one_hot_has_nothing_to_save() -> None:
    assert OneHot(3).state_dict() == {}


def test_bytes_are_divided_by_their_largest_value() -> None:
    bytes_ = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert Scaled(3)(bytes_).tolist() == [[0, pytest.approx(0.2), 1]]
    assert Scaled(3, high=510)(bytes_).tolist() == [[0, pytest.approx(0.1), 0.5]]


def test_two_axes_of_bytes_are_an_image_with_one_channel() -> None:
    features = Scaled([84, 80])
    assert features.output_shape == (1, 84, 80)
    assert features(torch.zeros(2, 84, 80, dtype=torch.uint8)).shape == (2, 1, 84, 80)


def pattern(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).float()


def test_a_stack_of_images_has_the_channels_of_all() -> None:
    first = pattern(2, 4, 3, 8, 9)  # B, S, C, H, W
    images = ImageInput((4, 3, 8, 9))
    assert images.shape == (12, 8, 9)
    assert images(first).equal(first.reshape(2, 12, 8, 9))
    last = ImageInput((4, 8, 9, 3))
    assert last.shape == (12, 8, 9)
    assert last(first.movedim(2, -1)).equal(first.reshape(2, 12, 8, 9))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64])
def test_images_of_other_numbers_than_bytes_are_not_scaled(dtype: torch.dtype) -> None:
    assert ImageInput((8, 8, 2))(torch.ones(1, 8, 8, 2, dtype=dtype)).equal(torch.ones(1, 2, 8, 8))


@pytest.mark.parametrize("make", [create_encoder, encoder_for, vector_kept])
@pytest.mark.parametrize(
    ("shape", "obs"),
    [
        ({"kind": "one_hot", "sizes": [5], "start": [2]}, torch.tensor([2, 6])),
        ({"kind": "one_hot", "sizes": [5, 2]}, torch.tensor([[0, 0], [0, 1]])),
        ({"kind": "bytes", "shape": [128]}, torch.tensor([[0], [255]], dtype=torch.uint8).repeat(1, 128)),
        ({"kind": "bytes", "shape": [40, 40]}, torch.tensor([0, 255], dtype=torch.uint8).repeat(1600, 1).T),
        ({"at": {"kind": "one_hot", "sizes": [3]}, "v": 1}, {"at": torch.tensor([0, 2]), "v": torch.zeros(2, 1)}),
    ],
)
def test_an_encoder_of_a_described_observation_tells_values_apart(make: Any, shape: Any, obs: Any) -> None:
    torch.manual_seed(0)
    encoder = make(shape, None, None, "tanh")
    features = encoder(obs)
    assert features.shape == (2, encoder.output_size)
    assert features.dtype == torch.float32
    assert (features[0] - features[1]).abs().max() > 1e-3


def test_a_vector_without_an_encoder_is_its_own_features() -> None:
    encoder = vector_kept({"kind": "one_hot", "sizes": [3]}, None, None, "relu")
    assert encoder(torch.tensor([1])).tolist() == [[0, 1, 0]]
    assert list(encoder.parameters()) == []


def test_description_is_distinguished_from_a_dict_of_observations() -> None:
    assert is_described({"kind": "bytes", "shape": 4})
    assert not is_described({"kind": 4, "shape": 4})
    assert not is_described(4)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "onehot"}, r"the kind of an observation must be one of \['bytes', 'one_hot'\], got 'onehot'"),
        ({"kind": "bytes", "size": 3}, "the keys of 'bytes' must be among"),
        ({"kind": "one_hot", "sizes": [3, 0]}, "sizes must be >= 1 for each integer"),
        ({"kind": "one_hot", "sizes": [3, 2], "start": [1]}, "start must be one number for each of the 2 sizes"),
        ({"kind": "bytes", "shape": 3, "high": 0}, "high must be > 0, got 0"),
    ],
)
def test_empty_description_is_refused(description: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_features(description)


def test_described_takes_an_encoder_of_ones_own() -> None:
    encoder = nn.Linear(3, 2)
    encoder.output_size = 2  # type: ignore[assignment]
    assert Described(OneHot(3), encoder)(torch.tensor([1])).shape == (1, 2)
