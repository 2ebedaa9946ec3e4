"""What the Q-networks share: reading the sizes in their arguments.

Shapes: F features.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.config import require


def check_action_shape(action_shape: Any) -> None:
    """Refuse several dimensions of an action.

    Raises:
        TypeError: If ``action_shape`` is not a number.
    """
    if not isinstance(action_shape, int):
        raise TypeError(f"action_shape must be a number of discrete actions, got {action_shape!r}")


def head_size(features: int, hidden_size: int | None, layer_num: int | None, dueling: bool) -> tuple[int, int]:
    """Return width and number of a head's hidden layers.

    Args:
        features: F.
        hidden_size: Width; None means F.
        layer_num: Number; None means 1 with ``dueling``, else 0.
        dueling: Whether the head has two streams.

    Raises:
        ValueError: If a size is out of its range, or ``hidden_size`` is given to a head without hidden layers.
    """
    layers = int(dueling) if layer_num is None else layer_num
    require(layers >= 0, "head_layer_num", ">= 0", layers)
    no_width = "None when the head has no hidden layers"
    require(hidden_size is None or layers > 0, "head_hidden_size", no_width, hidden_size)
    width = features if hidden_size is None else hidden_size
    require(width >= 1, "head_hidden_size", ">= 1", width)
    return width, layers
