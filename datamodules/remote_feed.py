"""Rounds of minibatches that a thread fetches from a coordinator ahead of the learner.

Shapes: B transitions or sequences of a minibatch, T steps of a sequence, U minibatches of a round.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import require
from lightning_ding.worker.episodes import SUCCESS_RATE, EpisodeStatistics

if TYPE_CHECKING:
    from lightning_ding.datamodules.demonstrations import MixedBuffer

KEYS = ("replay_unique_id", "replay_buffer_idx")
"""Columns that identify a transition in a prioritised buffer."""


@dataclass(frozen=True)
class RemoteData:
    """The answer to a learner that requested a round."""

    data: dict[str, Any] | None = None
    """All minibatches, leading axes (U, B), or of sequences (U, T, B); None if there are not enough data at the
    moment. For a reward model, ``collected`` has the transitions since the last round, leading axis of transitions."""
    wait: float = 0.0
    """Seconds after which to request again if there are no data."""
    stop: bool = False
    """Whether the run is over."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """``env_step``, ``episode`` and ``sample``, summed over all collectors."""
    returns: Sequence[float] = ()
    """Returns of the episodes that have ended since the last answer."""
    lengths: Sequence[int] = ()
    """Lengths of these episodes in env steps."""
    dropped: int = 0
    """Number of episodes that were dropped after an env fault since the last answer."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """Values to log, such as ``policy_lag``."""
    infos: Sequence[Mapping[str, float]] = ()
    """Numbers of the infos of these episodes by name; empty if the env gives none."""


class RemoteRound:
    """U minibatches that were sampled in another process; new priorities are collected until they are sent back.

    All minibatches of a prioritised round are sampled before the first of them is learned from, unlike those of a
    :class:`~lightning_ding.datamodules.replay.ReplayRound`.

    Args:
        data: All minibatches, leading axes (U, B).
        num_batches: U, the number of minibatches that was requested.
        mixed: Source of the demonstrations at the end of each minibatch, which gets their priorities; None without.

    Raises:
        ValueError: If ``data`` does not have ``num_batches`` minibatches.
    """

    def __init__(self, data: dict[str, Any], num_batches: int, mixed: MixedBuffer | None = None) -> None:
        got = nested.length(data)
        require(got == num_batches, "minibatches of a round", f"{num_batches}, as requested", got)
        self.num_batches = num_batches
        self._data, self._mixed = data, mixed
        self._is_prioritised = KEYS[0] in data
        self._priorities: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the minibatches, each a nested dict of tensors with leading axis B."""
        yield from nested.unbind(self._data)  # type: ignore[misc]

    @property
    def drawn(self) -> dict[str, Any] | None:
        """All minibatches, leading axes (U, B); None if their priorities are updated one by one."""
        return None if self._is_prioritised else self._data

    def prepare(self, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Apply ``function`` to all minibatches at once, leading axes (U, B), unless they have priorities."""
        if not self._is_prioritised:
            self._data = function(self._data)

    def update_priority(self, batch: Mapping[str, Any], priority: Tensor) -> None:
        """Collect the priorities, shape (B,), of a minibatch that was just learned from."""
        update = {"priority": priority, **{key: batch[key] for key in KEYS if key in batch}}
        update = {key: value.detach().cpu() for key, value in update.items()}
        self._priorities.append(update if self._mixed is None else self._mixed.update_demonstrations(update))

    def priorities(self) -> dict[str, Tensor] | None:
        """Return ``priority`` and the columns ``KEYS`` of all minibatches, concatenated; None if there are none."""
        if not self._priorities:
            return None
        return {key: torch.cat([one[key].flatten() for one in self._priorities]) for key in self._priorities[0]}

    def to(self, device: torch.device, non_blocking: bool = False) -> RemoteRound:
        """Move the minibatches to a device (called by Lightning)."""
        if torch.device(device).type != "cpu":
            self._data = nested.to(self._data, device, non_blocking)  # type: ignore[assignment]
        return self


POLL = 0.05  # seconds between two checks of whether the wait was cancelled
LEAST_WAIT = 0.002  # minimum seconds between two requests
CLOSING = 2.0  # seconds to wait for the thread to end


class RemoteFeed:
    """Fetch rounds in a daemon thread, a bounded number of them ahead, and sum up the counters of the answers.

    Args:
        ask: Function that requests a round and returns the coordinator's answer, with or without a round.
        ahead: Rounds to fetch before they are needed, >= 0; 0 fetches each round when :meth:`next` is called.
        patience: Seconds without a round and without a new env step after which fetching fails, > 0.
        info_keys: Names of the numbers of the infos that :meth:`pop_infos` returns in addition to ``success_rate``.
        keeps_records: Whether to keep a record of each episode for :meth:`pop_records`.
    """

    def __init__(
        self,
        ask: Callable[[], RemoteData],
        ahead: int,
        patience: float,
        info_keys: Iterable[str] = (),
        keeps_records: bool = False,
    ) -> None:
        require(ahead >= 0, "prefetch", ">= 0", ahead)
        require(patience > 0, "patience", "> 0 seconds", patience)
        self.env_step = 0
        """Env steps of the newest answer; they grow while collectors run, with or without rounds."""
        self.dropped_episode = 0
        """Number of episodes that were dropped after an env fault."""
        self._ask = ask
        self._ahead = ahead
        self._patience = patience
        self._statistics = EpisodeStatistics()
        self._statistics.keeps_records = keeps_records
        self._statistics.info_keys = dict.fromkeys(info_keys, "last")
        self._lock = threading.Lock()
        self._may_fetch = threading.Semaphore(ahead)
        self._fetched: queue.Queue[RemoteData | Exception] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote feed", daemon=True)
        self._thread.start()

    def next(self, is_cancelled: Callable[[], bool] = lambda: False) -> RemoteData | None:
        """Return the next answer that has a round or ends the run; None if ``is_cancelled`` returns true first.

        Raises:
            TimeoutError: If there was neither a round nor a new env step for ``patience`` seconds.
            Exception: Any exception that ``ask`` raised in the thread.
        """
        if not self._ahead:
            self._may_fetch.release()
        while not is_cancelled():
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
        """Return the returns and lengths of the episodes that were reported since the last call."""
        with self._lock:
            return self._statistics.pop_episodes()

    def pop_infos(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each number of the infos, and the number of episodes that had it, since the last call."""
        with self._lock:
            return self._statistics.pop_infos()

    def pop_records(self) -> list[tuple[float, ...]]:
        """Return env step, return, length and numbers of the infos of the episodes reported since the last call.

        The env step is that of all collectors when the episode was reported.
        """
        with self._lock:
            return self._statistics.pop_records()

    @property
    def ready(self) -> int:
        """Number of answers that have been fetched and not yet returned."""
        return self._fetched.qsize()

    def close(self) -> None:
        """Stop fetching. A request in progress is not interrupted."""
        self._closed.set()
        self._may_fetch.release()
        self._thread.join(CLOSING)

    # ------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._may_fetch.acquire()
                found = self._fetch()
                if found is not None:
                    self._fetched.put(found)
        except Exception as error:  # of any kind, because the learner must raise it
            self._fetched.put(error)

    def _fetch(self) -> RemoteData | None:
        """Return the first answer that has a round or ends the run; None if the feed is closed first."""
        since = time.monotonic()
        while not self._closed.is_set():
            answer = self._ask()
            if self._note(answer):
                since = time.monotonic()
            if answer.stop or answer.data is not None:
                return answer
            if time.monotonic() - since > self._patience:
                raise TimeoutError(
                    f"no round to learn from and no env step for {self._patience:g} s, at env step {self.env_step}: "
                    "is a collector running?"
                )
            self._closed.wait(max(answer.wait, LEAST_WAIT))
        return None

    def _note(self, answer: RemoteData) -> bool:
        """Add an answer's counters and episodes; return whether env steps were made since the last one."""
        before, self.env_step = self.env_step, answer.progress.get("env_step", self.env_step)
        self.dropped_episode += answer.dropped
        given = answer.infos or [{}] * len(answer.returns)
        infos = {
            name: np.array([one.get(name, math.nan) for one in given], np.float64)
            for name in (SUCCESS_RATE, *self._statistics.info_keys)
        }
        with self._lock:
            self._statistics.envstep = self.env_step
            self._statistics.add_episodes(list(answer.returns), list(answer.lengths), infos=infos)
        return self.env_step != before
