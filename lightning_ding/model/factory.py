"""Create a network from a config section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from lightning_ding.registry import MODEL_REGISTRY, import_modules


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
    return cast(nn.Module, MODEL_REGISTRY.build(arguments.pop("type"), **arguments))
