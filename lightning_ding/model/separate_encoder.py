"""The encoder of dict observations with ``model.dict_encoder: separate``, the only form that earlier versions had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from lightning_ding.config import require
from lightning_ding.model.encoder import (
    EntryEncoders,
    ObsShape,
    check_entries,
    create_encoder,
    encoder_name,
    given_options,
    is_image,
    options_of_entry,
)
from lightning_ding.model.features import is_described
from lightning_ding.model.mlp import MLP
from lightning_ding.registry import ENCODER_REGISTRY


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
        check_entries(obs_shape, fusion_size, image_encoder)
        is_single = len(obs_shape) == 1
        path = "encoder_kwargs.fusion_size"
        require(fusion_size is None or not is_single, path, "None for a dict with one entry", fusion_size)
        own = {"fusion_size": fusion_size, "image_encoder": image_encoder, "layer_norm": layer_norm or None}
        given = given_options(kwargs, **own)

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
