"""Create a network from a config section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_ding.registry import MODEL_REGISTRY, import_modules

LARGE = 5_000_000
"""Parameters from which a network of default sizes is named in a warning."""
SIZES = ("encoder", "encoder_hidden_size_list", "encoder_kwargs")
"""Arguments with which a user chooses the size of a network."""


def create_model(cfg: Mapping[str, Any]) -> nn.Module:
    """Return the network that ``cfg`` describes.

    Args:
        cfg: ``type``, the registered name of a network; optionally ``import_names``, modules to import first. All other
            keys are arguments of the constructor.

    Raises:
        KeyError: If the type is not registered.
    """
    arguments = dict(cfg)
    import_modules(arguments.pop("import_names", ()))
    model = cast(nn.Module, MODEL_REGISTRY.build(arguments.pop("type"), **arguments))
    number = sum(map(Tensor.numel, model.parameters()))
    if number > LARGE and not any(map(arguments.get, SIZES)):
        rank_zero_warn(
            f"the network for observations of shape {arguments.get('obs_shape')} has {number / 1e6:.1f} million "
            "parameters by default; model.encoder_hidden_size_list and model.encoder_kwargs make it smaller, and so do "
            "smaller observations"
        )
    return model
