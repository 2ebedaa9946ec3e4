"""Where discrete actions begin: networks, masks and buffers count them from 0, envs from where their space does.

Shapes: B batch, D dimensions of a multi-discrete action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class ActionStart:
    """Adds and subtracts the first number of the env's discrete actions; other actions stay as they are.

    Args:
        start: The env's first action, or that of each dimension, D of them; None means 0.

    Example:
        >>> ActionStart(5).to_env(torch.tensor([0, 2]))
        tensor([5, 7])
    """

    def __init__(self, start: int | Sequence[int] | None = None) -> None:
        numbers = start if isinstance(start, Sequence) else [start or 0]
        self._start: int | list[int] = list(numbers) if isinstance(start, Sequence) else numbers[0]
        self._is_zero = not any(numbers)

    def to_env(self, action: Any) -> Any:
        """Return actions as the env counts them, of actions counted from 0, shape (B,) or (B, D), or a hybrid dict."""
        return self._shifted(action, 1)

    def from_env(self, action: Any) -> Any:
        """Return actions counted from 0, of actions as the env counts them."""
        return self._shifted(action, -1)

    def _shifted(self, action: Any, sign: int) -> Any:
        if self._is_zero:
            return action
        if isinstance(action, Mapping):
            return {**action, "action_type": self._shifted(action["action_type"], sign)}
        if isinstance(action, Tensor):
            return action + sign * torch.tensor(self._start, device=action.device)
        return action + sign * np.asarray(self._start)
