"""Something that is done again and again by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LARGEST_SHARE = 0.05  # of the time that may go into it


class Periodic:
    """Calls a function every so many seconds, and more rarely if it takes long.

    An ``OSError``, as of a full disk, is logged and the function called again at its time; of any other error somebody
    is told, once, and then it is over.

    Args:
        name: Of the thread.
        seconds: Between two calls, > 0.
        function: To be called.
        on_error: Is told what went wrong.
    """

    def __init__(
        self, name: str, seconds: float, function: Callable[[], None], on_error: Callable[[str], None]
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._function = function
        self._on_error = on_error
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with the first call after ``seconds``."""
        self._thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        """End, behind a call that goes on; any number of times."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = self._seconds
        while not self._stopping.wait(pause):
            began = time.monotonic()
            try:
                self._function()
            except OSError as error:
                logger.error("%s: %s; it will be tried again", self._name, error)
            except Exception as error:
                logger.exception("%s failed", self._name)
                self._on_error(f"{self._name} failed: {error!r}")
                return
            pause = max(self._seconds, (time.monotonic() - began) / LARGEST_SHARE)
