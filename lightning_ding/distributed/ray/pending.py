"""Waiting for actors that Ray has not started yet."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed.ray import import_ray

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds before a warning


class Pending:
    """Reports actors that Ray cannot start; Ray itself reports nothing.

    Args:
        timeout: Seconds after which waiting for an actor fails.
    """

    def __init__(self, timeout: float) -> None:
        self._ray = import_ray()
        self._timeout = timeout
        self._waiting: dict[Any, tuple[str, Mapping[str, float]]] = {}
        self._since = time.monotonic()
        self._has_warned = False

    def add(self, name: str, actor: Any, needs: Mapping[str, float]) -> None:
        """Wait for another actor, which needs resources such as ``{"CPU": 1}``."""
        self._waiting[actor.__ray_ready__.remote()] = (name, needs)
        self._since = time.monotonic()

    def look(self) -> None:
        """Log a warning once if actors have not started for a while.

        Raises:
            RuntimeError: If an actor has not started in time.
        """
        if not self._waiting:
            return
        started, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in started:
            del self._waiting[ref]
        waited = time.monotonic() - self._since
        if self._waiting and waited >= self._timeout:
            raise RuntimeError(self._text(waited))
        if self._waiting and waited >= PATIENCE and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", self._text(waited))

    def _text(self, waited: float) -> str:
        needed: Counter[str] = Counter()
        for _, needs in self._waiting.values():
            needed.update(needs)
        whole, free = self._ray.cluster_resources(), self._ray.available_resources()
        parts = [
            f"{count:g} {kind} ({free.get(kind, 0):g} of {whole.get(kind, 0):g} free)"
            for kind, count in needed.items()
            if count
        ]
        names = ", ".join(name for name, _ in self._waiting.values())
        return f"Ray has not started {names} in {waited:.0f} s, for which it needs {' and '.join(parts)}"
