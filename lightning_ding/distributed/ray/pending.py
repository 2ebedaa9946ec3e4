"""Actors for which Ray has not found a place yet."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lightning_ding.distributed.ray import import_ray

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds of waiting that are nothing to be told of


class Pending:
    """Says so if actors are not started, which Ray itself keeps to itself.

    Args:
        timeout: Seconds after which waiting is given up.
    """

    def __init__(self, timeout: float) -> None:
        self._ray = import_ray()
        self._timeout = timeout
        self._waiting: dict[Any, tuple[str, Mapping[str, float]]] = {}
        self._since = time.monotonic()
        self._is_told = False

    def add(self, name: str, actor: Any, needs: Mapping[str, float]) -> None:
        """Wait for one more.

        Args:
            name: Of the actor.
            actor: Which was just asked for.
            needs: What it was asked for with, such as ``{"CPU": 1}``.
        """
        self._waiting[actor.__ray_ready__.remote()] = (name, needs)
        self._since = time.monotonic()

    def look(self) -> None:
        """Warn once of actors that have waited for long.

        Raises:
            RuntimeError: If they have waited for too long.
        """
        if not self._waiting:
            return
        started, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in started:
            del self._waiting[ref]
        waited = time.monotonic() - self._since
        if self._waiting and waited >= self._timeout:
            raise RuntimeError(self._text(waited))
        if self._waiting and waited >= PATIENCE and not self._is_told:
            self._is_told = True
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
