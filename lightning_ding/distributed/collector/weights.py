"""Weights of one policy, renewed whole between two calls of ``collect``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

FIRST_WEIGHTS = 600.0  # seconds; the learner may have to be started
LONG = 10.0  # seconds after which the log says what is waited for
PAUSE = 0.1  # seconds between two looks for the first ones

logger = logging.getLogger(__name__)

FetchWeights = Callable[[str, int], Mapping[str, Any] | None]


class Weights:
    """What a policy acts with, and which version it is.

    Args:
        path: Policy id.
        fetch: Called with a policy id and the number of a publication, returns ``model``, ``iter`` and ``serial``
            of the newest weights, or None if they are no newer.
        mode: Of the policy that gets them.
        update_second: Seconds between two looks, at least.
        is_renewed: Whether newer ones than the first are wanted.
    """

    def __init__(
        self, path: str, fetch: FetchWeights, mode: Any, update_second: float = 0.0, is_renewed: bool = True
    ) -> None:
        self.path = path
        self.version = 0
        """Updates that made the weights."""
        self._fetch = fetch
        self._mode = mode
        self._update_second = update_second
        self._is_renewed = is_renewed
        self._serial = -1
        self._looked_at = time.monotonic()

    def wait_for_first(self, tick: Callable[[], None], timeout: float = FIRST_WEIGHTS) -> None:
        """Wait until there are weights, and take them.

        Raises:
            TimeoutError: If there are none after ``timeout`` seconds.
        """
        began, has_warned = time.monotonic(), False
        while not self.look():
            tick()
            waited = time.monotonic() - began
            if waited > timeout:
                raise TimeoutError(f"there are no weights of {self.path!r} after {timeout:g} s")
            if waited > LONG and not has_warned:
                has_warned = True
                logger.warning("nobody has published weights of %r for %g s: is there a learner?", self.path, LONG)
            time.sleep(PAUSE)

    def renew(self, serials: Mapping[str, int]) -> None:
        """Take newer weights, if there are any and the last look is long enough ago.

        Args:
            serials: Newest publication of each policy, from the coordinator's answer.
        """
        is_time = time.monotonic() - self._looked_at >= self._update_second
        if self._is_renewed and is_time and serials.get(self.path, -1) > self._serial:
            self.look()

    def look(self) -> bool:
        """Take newer weights, if there are any, and return whether there were."""
        self._looked_at = time.monotonic()
        found = self._fetch(self.path, self._serial)
        if found is None:
            return False
        self._mode.load_state_dict({part: found[part] for part in ("model", "normaliser") if part in found})
        self.version = int(found["iter"])
        self._serial = int(found["serial"])
        return True
