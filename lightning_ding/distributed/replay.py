"""A replay buffer that several collectors fill and a learner reads, and what was counted of it.

Shapes: B transitions of a minibatch, U minibatches.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from lightning_ding import nested
from lightning_ding.distributed.channel import Store
from lightning_ding.distributed.counts import Counts, Sender
from lightning_ding.distributed.errors import Refusal
from lightning_ding.distributed.journal import STATE_FILE, Entry, Journal
from lightning_ding.distributed.ratio import SampleRatio
from lightning_ding.distributed.replay_settings import ReplaySettings
from lightning_ding.distributed.rows import check_rows, episode_of_run, renumber
from lightning_ding.distributed.wire import read_block
from lightning_ding.worker import create_buffer

logger = logging.getLogger(__name__)

BUFFER_FILE = "buffer.safetensors"
KEPT_EPISODES = 10_000  # that wait for the learner to log them
Verdict = Literal["accepted", "duplicate", "wait"]


class Replay:
    """One buffer with its journal, its ratio and its counts; safe to use from several threads.

    Args:
        buffer_id: Its name.
        cfg: Of the buffer; empty for the policy's.
        settings: How it is filled and read.
        folder: Of the coordinator's files.
        store: Where blocks come from.
    """

    def __init__(
        self, buffer_id: str, cfg: Mapping[str, Any], settings: ReplaySettings, folder: Path, store: Store
    ) -> None:
        self.buffer_id = buffer_id
        self.settings = settings
        self.buffer = create_buffer(dict(cfg) or settings.buffer, seed=settings.seed)
        self.ratio = SampleRatio(settings.samples_per_insert, settings.warm_up, settings.tolerance, settings.round_size)
        self.counts = Counts()
        self.journal = Journal(folder / "journal" / buffer_id, folder / "snapshots" / buffer_id)
        self._store = store
        self._lock = threading.RLock()
        self._batch_size = settings.batch_size
        self._is_starved = False  # the buffer gave no minibatch although it holds enough
        self._waits_since: float | None = None
        self._episodes: deque[tuple[float, int]] = deque(maxlen=KEPT_EPISODES)
        self._dropped = 0  # episodes
        self._saved_at = (0, 0)
        self._restore()

    # ------------------------------------------------------------------ collectors

    def accept(
        self, sender: Sender, seq: int, data_id: Any, metadata: dict[str, Any], version: int, forced: bool = False
    ) -> Verdict:
        """Take a collector's message, durably, or say why not.

        Args:
            sender: Whose it is.
            seq: Counts the messages of the run, from 0 on.
            data_id: Handle of the transitions; None if there are none.
            metadata: Checked.
            version: Of the newest weights.
            forced: Whether it is taken whatever the ratio says.

        Raises:
            Refusal: 400 for a gap in ``seq``; 422 or what the store says for data that cannot be taken.
            OSError: If the disk does not take it; then nothing has happened.
        """
        with self._lock:
            expected = self.counts.next_seq.get(sender.run_id, 0)
            if seq < expected:
                return "duplicate"
            if seq > expected:
                raise Refusal(400, f"seq must be {expected}, the next of this run, got {seq}")
            if data_id is not None and not forced and not self._may_insert(version):
                return "wait"
            counted = (self.counts.accepted + 1, *sender[:1], seq, *sender[1:], version, self.ratio.sampled)
            entry = Entry(*counted, has_data=data_id is not None, metadata=metadata)
            try:
                rows = None if data_id is None else self._rows(self._store.get(data_id).tensors, entry)
                self.journal.write(entry, lambda file: self._store.move(data_id, file))
                self._apply_or_discard(entry, rows)
            except Refusal:
                self.counts.refused += 1
                if data_id is not None:
                    self._store.delete(data_id)
                raise
            return "accepted"

    def wants_random(self) -> bool:
        """Return whether collectors should take random actions."""
        return self.counts.sample < self.settings.random

    # ------------------------------------------------------------------ learner

    def draw(
        self, batch_size: int, num_batches: int, train_iter: int, options: Mapping[str, Any], version: int
    ) -> dict[str, Any] | None:
        """Return a round, or None if the learner has to wait.

        Args:
            batch_size: B.
            num_batches: U.
            train_iter: Updates so far.
            options: Further arguments of the buffer's ``sample``.
            version: Of the newest weights.

        Returns:
            A nested dict of tensors, leading axes (U, B).
        """
        with self._lock:
            self._batch_size, self.ratio.round_size = batch_size, batch_size * num_batches
            batch = None
            if self.ratio.may_sample() and not self._lacks_data(version):
                batch = self._sample(batch_size, num_batches, train_iter, options)
            self._note_wait(batch is None)
            return batch

    def update(self, priorities: Mapping[str, Any]) -> None:
        """Take the priorities of transitions that were sampled.

        Raises:
            Refusal: 422, if they are not what the buffer takes.
        """
        try:
            self.buffer.update(priorities)
        except (ValueError, KeyError, TypeError) as error:
            raise Refusal(422, f"these priorities cannot be taken: {error}") from error

    def pop_episodes(self) -> dict[str, Any]:
        """Return the returns and lengths of what ended since the last call, and how many episodes were dropped."""
        with self._lock:
            episodes, dropped = list(self._episodes), self._dropped
            self._episodes.clear()
            self._dropped = 0
        return {"returns": [one[0] for one in episodes], "lengths": [one[1] for one in episodes], "dropped": dropped}

    def stats(self) -> dict[str, float]:
        """Return how old data were when they came, how full it all is, and who waited for how many seconds."""
        counts = self.counts
        return {
            "policy_lag": counts.lag_sum / max(1, counts.sample),
            "policy_lag_max": float(counts.lag_max),
            "samples_per_insert": self.ratio.so_far,
            "buffer_count": float(self.buffer.count()),
            "journal_depth": float(self.journal.depth),
            "learner_wait": counts.learner_wait,
            "collector_wait": counts.collector_wait,
        }

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, active: set[str]) -> None:
        """Write buffer and counts, and empty the journal, if anything has happened.

        Args:
            active: Ids of the runs that go on; of others nothing more comes.

        Raises:
            OSError: If the disk does not take it.
        """
        with self._lock:
            now = (self.counts.accepted, self.ratio.sampled)
            if now == self._saved_at:
                return
            self.counts.next_seq = {run: seq for run, seq in self.counts.next_seq.items() if run in active}
            state = {"counts": asdict(self.counts), "ratio": self.ratio.state_dict()}
            self.journal.snapshot(self.counts.accepted, state, self._save_buffer)
            self._saved_at = now

    def _save_buffer(self, folder: Path) -> None:
        self.buffer.save_data(folder / BUFFER_FILE)

    def _restore(self) -> None:
        folder = self.journal.newest_snapshot()
        if folder is not None:
            state = json.loads((folder / STATE_FILE).read_text())
            self.counts = Counts(**state["counts"])
            self.ratio.load_state_dict(state["ratio"])
            self.buffer.load_data(folder / BUFFER_FILE)
            self._saved_at = (self.counts.accepted, self.ratio.sampled)
        for entry in self.journal.behind(self.counts.accepted):
            self.ratio.sampled = max(self.ratio.sampled, entry.sampled)
            try:
                data = read_block(self.journal.data_file(entry), 2**62) if entry.has_data else None
                self._apply_or_discard(entry, None if data is None else self._rows(data.tensors, entry))
            except Refusal as refusal:  # it was not acknowledged
                logger.warning("the entry %s of the journal is left out: %s", entry.name, refusal)
                self.journal.discard(entry)

    # ------------------------------------------------------------------ helpers

    def _rows(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any]:
        check_rows(tensors, self.settings.envs)
        return renumber(tensors, entry.slot, entry.run_number, self.settings.envs)

    def _apply_or_discard(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        try:
            self._apply(entry, rows)
        except ValueError as error:  # of the buffer, which has taken nothing of it
            self.journal.discard(entry)
            raise Refusal(422, str(error)) from error

    def _apply(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        counts, about = self.counts, entry.metadata
        env_step = counts.env_step + about["env_step"]
        if rows is not None:
            self._push(rows, entry, env_step)
        if about["dropped_episodes"]:
            dropped = [episode_of_run(local, entry.run_number) for local in about["dropped_episodes"]]
            self.buffer.drop_episodes(dropped)
            self._dropped += len(dropped)
            counts.dropped_episodes += len(dropped)
        counts.env_step = env_step
        counts.episode += len(about["returns"])
        counts.collector_wait += about["wait_time"]
        self._episodes.extend(zip(about["returns"], about["lengths"], strict=True))
        counts.accepted = entry.number
        counts.next_seq[entry.run_id] = entry.seq + 1

    def _push(self, rows: dict[str, Any], entry: Entry, env_step: int) -> None:
        """Push transitions that are not too old, and count them all."""
        counts, lag, limit = self.counts, entry.newest_version - rows["policy_version"], self.settings.max_policy_lag
        size, newest = len(lag), int(rows["policy_version"].max())
        if limit is not None and self.settings.drops_old:
            rows = nested.index(rows, lag <= limit)
        kept = nested.length(rows)
        if kept:
            self.buffer.push(rows, env_step)
        self.ratio.insert(kept)
        self._is_starved = False
        counts.sample += size
        counts.too_old += size - kept
        counts.lag_sum += int(lag.clamp(min=0).sum())
        counts.lag_max = max(counts.lag_max, int(lag.max()))
        counts.newest_version = max(counts.newest_version, newest)

    def _may_insert(self, version: int) -> bool:
        return self.ratio.may_insert(learner_waits=self._lacks_data(version))

    def _lacks_data(self, version: int) -> bool:
        """Return whether the learner cannot have a round, whatever the ratio says."""
        limit = self.settings.max_policy_lag
        waits = limit is not None and not self.settings.drops_old
        is_old = waits and version - self.counts.newest_version > (limit or 0)
        return self._is_starved or is_old or self.buffer.count() < self._batch_size

    def _sample(self, batch_size: int, num_batches: int, train_iter: int, options: Any) -> dict[str, Any] | None:
        try:
            batch = self.buffer.sample(batch_size, train_iter, num_batches=num_batches, **options)
        except ValueError as error:  # too few are left within the buffer's limits on use or age
            logger.warning("the learner has to wait: %s", error)
            self._is_starved = True
            return None
        self.ratio.sample(batch_size * num_batches)
        return batch

    def _note_wait(self, waits: bool) -> None:
        now = time.monotonic()
        if waits and self._waits_since is None:
            self._waits_since = now
        elif not waits and self._waits_since is not None:
            self.counts.learner_wait += now - self._waits_since
            self._waits_since = None
