"""Encoders: an observation in, a vector of features out."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from lightning_ding.model import ConvEncoder, DictEncoder, ImpalaEncoder, MLPEncoder, SeparateEncoder, create_encoder
from lightning_ding.model.encoder import encoder_for
from lightning_ding.model.factory import create_model
from lightning_ding.model.image_encoders import AreaAverage, ResidualBlock
from lightning_ding.model.mlp import ACTIVATIONS
from lightning_ding.registry import ENCODER_REGISTRY

DICT_ENCODERS = pytest.mark.parametrize("encoder_class", [DictEncoder, SeparateEncoder])
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


def test_mlp_encoder_applies_an_activation_after_every_layer() -> None:
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
        ("silu", [-0.2689414, 0.7310586]),  # x / (1 + e^-x)
    ],
)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_encoders_use_the_activation_asked_for(activation: str, expected: list[float], kind: str) -> None:
    encoder: nn.Module = MLPEncoder(1, [1], activation)
    obs = torch.tensor([[-1.0], [1.0]])
    if kind == "conv":  # the last layer alone, after a convolution that gives activation(0) = 0 and a bias
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
    known = r"\['elu', 'gelu', 'mish', 'relu', 'silu', 'tanh'\]"
    with pytest.raises(ValueError, match=rf"activation must be one of {known}, got 'swish'"):
        encoder_class(shape, activation="swish")


@pytest.mark.parametrize(("encoder_class", "shape"), [(MLPEncoder, 4), (ConvEncoder, (3, 84, 84))])
def test_encoders_refuse_an_empty_list_of_widths(encoder_class: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match=r"encoder_hidden_size_list must be .*, got \[\]"):
        encoder_class(shape, hidden_size_list=[])


def test_mlp_encoder_takes_any_shape_and_type_and_changes_nothing() -> None:
    obs = torch.tensor([[-3.0, 2.0], [1.0, 0.0]])
    encoder = MLPEncoder(2)
    features = encoder(obs)
    assert obs.tolist() == [[-3.0, 2.0], [1.0, 0.0]]
    assert_close(encoder(obs.to(torch.int8)), features)
    assert_close(seeded(MLPEncoder, (2, 1))(obs[..., None]), seeded(MLPEncoder, 2)(obs))
    of_numbers = MLPEncoder(1)
    assert_close(of_numbers(torch.tensor([1.0, 2.0])), of_numbers(torch.tensor([[1.0], [2.0]])))


def test_conv_encoder_divides_bytes_by_255_and_leaves_floats_unscaled() -> None:
    # all 255 becomes all 1; a 2x2 kernel of ones gives 4, the linear layer 2 * 4 + 1 = 9
    encoder = ConvEncoder((1, 2, 2), [1, 1], kernel_size=[2], stride=[1])
    vector_to_parameters(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 1.0]), encoder.parameters())
    assert_close(encoder(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)), torch.tensor([[9.0]]))
    # on floats: 4 * 255 = 1020, 2 * 1020 + 1 = 2041
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


SMALL_IMAGES = [(12, 12, 1), (10, 10, 4), (7, 7, 3), (5, 5, 2), (1, 1, 1), (3, 30, 84), (84, 30, 3), (3, 84, 7)]


@pytest.mark.parametrize("name", ["conv", "impala"])
@pytest.mark.parametrize("shape", SMALL_IMAGES)
def test_image_encoders_take_small_images_without_options(name: str, shape: tuple[int, ...]) -> None:
    encoder = create_encoder(shape, name)
    features = encoder(images(2, *shape))
    assert features.shape == (2, encoder.output_size)
    assert (features[0] != features[1]).any()


def strides_and_kernels(encoder: nn.Module) -> list[Any]:
    return [(layer.kernel_size, layer.stride) for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]


def test_kernels_are_those_of_the_paper_from_64_pixels_along_each_axis() -> None:
    paper = [((8, 8), (4, 4)), ((4, 4), (2, 2)), ((3, 3), (1, 1))]
    assert strides_and_kernels(ConvEncoder((3, 64, 64))) == paper
    assert strides_and_kernels(ConvEncoder((64, 13, 3))) == [((8, 3), (4, 1)), ((4, 3), (2, 1)), ((3, 3), (1, 1))]
    assert strides_and_kernels(ConvEncoder((3, 13, 13))) == [((3, 3), (1, 1))] * 3
    assert strides_and_kernels(ConvEncoder((3, 3, 2), [128, 128])) == [((3, 3), (1, 1))]  # one layer sees all of it
    assert strides_and_kernels(ConvEncoder((5, 5, 1))) == [((3, 3), (1, 1)), ((2, 2), (1, 1)), ((1, 1), (1, 1))]


def costs(side: int, channels: int) -> tuple[int, int]:
    """Return the parameters of the default encoder of square images, and its operations for one image."""
    with torch.device("meta"):
        encoder = ConvEncoder((channels, side, side))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            encoder(torch.empty(1, channels, side, side))
    return sum(one.numel() for one in encoder.parameters()), counter.get_total_flops()


@pytest.mark.parametrize("channels", [1, 3, 12])
def test_neighbouring_sizes_of_images_differ_by_less_than_a_factor_of_2(channels: int) -> None:
    sides = range(channels + 1 if channels > 3 else 3, 257)  # the smaller one of the outer axes is that of the channels
    known = [costs(side, channels) for side in sides]
    for kind in (0, 1):
        ratios = {
            side: after[kind] / before[kind] for side, before, after in zip(sides[1:], known, known[1:], strict=False)
        }
        assert {side: ratio for side, ratio in ratios.items() if not 0.5 < ratio < 2} == {}
    assert max(parameters for parameters, _ in known) < 2.3e6


def test_areas_are_averaged_as_adaptive_pooling_does_where_sizes_divide_and_by_hand_elsewhere() -> None:
    x = torch.rand(2, 3, 16, 24)
    assert torch.allclose(AreaAverage((16, 24), (8, 8))(x), F.adaptive_avg_pool2d(x, 8), atol=1e-6)
    thirds = AreaAverage((1, 3), (1, 2))(torch.tensor([[[[1.0, 2.0, 6.0]]]]))  # (1 + 2 / 2) / 1.5, (2 / 2 + 6) / 1.5
    assert thirds.flatten().tolist() == pytest.approx([4 / 3, 14 / 3])
    whole = AreaAverage((13, 10), (8, 8))(torch.ones(1, 1, 13, 10))
    assert torch.allclose(whole, torch.ones(1, 1, 8, 8))


def test_an_output_of_more_than_8_pixels_is_averaged_unless_kernels_or_strides_are_given() -> None:
    # sides 104 -> 25 -> 11 -> 9
    encoder = ConvEncoder((4, 104, 84))
    assert list(encoder.parameters())[-2].shape == (512, 64 * 8 * 7)
    own = ConvEncoder((4, 104, 84), kernel_size=[8, 4, 3], stride=[4, 2, 1])
    assert list(own.parameters())[-2].shape == (512, 64 * 9 * 7)
    obs = images(2, 4, 104, 84)
    before = obs.float().div(255)
    for layer in encoder.convolutions:
        before = layer(before).relu()
    pooled = AreaAverage((9, 7), (8, 7))(before)
    assert torch.allclose(encoder(obs), encoder.linear(pooled.flatten(1)), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"encoder_hidden_size_list": [128]}, False), ({"obs_shape": 9}, False)]
)
def test_a_large_network_of_default_sizes_is_named(options: dict[str, Any], warns: bool) -> None:
    section = {"type": "dqn", "obs_shape": 40_000, "action_shape": 2, **options}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        create_model(section)
    texts = [str(one.message) for one in said if "million parameters by default" in str(one.message)]
    assert len(texts) == warns
    assert not warns or "observations of shape 40000 has 5.2 million parameters" in texts[0]


def test_conv_encoder_takes_as_many_convolutions_as_it_is_given_channels() -> None:
    two = ConvEncoder((4, 84, 84), channels=[16, 32], feature_size=256)  # as in Mnih et al. 2013: 8x8 by 4, 4x4 by 2
    assert strides_and_kernels(two) == [((8, 8), (4, 4)), ((4, 4), (2, 2))]
    four = ConvEncoder((84, 84, 3), channels=[4, 4, 4, 4], feature_size=9)
    assert (len(strides_and_kernels(four)), four.output_size) == (4, 9)


def test_features_of_images_that_are_not_activated_are_those_before_the_activation() -> None:
    images = torch.randn(4, 3, 12, 12)
    activated, linear = (seeded(ConvEncoder, obs_shape=(3, 12, 12), activate_features=one) for one in (True, False))
    assert linear(images).min() < 0
    assert torch.equal(activated(images), linear(images).relu())


@pytest.mark.parametrize("options", [{"kernel_size": [8, 4]}, {"stride": [4, 2]}, {"stride": [4, 2, 0]}])
def test_conv_encoder_refuses_kernels_and_strides_that_do_not_match_its_channels(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=rf"encoder_kwargs.{name} must be 3 numbers >= 1, one for each convolution"):
        ConvEncoder((3, 84, 84), **options)


@pytest.mark.parametrize("name", ["conv", "impala"])
@pytest.mark.parametrize("options", [{"channels": [8]}, {"feature_size": 8}])
def test_image_encoders_refuse_widths_that_are_given_twice(name: str, options: dict[str, Any]) -> None:
    (option,) = options
    with pytest.raises(ValueError, match=rf"encoder_kwargs.{option} must be None with encoder_hidden_size_list"):
        create_encoder((3, 84, 84), name, [8, 8, 8, 32], **options)


@pytest.mark.parametrize("name", ["conv", "impala"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_image_encoders_take_whole_numbers_as_they_are(name: str, dtype: torch.dtype) -> None:
    encoder, obs = seeded(create_encoder, (10, 10, 4), name), images(2, 10, 10, 4) > 100
    assert_close(encoder(obs.to(dtype)), encoder(obs.float()))


@pytest.mark.parametrize("name", ["conv", "impala"])
@pytest.mark.parametrize("shape", [4, {"pixels": (3, 36, 36)}])
def test_image_encoders_refuse_other_shapes(name: str, shape: Any) -> None:
    with pytest.raises(ValueError, match=r"encoder_kwargs.image_encoder\) must be \(C, H, W\), "):
        create_encoder(shape, name)


def test_impala_encoder_has_the_layers_of_the_paper() -> None:
    # three sections of a convolution and two residual blocks of two, sides 72 -> 36 -> 18 -> 9; 32 * 9 * 9 = 2592
    encoder = ImpalaEncoder((3, 72, 96))
    assert len(strides_and_kernels(encoder)) == 15
    assert list(encoder.parameters())[-2].shape == (256, 32 * 9 * 12)


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
def test_residual_block_adds_two_convolutions_to_its_input(activation: str) -> None:
    block, x = seeded(ResidualBlock, 2, activation), torch.randn(3, 2, 5, 5, requires_grad=True)
    first, second = block.convolutions
    act = getattr(torch, activation, torch.nn.functional.silu)
    assert_close(block(x), x + second(act(first(act(x)))))
    block(x).sum().backward()  # no activation has changed what its gradient needs


NORMALISED = [(6, None), ((10, 10, 4), None), ((10, 10, 4), "impala"), ({"a": 2, "b": (10, 10, 4)}, None)]


@pytest.mark.parametrize(("shape", "name"), NORMALISED)
def test_every_layer_that_is_normalised_has_a_gradient(shape: Any, name: str | None) -> None:
    encoder = seeded(create_encoder, shape, name, layer_norm=True, activation="relu")
    obs = {"a": torch.randn(5, 2), "b": images(5, 10, 10, 4)}
    encoder(obs if isinstance(shape, dict) else obs["b"] if shape != 6 else torch.randn(5, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert any(isinstance(layer, (nn.LayerNorm, nn.GroupNorm)) for layer in encoder.modules())


def test_normalised_layer_has_mean_0_and_variance_1_before_its_activation() -> None:
    encoder = seeded(MLPEncoder, 6, [64], "tanh", layer_norm=True)
    before = encoder(100 * torch.randn(5, 6)).atanh()
    assert_close(before.mean(1), torch.zeros(5), atol=1e-4, rtol=0)
    assert_close(before.var(1, unbiased=False), torch.ones(5), atol=1e-3, rtol=0)


def test_layer_norm_leaves_the_initial_weights_as_they_are() -> None:
    for shape in (6, (10, 10, 4), {"a": 2, "b": 3}):
        torch.manual_seed(0)
        without = [p for p in create_encoder(shape).parameters() if p.ndim > 1]
        torch.manual_seed(0)
        with_it = [p for p in create_encoder(shape, layer_norm=True).parameters() if p.ndim > 1]
        assert all(torch.equal(one, other) for one, other in zip(without, with_it, strict=True))


def test_separate_encoder_joins_the_features_of_its_entries_in_the_order_of_their_names() -> None:
    encoder: Any = SeparateEncoder({"b": 1, "a": 2}, [3])
    obs = {"b": torch.ones(1, 1), "a": torch.ones(1, 2)}
    parts = [encoder.encoders["a"](obs["a"]), encoder.encoders["b"](obs["b"])]
    assert_close(encoder(obs), encoder.fusion(torch.cat(parts, dim=1)))


def test_separate_encoder_with_one_entry_is_the_encoder_of_it() -> None:
    one, alone = seeded(SeparateEncoder, {"a": 2}), seeded(MLPEncoder, 2)
    obs = torch.randn(3, 2)
    assert_close(one({"a": obs}), alone(obs))
    with pytest.raises(ValueError, match=r"encoder_kwargs\.fusion_size must be None for a dict with one entry, got 4"):
        SeparateEncoder({"a": 2}, fusion_size=4)


def test_separate_encoder_has_the_feature_size_of_its_largest_entry_by_default() -> None:
    shape = {"a": 2, "in": {"b": 1, "pixels": (3, 36, 36)}}
    default, given = create_encoder(shape, "separate"), create_encoder(shape, "separate", fusion_size=7)
    assert (default.output_size, given.output_size) == (512, 7)


def test_dict_encoder_of_vectors_is_the_encoder_of_the_joined_vector() -> None:
    encoder, alone = seeded(DictEncoder, {"b": (2, 2), "in": {"c": 1}, "a": 2}), seeded(MLPEncoder, 7)
    a, b, c = torch.randn(3, 2), torch.randn(3, 2, 2), torch.randint(0, 9, (3, 1))
    expected = alone(torch.cat([a, b.flatten(1), c.float()], 1))
    assert_close(encoder({"b": b, "in": {"c": c}, "a": a}), expected)


def test_dict_encoder_without_layers_returns_vectors_as_they_are() -> None:
    encoder = DictEncoder({"b": 2, "a": {"kind": "one_hot", "sizes": [3]}}, ())
    assert (encoder.output_size, list(encoder.parameters())) == (5, [])
    obs = {"b": torch.tensor([[0.5, 7.0]]), "a": torch.tensor([1])}
    assert encoder(obs).tolist() == [[0.0, 1.0, 0.0, 0.5, 7.0]]


@pytest.mark.parametrize(
    ("shape", "options", "widths"),
    [
        ({"a": 2, "b": 3}, {}, [5, 128, 128, 64]),
        ({"a": 2}, {"fusion_size": 4}, [2, 4]),
        ({"a": 2, "b": 3}, {"hidden_size_list": [8]}, [5, 8]),
        ({"a": 2, "b": 3}, {"hidden_size_list": [8], "fusion_size": 7}, [5, 8, 7]),
        ({"a": 2, "b": (3, 36, 36)}, {}, [514, 512]),
        ({"a": 2, "in": {"b": 1, "pixels": (3, 36, 36)}}, {}, [515, 513]),  # an entry of 513 numbers
        ({"b": (3, 36, 36)}, {}, []),
        ({"b": (3, 36, 36)}, {"hidden_size_list": [8]}, [512, 8]),
    ],
)
def test_dict_encoder_has_layers_over_all_entries(shape: Any, options: dict[str, Any], widths: list[int]) -> None:
    encoder: Any = DictEncoder(shape, **options)
    layers = [] if encoder.layers is None else list(encoder.layers.layers)
    assert [layer.in_features for layer in layers] + [layer.out_features for layer in layers[-1:]] == widths
    assert encoder.output_size == (widths[-1] if widths else 512)


def test_dict_encoder_with_an_image_alone_is_the_encoder_of_it() -> None:
    one, alone = seeded(DictEncoder, {"a": (3, 36, 36)}), seeded(ConvEncoder, (3, 36, 36))
    obs = images(2, 3, 36, 36)
    assert_close(one({"a": obs}), alone(obs))


@pytest.mark.parametrize(("keeps_vectors", "sizes"), [(True, [5, 514, 8, 7]), (False, [64, 512, 8, 7])])
def test_network_with_hidden_layers_in_its_heads_gets_the_joined_entries(keeps_vectors: bool, sizes: list[int]) -> None:
    vectors, mixed = {"a": 2, "b": 3}, {"a": 2, "b": (3, 36, 36)}
    cases: list[Any] = [(vectors, None, {}), (mixed, None, {}), (vectors, [8], {}), (vectors, None, {"fusion_size": 7})]
    found = [
        encoder_for(shape, None, widths, "relu", encoder_kwargs=options, keeps_vectors=keeps_vectors).output_size
        for shape, widths, options in cases
    ]
    assert found == sizes


@pytest.mark.parametrize("name", ["dict", "separate"])
def test_options_of_a_dict_reach_the_encoders_that_have_them(name: str) -> None:
    shape = {"a": 2, "in": {"pixels": (12, 12, 3)}}
    options: dict[str, Any] = {"image_encoder": "impala", "channels": [4], "feature_size": 5, "fusion_size": 9}
    encoder = create_encoder(shape, name, layer_norm=True, **options)
    image = encoder.encoders["in"].encoders["pixels"]
    assert isinstance(image, ImpalaEncoder)
    assert (cast(Any, image.convolutions[0]).out_channels, image.output_size, encoder.output_size) == (4, 5, 9)
    normed = encoder.layers if name == "dict" else encoder.encoders["a"]
    assert len(normed.norms) == (1 if name == "dict" else 3)


@pytest.mark.parametrize(
    ("shape", "options", "error", "message"),
    [
        ((7, 7, 3), {"chanels": [4]}, ValueError, "'encoder_kwargs.chanels' of 'conv'; did you mean 'channels'?"),
        (4, {"channels": [4]}, ValueError, "'encoder_kwargs.channels' of 'mlp'; known: activation, layer_norm"),
        ({"a": 4, "b": 3}, {"fusion_sise": 3}, ValueError, "of 'dict'; did you mean 'fusion_size'?"),
        ({"a": 4, "b": 3}, {"channels": [3]}, ValueError, "'encoder_kwargs.channels' of 'dict'; known"),
        ({"a": 4, "b": (7, 7, 3)}, {"kernel": [3]}, ValueError, "of 'dict'; did you mean 'kernel_size'?"),
        ({"a": 4, "b": 3}, {"image_encoder": "impala"}, ValueError, "must be None for a dict without images"),
        ((7, 7, 3), {"channels": 4}, TypeError, "'encoder_kwargs.channels' must be .*, got int: 4"),
        ({"a": 4, "b": (7, 7, 3)}, {"stride": [1.5]}, TypeError, "'encoder_kwargs.stride' must be"),
        (4, {"activation": "swish"}, ValueError, "activation must be one of"),
    ],
)
def test_create_encoder_refuses_options_that_the_encoder_does_not_have(
    shape: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("?", r"\?")):
        create_encoder(shape, **options)


def test_activation_among_the_options_goes_before_that_of_the_network() -> None:
    encoder = encoder_for(4, None, [3], "relu", encoder_kwargs={"activation": "silu"})
    assert encoder.activate is ACTIVATIONS["silu"]


@DICT_ENCODERS
def test_encoder_of_a_dict_does_not_depend_on_the_order_of_the_shapes(encoder_class: Any) -> None:
    obs = {"a": torch.ones(1, 2), "b": torch.ones(1, 1)}
    assert_close(seeded(encoder_class, {"b": 1, "a": 2})(obs), seeded(encoder_class, {"a": 2, "b": 1})(obs))


@DICT_ENCODERS
def test_encoder_of_a_dict_leaves_out_entries_that_it_has_no_shape_of(encoder_class: Any) -> None:
    encoder, obs = encoder_class({"a": 2}), {"a": torch.ones(1, 2)}
    assert_close(encoder({**obs, "action_mask": torch.zeros(1, 9)}), encoder(obs))


@pytest.mark.parametrize(("encoder_class", "sizes"), [(DictEncoder, (4, 514, 3)), (SeparateEncoder, (3, 512, 512))])
def test_encoder_of_a_dict_encodes_nested_entries(encoder_class: Any, sizes: tuple[int, int, int]) -> None:
    encoder: Any = encoder_class({"in": {"pixels": (3, 36, 36), "speed": 2}, "place": 4}, [3])
    obs = {"in": {"pixels": images(2, 3, 36, 36), "speed": torch.ones(2, 2)}, "place": torch.ones(2, 4)}
    found = (encoder.encoders["place"].output_size, encoder.encoders["in"].output_size, encoder.output_size)
    assert (found, encoder(obs).shape) == (sizes, (2, sizes[2]))


@DICT_ENCODERS
def test_encoder_of_a_dict_reads_every_entry(encoder_class: Any) -> None:
    encoder = seeded(encoder_class, {"a": 2, "in": {"b": 2}}, [8])
    obs = {"a": torch.ones(1, 2), "in": {"b": torch.ones(1, 2)}}
    changed_a, changed_b = {**obs, "a": -torch.ones(1, 2)}, {**obs, "in": {"b": -torch.ones(1, 2)}}
    assert all((encoder(obs) != encoder(other)).any() for other in (changed_a, changed_b))


@DICT_ENCODERS
def test_encoder_of_a_dict_refuses_an_empty_dict(encoder_class: Any) -> None:
    with pytest.raises(ValueError, match="obs_shape must be a dict with at least one entry"):
        encoder_class({})


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


def test_options_of_a_users_encoder_are_those_of_its_constructor() -> None:
    encoder = encoder_for(2, "test_encoder_scaled", None, "relu", layer_norm=True, encoder_kwargs={"factor": 3.0})
    assert encoder(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]
    with pytest.raises(ValueError, match=r"'encoder_kwargs.facter' .* did you mean 'factor'"):
        create_encoder(2, "test_encoder_scaled", facter=3.0)


def test_users_encoder_that_passes_options_on_gets_all_of_them() -> None:
    ENCODER_REGISTRY.register("test_encoder_passing", force_overwrite=True)(
        lambda *args, **kwargs: ScaledEncoder(*args, **kwargs)
    )
    assert create_encoder(2, "test_encoder_passing", factor=5.0)(torch.ones(1, 2)).tolist() == [[5.0, 5.0]]


def test_mistakes_are_named() -> None:
    expected = r"encoder_kwargs.kernel_size must be <= 5 in convolution 2 of an axis of 12 pixels, or encoder_kwargs"
    with pytest.raises(ValueError, match=expected):
        ConvEncoder((12, 12, 1), channels=[8, 8], kernel_size=[3, 6], stride=[2, 1])
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
        {"obs_shape": 5, "hidden_size_list": [128, 128, 63], "activation": "tanh", "layer_norm": True},
    ),
    ConvEncoder: (
        {"obs_shape": (3, 12, 12), "channels": [2, 3], "feature_size": 5, "kernel_size": [4, 3], "stride": [2, 1]},
        {
            "obs_shape": (4, 12, 12),
            "activation": "tanh",
            "channels": [2, 4],
            "feature_size": 6,
            "kernel_size": [4, 2],
            "stride": [1, 1],
            "layer_norm": True,
            "activate_features": False,
        },
    ),
    ImpalaEncoder: (
        {"obs_shape": (3, 12, 12), "channels": [2], "feature_size": 5},
        {
            "obs_shape": (4, 12, 12),
            "activation": "tanh",
            "channels": [3],
            "feature_size": 6,
            "num_blocks": 1,
            "layer_norm": True,
        },
    ),
}
OPTIONS |= dict.fromkeys(
    (DictEncoder, SeparateEncoder),
    (
        {"obs_shape": {"a": 4, "b": (3, 7, 7)}},
        {
            "obs_shape": {"a": 5, "b": (3, 7, 7)},
            "hidden_size_list": [128, 128, 63],
            "activation": "tanh",
            "fusion_size": 8,
            "image_encoder": "impala",
            "layer_norm": True,
        },
    ),
)


def fingerprint(encoder_class: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return the shapes of the parameters and the features of one observation."""
    shape = arguments["obs_shape"]
    size = shape["a"] if isinstance(shape, dict) else shape
    obs = torch.linspace(-1, 1, 1000).reshape(1, -1)[:, : torch.Size([size] if isinstance(size, int) else size).numel()]
    obs = obs.reshape(1, *([size] if isinstance(size, int) else size))
    encoder = seeded(encoder_class, **arguments)
    features = encoder({"a": obs, "b": torch.ones(1, 3, 7, 7)} if isinstance(shape, dict) else obs)
    return [*(tuple(p.shape) for p in encoder.parameters()), *features.flatten().tolist()]


@pytest.mark.parametrize(("encoder_class", "options"), [(c, set(changes)) for c, (_, changes) in OPTIONS.items()])
def test_the_options_below_are_all_that_an_encoder_has(encoder_class: Any, options: set[str]) -> None:
    has_sizes = encoder_class in (ConvEncoder, ImpalaEncoder)  # hidden_size_list says the same, and is tested above
    assert options == set(inspect.signature(encoder_class).parameters) - {"kwargs", "hidden_size_list"} | (
        set() if has_sizes else {"hidden_size_list"}
    )


@pytest.mark.parametrize(("encoder_class", "option"), [(c, o) for c, (_, changes) in OPTIONS.items() for o in changes])
def test_every_option_of_an_encoder_changes_its_features_or_its_size(encoder_class: Any, option: str) -> None:
    base, changes = OPTIONS[encoder_class]
    before, again = fingerprint(encoder_class, base), fingerprint(encoder_class, base)
    after = fingerprint(encoder_class, {**base, option: changes[option]})
    assert (before == again, before == after) == (True, False)
