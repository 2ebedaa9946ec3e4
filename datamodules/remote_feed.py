"""Rounds that a thread fetches ahead of the learner."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from lightning_ding.config import require
from lightning_ding.datamodules.remote_round import RemoteData

POLL = 0.05  # seconds between two looks for a reason to wait no longer
LEAST_WAIT = 0.002  # seconds between two questions
LEAVES = 2.0  # seconds that the thread has to end


class RemoteFeed:
    """Asks for rounds in a daemon thread, a bounded number of them ahead, and keeps count of what the answers say.

    Args:
        ask: Returns the coordinator's answer, with a round or without.
        ahead: Rounds to fetch before they are needed, >= 0; 0 fetches each when it is asked for.
        patience: Seconds without a round and without a new env step after which it is given up, > 0.
    """

    def __init__(self, ask: Callable[[], RemoteData], ahead: int, patience: float) -> None:
        require(ahead >= 0, "prefetch", ">= 0", ahead)
        require(patience > 0, "patience", "> 0 seconds", patience)
        self.envstep = 0
        """Env steps of the newest answer; it grows while others collect, whether there are rounds or not."""
        self.dropped_episode = 0
        """Episodes that faults of envs have cut short."""
        self._ask = ask
        self._ahead = ahead
        self._patience = patience
        self._episodes: tuple[list[float], list[int]] = ([], [])
        self._lock = threading.Lock()
        self._may_fetch = threading.Semaphore(ahead)
        self._fetched: queue.Queue[RemoteData | Exception] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote feed", daemon=True)
        self._thread.start()

    def next(self, gives_up: Callable[[], bool] = lambda: False) -> RemoteData | None:
        """Return the next answer that holds a round or ends the run; None if ``gives_up`` comes true before.

        Raises:
            TimeoutError: If there is no round, and nothing was collected, for ``patience`` seconds.
            Exception: Whatever asking raised in the thread.
        """
        if not self._ahead:
            self._may_fetch.release()
        while not gives_up():
            try:
                found = self._fetched.get(timeout=POLL)
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise found
            if self._ahead:
                self._may_fetch.release()
            return found
        return None

    def pop_episodes(self) -> tuple[list[float], list[int]]:
        """Return the returns and lengths of the episodes that answers told of since the last call."""
        with self._lock:
            episodes, self._episodes = self._episodes, ([], [])
        return episodes

    @property
    def ready(self) -> int:
        """Answers that wait to be taken."""
        return self._fetched.qsize()

    def close(self) -> None:
        """Fetch no more; a request that is under way in the thread is left to end by itself."""
        self._closed.set()
        self._may_fetch.release()
        self._thread.join(LEAVES)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._may_fetch.acquire()
                found = self._fetch()
                if found is not None:
                    self._fetched.put(found)
        except Exception as error:  # whatever it is, the learner has to hear of it
            self._fetched.put(error)

    def _fetch(self) -> RemoteData | None:
        """Ask until there is a round or the run is over; None if the feed is closed before."""
        since = time.monotonic()
        while not self._closed.is_set():
            answer = self._ask()
            if self._note(answer):
                since = time.monotonic()
            if answer.stop or answer.data is not None:
                return answer
            if time.monotonic() - since > self._patience:
                raise TimeoutError(
                    f"no round to learn from and no env step for {self._patience:g} s, at env step {self.envstep}: "
                    "is no collector at work?"
                )
            self._closed.wait(max(answer.wait, LEAST_WAIT))
        return None

    def _note(self, answer: RemoteData) -> bool:
        """Keep what an answer tells beside its round; return whether env steps were made since the last one."""
        before, self.envstep = self.envstep, answer.progress.get("env_step", self.envstep)
        self.dropped_episode += answer.dropped
        with self._lock:
            self._episodes[0].extend(answer.returns)
            self._episodes[1].extend(answer.lengths)
        return self.envstep != before
