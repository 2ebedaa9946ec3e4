"""Buffers by name."""

from __future__ import annotations

from typing import Any

from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker.buffer.base import IBuffer
from lightning_ding.worker.factory import get_class


def create_buffer(cfg: Any, **kwargs: Any) -> IBuffer:
    """Return the buffer that ``cfg.type`` names, made with ``cfg`` and ``kwargs``.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    return get_buffer_cls(cfg)(cfg, **kwargs)  # type: ignore[call-arg]


def get_buffer_cls(cfg: Any) -> type[IBuffer]:
    """Return the class of the buffer that ``cfg.type`` names.

    Raises:
        KeyError: If the type is missing or not registered.
    """
    found: type[IBuffer] = get_class(BUFFER_REGISTRY, cfg)
    return found
