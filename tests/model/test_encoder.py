"""Encoders: an observation in, a vector of features out."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.testing import assert_close

from lightning_ding.model import ConvEncoder, DictEncoder, MLPEncoder, create_encoder
from lightning_ding.registry import ENCODER_REGISTRY

SMALL: dict[str, Any] = {"hidden_size_list": [2, 3, 5], "kernel_size": [4, 3], "stride": [2, 1]}


@ENCODER_REGISTRY.register("test_encoder_scaled", force_overwrite=True)
class ScaledEncoder(nn.Module):
    """An encoder of our own: the observation times a number."""

    def __init__(
        self, obs_shape: int, hidden_size_list: Sequence[int] | None, activation: str, factor: float = 2.0
    ) -> None:
        super().__init__()
        self.output_size = obs_shape
        self.factor = factor

    def forward(self, obs: Tensor) -> Tensor:
        return obs * self.factor


def seeded(encoder_class: Any, *args: Any, **kwargs: Any) -> Any:
    """Return an encoder whose weights depend on its arguments only."""
    torch.manual_seed(0)
    return encoder_class(*args, **kwargs)


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_mlp_encoder_puts_an_activation_behind_every_layer() -> None:
    # (3, 1): relu(3 - 1) = 2, relu(3 + 1 + 0.5) = 4.5, relu(2 - 4.5 + 3) = 0.5
    # (1, 3): relu(1 - 3) = 0, relu(1 + 3 + 0.5) = 4.5, relu(0 - 4.5 + 3) = 0
    encoder = MLPEncoder(2, [2, 1])
    vector_to_parameters(torch.tensor([1.0, -1.0, 1.0, 1.0, 0.0, 0.5, 1.0, -1.0, 3.0]), encoder.parameters())
    assert encoder(torch.tensor([[3.0, 1.0], [1.0, 3.0]])).tolist() == [[0.5], [0.0]]


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        # relu, tanh, e^x - 1 below 0, and x Phi(x) with Phi(1) = 0.8413447, each of -1 and 1
        ("relu", [0.0, 1.0]),
        ("tanh", [-0.7615942, 0.7615942]),
        ("elu", [-0.6321206, 1.0]),
        ("gelu", [-0.1586553, 0.8413447]),
    ],
)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_encoders_use_the_activation_asked_for(activation: str, expected: list[float], kind: str) -> None:
    encoder: nn.Module = MLPEncoder(1, [1], activation)
    obs = torch.tensor([[-1.0], [1.0]])
    if kind == "conv":  # the last layer alone, behind a convolution that gives activation(0) = 0 and a bias
        encoder = ConvEncoder((1, 1, 1), [1, 1], activation, kernel_size=[1], stride=[1])
        vector_to_parameters(torch.tensor([0.0, 0.0, 0.0, -1.0]), encoder.parameters())
        below = encoder(torch.zeros(1, 1, 1, 1))
        vector_to_parameters(torch.tensor([0.0, 0.0, 0.0, 1.0]), encoder.parameters())
        got = torch.cat([below, encoder(torch.zeros(1, 1, 1, 1))])
    else:
        vector_to_parameters(torch.tensor([1.0, 0.0]), encoder.parameters())
        got = encoder(obs)
    assert_close(got, torch.tensor(expected).unsqueeze(1))


@pytest.mark.parametrize(("encoder_class", "shape"), [(MLPEncoder, 4), (ConvEncoder, (3, 84, 84))])
def test_encoders_refuse_an_unknown_activation(encoder_class: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match=r"activation must be one of \['elu', 'gelu', 'relu', 'tanh'\], got 'swish'"):
        encoder_class(shape, activation="swish")


@pytest.mark.parametrize(("encoder_class", "shape"), [(MLPEncoder, 4), (ConvEncoder, (3, 84, 84))])
def test_encoders_refuse_an_empty_list_of_widths(encoder_class: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match=r"encoder_hidden_size_list must be .*, got \[\]"):
        encoder_class(shape, hidden_size_list=[])


def test_mlp_encoder_leaves_the_observation_as_it_is() -> None:
    obs = torch.tensor([[-3.0, 2.0]])
    MLPEncoder(2)(obs)
    assert obs.tolist() == [[-3.0, 2.0]]


def test_mlp_encoder_flattens_a_shape() -> None:
    obs = torch.randn(3, 2, 2)
    assert_close(seeded(MLPEncoder, (2, 2))(obs), seeded(MLPEncoder, 4)(obs.reshape(3, 4)))


def test_mlp_encoder_takes_whole_numbers() -> None:
    encoder = MLPEncoder(2)
    assert_close(encoder(torch.tensor([[1, 0]], dtype=torch.int8)), encoder(torch.tensor([[1.0, 0.0]])))


def test_mlp_encoder_takes_observations_without_an_axis() -> None:
    encoder = MLPEncoder(1)
    assert_close(encoder(torch.tensor([1.0, 2.0])), encoder(torch.tensor([[1.0], [2.0]])))


def test_conv_encoder_divides_bytes_by_255() -> None:
    # all 255 becomes all 1; a 2x2 kernel of ones gives 4, the linear layer 2 * 4 + 1 = 9
    encoder = ConvEncoder((1, 2, 2), [1, 1], kernel_size=[2], stride=[1])
    vector_to_parameters(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 1.0]), encoder.parameters())
    assert_close(encoder(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)), torch.tensor([[9.0]]))


def test_conv_encoder_leaves_floats_unscaled() -> None:
    # the same network on floats: 4 * 255 = 1020, 2 * 1020 + 1 = 2041
    encoder = ConvEncoder((1, 2, 2), [1, 1], kernel_size=[2], stride=[1])
    vector_to_parameters(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 1.0]), encoder.parameters())
    assert_close(encoder(torch.full((1, 1, 2, 2), 255.0)), torch.tensor([[2041.0]]))


def test_conv_encoder_gives_the_same_features_for_both_places_of_the_channels() -> None:
    obs = images(2, 3, 10, 12)
    first, last = seeded(ConvEncoder, (3, 10, 12), **SMALL), seeded(ConvEncoder, (10, 12, 3), **SMALL)
    assert_close(last(obs.permute(0, 2, 3, 1)), first(obs))


def test_conv_encoder_with_equal_sides_takes_the_first_axis_as_channels() -> None:
    # 4 channels in, 2 out, 4x4 kernel
    encoder = ConvEncoder((4, 4, 4), [2, 5], kernel_size=[4], stride=[1])
    assert next(encoder.parameters()).shape == (2, 4, 4, 4)


def test_conv_encoder_works_on_images_of_atari_by_default() -> None:
    # sides 84 -> 20 -> 9 -> 7; 64 * 7 * 7 = 3136 inputs of 512 features, as in the paper
    encoder = ConvEncoder((4, 84, 84))
    assert list(encoder.parameters())[-2].shape == (512, 3136)
    assert encoder(images(1, 4, 84, 84)).shape == (1, 512)


@pytest.mark.parametrize("shape", [(3, 30, 84), (84, 30, 3), (3, 84, 7)])
def test_conv_encoder_refuses_an_image_that_is_too_small(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"the image must be large enough for a \dx\d kernel"):
        ConvEncoder(shape)


def test_conv_encoder_refuses_widths_that_do_not_match_its_kernels() -> None:
    with pytest.raises(
        ValueError, match=r"encoder_hidden_size_list must be 3 channel counts and a feature count for images, got"
    ):
        ConvEncoder((3, 84, 84), [32, 64, 512])


def test_conv_encoder_refuses_strides_that_do_not_match_its_kernels() -> None:
    with pytest.raises(ValueError, match=r"stride must be as long as kernel_size \(3\), got \[4, 2\]"):
        ConvEncoder((3, 84, 84), stride=[4, 2])


def test_dict_encoder_joins_the_features_of_its_entries_in_the_order_of_their_names() -> None:
    encoder = DictEncoder({"b": 1, "a": 2}, [3])
    obs = {"b": torch.ones(1, 1), "a": torch.ones(1, 2)}
    parts = [encoder.encoders["a"](obs["a"]), encoder.encoders["b"](obs["b"])]
    assert_close(encoder(obs), torch.cat(parts, dim=1))


def test_dict_encoder_does_not_depend_on_the_order_of_the_shapes() -> None:
    obs = {"a": torch.ones(1, 2), "b": torch.ones(1, 1)}
    assert_close(seeded(DictEncoder, {"b": 1, "a": 2})(obs), seeded(DictEncoder, {"a": 2, "b": 1})(obs))


def test_dict_encoder_leaves_out_entries_that_it_has_no_shape_of() -> None:
    encoder, obs = DictEncoder({"a": 2}), {"a": torch.ones(1, 2)}
    assert_close(encoder({**obs, "action_mask": torch.zeros(1, 9)}), encoder(obs))


def test_dict_encoder_encodes_nested_entries_vectors_and_images() -> None:
    # features: vector 3, image 512 (its own default), nested vector 3
    encoder = DictEncoder({"in": {"pixels": (3, 36, 36), "speed": 2}, "place": 4}, [3])
    obs = {"in": {"pixels": images(2, 3, 36, 36), "speed": torch.ones(2, 2)}, "place": torch.ones(2, 4)}
    assert (encoder.output_size, encoder(obs).shape) == (518, (2, 518))


def test_dict_encoder_reads_every_entry() -> None:
    encoder = seeded(DictEncoder, {"a": 2, "in": {"b": 2}}, [8])
    obs = {"a": torch.ones(1, 2), "in": {"b": torch.ones(1, 2)}}
    changed_a, changed_b = {**obs, "a": -torch.ones(1, 2)}, {**obs, "in": {"b": -torch.ones(1, 2)}}
    differs = [(encoder(obs) != encoder(other)).reshape(2, 8).any(1).tolist() for other in (changed_a, changed_b)]
    assert differs == [[True, False], [False, True]]


def test_dict_encoder_refuses_an_empty_dict() -> None:
    with pytest.raises(ValueError, match="obs_shape must be a dict with at least one entry"):
        DictEncoder({})


@pytest.mark.parametrize(
    ("shape", "encoder_class"),
    [
        (4, MLPEncoder),
        ([4], MLPEncoder),
        ((2, 3), MLPEncoder),
        ((3, 84, 84), ConvEncoder),
        ([84, 84, 3], ConvEncoder),
        ({"a": 1}, DictEncoder),
    ],
)
def test_create_encoder_chooses_by_the_shape(shape: Any, encoder_class: type[nn.Module]) -> None:
    assert type(create_encoder(shape)) is encoder_class


def test_create_encoder_builds_the_encoder_named() -> None:
    assert create_encoder(2, "test_encoder_scaled")(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]


def test_create_encoder_hands_over_further_arguments() -> None:
    assert create_encoder(2, "test_encoder_scaled", factor=5.0)(torch.ones(1, 2)).tolist() == [[5.0, 5.0]]


def test_create_encoder_lists_the_encoders_when_the_name_is_unknown() -> None:
    with pytest.raises(KeyError, match=r"no encoder is registered as 'cnov'; did you mean 'conv'\?"):
        create_encoder(2, "cnov")


@pytest.mark.parametrize("shape", [3, (2, 2), (3, 36, 36), {"a": 2, "b": (3, 36, 36)}])
def test_the_output_size_of_an_encoder_is_that_of_its_features(shape: Any) -> None:
    def obs_of(below: Any) -> Any:
        if isinstance(below, dict):
            return {name: obs_of(value) for name, value in below.items()}
        return torch.zeros(2, *([below] if isinstance(below, int) else below))

    encoder = create_encoder(shape)
    assert encoder(obs_of(shape)).shape == (2, encoder.output_size)


OPTIONS: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {
    MLPEncoder: (
        {"obs_shape": 4},
        {"obs_shape": 5, "hidden_size_list": [128, 128, 63], "activation": "tanh"},
    ),
    ConvEncoder: (
        {"obs_shape": (3, 12, 12), **SMALL},
        {
            "obs_shape": (4, 12, 12),
            "hidden_size_list": [2, 3, 6],
            "activation": "tanh",
            "kernel_size": [4, 2],
            "stride": [1, 1],
        },
    ),
    DictEncoder: (
        {"obs_shape": {"a": 4}},
        {"obs_shape": {"a": 5}, "hidden_size_list": [128, 128, 63], "activation": "tanh"},
    ),
}


def fingerprint(encoder_class: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return the shapes of the parameters and the features of one observation."""
    shape = arguments["obs_shape"]
    size = shape["a"] if isinstance(shape, dict) else shape
    obs = torch.linspace(-1, 1, 1000).reshape(1, -1)[:, : torch.Size([size] if isinstance(size, int) else size).numel()]
    obs = obs.reshape(1, *([size] if isinstance(size, int) else size))
    encoder = seeded(encoder_class, **arguments)
    features = encoder({"a": obs} if isinstance(shape, dict) else obs)
    return [*(tuple(p.shape) for p in encoder.parameters()), *features.flatten().tolist()]


@pytest.mark.parametrize(("encoder_class", "options"), [(c, set(changes)) for c, (_, changes) in OPTIONS.items()])
def test_the_options_below_are_all_that_an_encoder_has(encoder_class: Any, options: set[str]) -> None:
    assert options == set(inspect.signature(encoder_class).parameters)


@pytest.mark.parametrize(("encoder_class", "option"), [(c, o) for c, (_, changes) in OPTIONS.items() for o in changes])
def test_every_option_of_an_encoder_changes_its_features_or_its_size(encoder_class: Any, option: str) -> None:
    base, changes = OPTIONS[encoder_class]
    before, again = fingerprint(encoder_class, base), fingerprint(encoder_class, base)
    after = fingerprint(encoder_class, {**base, option: changes[option]})
    assert (before == again, before == after) == (True, False)
