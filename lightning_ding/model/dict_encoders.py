"""Encoders of dict observations: the entries joined to one vector, or an encoder for each entry.

Shapes: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import (
    VECTOR_SIZES,
    ObsShape,
    create_encoder,
    encoder_name,
    holds_image,
    is_described,
    is_image,
    kept_vector,
    options_of,
)
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import ENCODER_REGISTRY


class EntryEncoders(nn.ModuleDict):
    """An encoder for each entry of a dict observation, by name, in alphabetical order.

    Args:
        obs_shape: Shape of each entry by name.
        create: Makes the encoder of an entry from its shape.
    """

    def __init__(self, obs_shape: Mapping[str, Any], create: Callable[[ObsShape], Any]) -> None:
        encoders = {name: create(shape) for name, shape in sorted(obs_shape.items())}
        super().__init__(encoders)
        self.sizes: list[int] = [encoder.output_size for encoder in encoders.values()]

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return the joined features, shape (B, sum of ``sizes``); entries without an encoder are ignored."""
        parts = [encoder(obs[name]) for name, encoder in self.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


@ENCODER_REGISTRY.register("dict")
class DictEncoder(nn.Module):
    """The entries of a dict observation as one vector, followed by layers over all of them.

    A vector is joined as it is, and an image by the features of its encoder, as in Stable-Baselines3's
    ``CombinedExtractor``.

    Args:
        obs_shape: Shape of each entry by name; entries may be nested dicts.
        hidden_size_list: Widths of the layers over the joined entries; an empty list has no layers. None means
            (128, 128, 64) for vectors; with images, one layer as wide as the largest entry; for a single image, none.
        activation: Activation of all layers.
        fusion_size: Width of one more layer, >= 1, which replaces the default of ``hidden_size_list``; None for none.
        image_encoder: Name of the registered encoder of images; None means conv.
        layer_norm: Apply layer normalisation before each activation.
        kwargs: Further arguments of the images' encoders; each encoder gets those that it accepts.

    Raises:
        ValueError: If there is no entry, if ``fusion_size`` is out of its range, or if ``image_encoder`` is given and
            no entry is an image.
    """

    has_entries: ClassVar[bool] = True

    def __init__(
        self,
        obs_shape: Mapping[str, Any],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        fusion_size: int | None = None,
        image_encoder: str | None = None,
        layer_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        given = given_options(obs_shape, fusion_size, image_encoder, {"layer_norm": layer_norm or None, **kwargs})

        def create(shape: ObsShape) -> Any:
            name = encoder_name(shape, image_encoder)
            if name == "mlp":
                return kept_vector(shape)
            sizes = None if is_image(shape) else ()
            return create_encoder(shape, name, sizes, activation, **options_of_entry(shape, name, given))

        self.encoders = EntryEncoders(obs_shape, create)
        sizes = self.encoders.sizes
        widths = tuple(hidden_size_list or ()) + (() if fusion_size is None else (fusion_size,))
        if hidden_size_list is None and fusion_size is None:
            is_alone = len(sizes) == 1 and all(map(is_image, obs_shape.values()))
            widths = () if is_alone else (max(sizes),) if holds_image(obs_shape) else VECTOR_SIZES
        self.output_size = widths[-1] if widths else sum(sizes)
        self.layers = MLP((sum(sizes), *widths), activation, layer_norm=layer_norm) if widths else None

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return features, shape (B, F), of a dict of observations; entries without an encoder are ignored."""
        joined = self.encoders(obs)
        return cast(Tensor, joined if self.layers is None else self.layers(joined))


def given_options(
    obs_shape: Mapping[str, Any], fusion_size: int | None, image_encoder: str | None, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a dict's encoder that its entries may get: its ``image_encoder``, and others that are set.

    Raises:
        ValueError: If the dict is empty, or an option of its encoder is out of its range or useless.
    """
    require(len(obs_shape) > 0, "obs_shape", "a dict with at least one entry", obs_shape)
    require(fusion_size is None or fusion_size >= 1, "encoder_kwargs.fusion_size", ">= 1 or None", fusion_size)
    is_used = image_encoder is None or holds_image(obs_shape)
    require(is_used, "encoder_kwargs.image_encoder", "None for a dict without images", image_encoder)
    return {name: one for name, one in {"image_encoder": image_encoder, **others}.items() if one is not None}


def options_of_entry(shape: ObsShape, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options among those of a dict's encoder that the encoder of an entry accepts.

    Args:
        shape: Shape of the entry.
        name: Registered name of the entry's encoder.
        given: Options of the dict's encoder, without None.
    """
    known = options_of(shape, name, given) if given else {}
    unfit = set() if holds_image(shape) else {"image_encoder"}
    return {option: given[option] for option in (given.keys() & known.keys()) - unfit}


@ENCODER_REGISTRY.register("separate")
class SeparateEncoder(nn.Module):
    """An encoder for each entry of a dict observation, followed by a fusion layer over the concatenated features.

    Networks of versions without ``model.dict_encoder`` have this form. Without the fusion layer, a network with a
    linear head would be a sum of functions of single entries. A dict with a single entry has no fusion layer.

    Args:
        obs_shape: Shape of each entry by name; entries may be nested dicts.
        hidden_size_list: Widths of the encoders of vectors; those of images use their own default.
        activation: Activation of all layers.
        fusion_size: Width of the fusion layer, >= 1; None for the largest feature size of the entries.
        image_encoder: Name of the registered encoder of images; None means conv.
        layer_norm: Apply layer normalisation before each activation.
        kwargs: Further arguments of the entries' encoders; each encoder gets those that it accepts.

    Raises:
        ValueError: If there is no entry, if ``fusion_size`` is out of its range or given for a single entry, or if
            ``image_encoder`` is given and no entry is an image.
    """

    has_entries: ClassVar[bool] = True

    def __init__(
        self,
        obs_shape: Mapping[str, Any],
        hidden_size_list: Sequence[int] | None = None,
        activation: str = "relu",
        fusion_size: int | None = None,
        image_encoder: str | None = None,
        layer_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        own = {"fusion_size": fusion_size, "layer_norm": layer_norm or None}
        given = given_options(obs_shape, fusion_size, image_encoder, {**own, **kwargs})
        is_single = len(obs_shape) == 1
        path = "encoder_kwargs.fusion_size"
        require(fusion_size is None or not is_single, path, "None for a dict with one entry", fusion_size)

        def create(shape: ObsShape) -> Any:
            chosen = encoder_name(shape, image_encoder)
            name = "separate" if chosen == "dict" else chosen
            options = options_of_entry(shape, name, given)
            if isinstance(shape, Mapping) and len(shape) == 1:
                options.pop("fusion_size", None)
            return create_encoder(shape, name, None if is_image(shape) else hidden_size_list, activation, **options)

        self.encoders = EntryEncoders(obs_shape, create)
        sizes = self.encoders.sizes
        self.output_size = max(sizes) if fusion_size is None else fusion_size
        joined = (sum(sizes), self.output_size)
        self.fusion = None if is_single else MLP(joined, activation, layer_norm=layer_norm)

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        """Return features, shape (B, F), of a dict of observations; entries without an encoder are ignored."""
        joined = self.encoders(obs)
        return cast(Tensor, joined if self.fusion is None else self.fusion(joined))


def dict_encoder(section: Mapping[str, Any]) -> str | None:
    """Return the registered name of the encoder that a ``model`` section's ``dict_encoder`` chooses, None by default.

    Raises:
        ValueError: If it is "separate" and observations are no dict.
    """
    kind = section.get("dict_encoder", "joined")
    if kind == "joined":
        return None
    is_dict = isinstance(section["obs_shape"], Mapping) and not is_described(section["obs_shape"])
    require(is_dict, "model.dict_encoder", "'joined' for observations that are no dict", kind)
    return str(kind)
