"""A replay buffer that several collectors fill and one learner reads, with its journal and counts.

Shapes: B transitions or sequences of a minibatch, T steps of a sequence, U minibatches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from lightning_ding import nested
from lightning_ding.distributed.block_files import checksum_of, read_block
from lightning_ding.distributed.coordinator.database import Database
from lightning_ding.distributed.coordinator.intake import Counts, Intake, Sender
from lightning_ding.distributed.coordinator.journal import Entry, Journal, Snapshots
from lightning_ding.distributed.coordinator.publications import Publication
from lightning_ding.distributed.coordinator.sample_ratio import PollInterval, SampleRatio
from lightning_ding.distributed.coordinator.schema import Announced
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from lightning_ding.distributed.transport import Block, Refusal, Store
from lightning_ding.worker import IBuffer, NotEnoughError

logger = logging.getLogger(__name__)

Verdict = Literal["accepted", "duplicate", "wait"]


class Replay:
    """One buffer with its journal, its sample ratio and its counts; may be used from several threads.

    Args:
        buffer_id: Id of the buffer.
        cfg: Config of the buffer; empty to use the buffer config of the policy.
        settings: Settings for filling and reading the buffer.
        database: Database of the run, next to which the data are.
        store: Store from which blocks are read.
        columns: Columns that a learner has announced; None if there are none yet.

    Raises:
        ValueError: If no snapshot can be used, and the journal does not begin at the first entry.
    """

    def __init__(
        self,
        buffer_id: str,
        cfg: Mapping[str, Any],
        settings: ReplaySettings,
        database: Database,
        store: Store,
        columns: Announced | None = None,
    ) -> None:
        self.buffer_id = buffer_id
        self.settings = settings
        self._make_intake = partial(Intake, cfg, settings)
        self.intake = self._make_intake()
        self.journal = Journal(database, buffer_id)
        self.snapshots = Snapshots(database.file.parent / "snapshots" / buffer_id)
        self._store = store
        self._lock = threading.Condition(threading.RLock())
        self._in_flight: dict[str, int] = {}  # transitions of the entry that is being written, by attempt
        self._is_saving = False
        self._snapshot_lock = threading.Lock()  # acquired before ``_lock``
        self._batch_size = settings.batch_size
        self._waits_since: float | None = None
        self._blocks, self._rounds = PollInterval(), PollInterval()
        self._saved_at = (0, 0)
        self._load_snapshot()
        if columns is not None:
            self.intake.announce(columns)
        for entry in self.journal.after(self.counts.accepted):
            self._apply_again(entry)
        self.intake.clear_new()  # a reward model has learned from most of these transitions, and gets none twice
        self._number = self.counts.accepted  # of the newest entry, also of those that are being written

    def announce(self, columns: Announced) -> None:
        """Hold blocks against the columns that a learner has announced, see :meth:`Intake.announce`."""
        with self._lock:
            self._lock.wait_for(lambda: not self._in_flight)  # blocks that were read before
            self.intake.announce(columns)

    # ------------------------------------------------------------------ collectors

    @property
    def buffer(self) -> IBuffer:
        """The buffer, or the rollout of the newest weights, which has those of its methods that are used here."""
        return self.intake.buffer

    @property
    def ratio(self) -> SampleRatio:
        """The ratio of sampled to collected transitions."""
        return self.intake.ratio

    @property
    def counts(self) -> Counts:
        """Counts of the collected data."""
        return self.intake.counts

    def accept(
        self,
        sender: Sender,
        seq: int,
        data_id: Any,
        metadata: dict[str, Any],
        newest: Publication,
        forced: bool = False,
    ) -> Verdict:
        """Accept a message of a collector and write it to the journal, or return why it is not accepted.

        Entries of different attempts are checked and written in parallel, because a shared folder may answer slowly.

        Args:
            sender: The attempt that sent the message.
            seq: Number of the message in its attempt, from 0.
            data_id: Handle of the transitions; None if there are none.
            metadata: Metadata, already checked.
            newest: The newest weights.
            forced: Whether to accept it even if the collector is ahead of the learner.

        Raises:
            Refusal: 400 for a gap in ``seq``; 422 or the status of the store for invalid data.
            OSError: If the journal cannot be written; then nothing has changed.
        """
        is_free = data_id is None or forced
        with self._lock:
            verdict = self._judge(sender, seq, newest, is_free)
        if verdict is not None:
            return verdict
        data, problem = self._fetch(data_id)  # without the lock, because it may take long
        with self._lock:
            # the same message may have arrived twice, and a snapshot contains all entries with smaller numbers
            self._lock.wait_for(lambda: not self._is_saving and sender.run_id not in self._in_flight)
            verdict = self._judge(sender, seq, newest, is_free)
            if verdict is not None:
                return verdict
            self._number += 1
            counted = (self._number, *sender[:1], seq, *sender[1:], newest.policy_version, self.ratio.sampled)
            self._in_flight[sender.run_id] = 0 if data is None else _length(data.tensors)
        entry = Entry(*counted, has_data=data_id is not None, metadata=metadata, serial=newest.serial)
        try:
            if problem is not None:
                raise problem
            rows = None
            if data is not None:
                rows = self.intake.read(data.tensors, entry)
                entry = replace(entry, data_checksum=checksum_of(data.tensors))
            self.journal.write(entry, lambda file: self._store.move(data_id, file, data))
            with self._lock:
                try:
                    self._apply(entry, rows)
                except Refusal:  # otherwise the next start would meet it
                    self.journal.discard(entry)
                    raise
                self._blocks.note()
        except Refusal:
            with self._lock:
                self.counts.refused += 1
            if data_id is not None:
                self._store.delete(data_id)
            raise
        finally:
            with self._lock:
                if self._number == entry.number > self.counts.accepted:  # not accepted: the next one gets its number
                    self._number -= 1
                del self._in_flight[sender.run_id]
                self._lock.notify_all()
        return "accepted"

    def collector_wait(self) -> float:
        """Return the seconds after which a waiting collector should send its message again."""
        return self._rounds.wait(2.0)  # shorter than the tolerance, so that learning does not wait for data

    def holds(self, run_id: str, collectors: int, newest: Publication) -> bool:
        """Return whether a collector has to wait for newer weights, see :meth:`Rollout.holds`.

        Args:
            run_id: Id of its attempt.
            collectors: Number of collectors that are at work.
            newest: The newest weights.
        """
        with self._lock:
            self.intake.begin(newest)
            return self.intake.rollout is not None and self.intake.rollout.holds(run_id, collectors)

    def rollout_wait(self) -> float:
        """Return the seconds after which a collector that holds should ask again."""
        return self._rounds.wait(0.05)

    # ------------------------------------------------------------------ learner

    def has_rollout(self, newest: Publication) -> bool:
        """Return whether there is a whole rollout of the newest weights."""
        if (rollout := self.intake.rollout) is None:
            return False
        with self._lock:
            self.intake.begin(newest)
            return rollout.is_complete

    def draw(
        self, batch_size: int, num_batches: int, train_iter: int, options: Mapping[str, Any], newest: Publication
    ) -> dict[str, Any] | None:
        """Return a round of minibatches, or None if the learner has to wait.

        Args:
            batch_size: Transitions or sequences of a minibatch, B.
            num_batches: Minibatches of the round, U.
            train_iter: Updates made so far.
            options: Further arguments of the buffer's ``sample``.
            newest: The newest weights.

        Returns:
            A nested dict of tensors, leading axes (U, B), or of sequences (U, T, B); a rollout, leading axis of
            transitions, whatever the amount. With a reward model, ``collected`` has the transitions since the last
            round, leading axis of transitions.

        Raises:
            Refusal: 422, if the buffer does not accept the options or its own data.
        """
        with self._lock:
            self._batch_size, self.ratio.round_size = batch_size, batch_size * num_batches
            self.intake.begin(newest)
            batch = None
            if self.ratio.may_sample() and not self.intake.lacks_data(newest.policy_version, self._batch_size):
                batch = self._sample(batch_size, num_batches, train_iter, options)
            if batch is None:
                self._waits_since = self._waits_since or time.monotonic()
                return None
            if self._waits_since is not None:
                self.counts.learner_wait += time.monotonic() - self._waits_since
                self._waits_since = None
            self._rounds.note()
            new = self.intake.pop_new()
            return batch if new is None else {**batch, "collected": new}

    def learner_wait(self) -> float:
        """Return the seconds after which a waiting learner should request a round again."""
        return self._blocks.wait(0.5) if self.intake.rollout is None else self.rollout_wait()

    def update(self, priorities: Mapping[str, Any]) -> None:
        """Set the priorities of sampled transitions.

        Raises:
            Refusal: 422, if the buffer does not accept them.
        """
        try:
            self.buffer.update(priorities)
        except (ValueError, KeyError, TypeError) as error:
            raise Refusal(422, f"the buffer does not accept these priorities: {error}") from error

    def pop_episodes(self) -> dict[str, Any]:
        """Return the returns and lengths of episodes that ended since the last call, and the number of dropped ones."""
        with self._lock:
            return self.intake.pop_episodes()

    def stats(self) -> dict[str, float]:
        """Return the policy lag of the data, the sizes of buffer and journal, and the seconds spent waiting."""
        counts = self.counts
        return {
            "policy_lag": counts.lag_sum / max(1, counts.sample),
            "policy_lag_max": float(counts.lag_max),
            "samples_per_insert": self.ratio.so_far,
            "buffer_count": float(self.buffer.count()),
            "journal_depth": float(counts.accepted - self._saved_at[0]),
            "learner_wait": counts.learner_wait,
            "collector_wait": counts.collector_wait,
        }

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, over: set[str]) -> None:
        """Write buffer and counts, if anything has changed.

        The entries of the journal remain until :meth:`delete_saved_entries`.

        Args:
            over: Ids of attempts that have ended.

        Raises:
            OSError: If a file cannot be written.
        """
        with self._snapshot_lock:
            saved_at = self._write_snapshot(over)
            if saved_at is not None:
                self.snapshots.publish(saved_at[0])  # messages are accepted while the disk takes its time
                self._saved_at = saved_at

    def delete_saved_entries(self) -> None:
        """Delete the journal's entries that both snapshots contain.

        Raises:
            OSError: If a file cannot be deleted.
        """
        self.journal.delete_until(self.snapshots.superfluous)

    def keep_newest_snapshot(self) -> None:
        """Delete all snapshots but the newest, and the entries of the journal that it contains.

        Raises:
            OSError: If a file cannot be deleted.
        """
        with self._snapshot_lock:
            self.snapshots.delete_older()
        self.delete_saved_entries()

    def _write_snapshot(self, over: set[str]) -> tuple[int, int] | None:
        """Write a snapshot that no entry is missing in, and return its counts; return None if nothing has changed."""
        with self._lock:
            self._is_saving = True
            try:
                self._lock.wait_for(lambda: not self._in_flight)
                now = (self.counts.accepted, self.ratio.sampled)
                if now == self._saved_at:
                    return None
                self.counts.next_seq = {run: seq for run, seq in self.counts.next_seq.items() if run not in over}
                self.snapshots.write(self.intake.state_dict(), self.intake.save_buffer)
                return now
            finally:
                self._is_saving = False
                self._lock.notify_all()

    def close(self) -> None:
        """Close what the buffer uses."""
        self.intake.close()

    def _load_snapshot(self) -> None:
        """Load the newest snapshot that can be used, if there is one, and log what is wrong with newer ones.

        Raises:
            ValueError: If no snapshot can be used, and entries that they contained are not in the journal any more.
        """
        damages: list[str] = []
        instead = "the whole journal"
        for folder in self.snapshots.newest_first():
            try:
                self.intake.load(folder, self.snapshots.read_state(folder))
            except (OSError, ValueError, KeyError, TypeError) as error:
                damages.append(f"the snapshot {folder.name} of {self.buffer_id} cannot be used: {error!s}")
                self.intake.close()
                self.intake = self._make_intake()
                continue
            self.snapshots.use(folder, self.counts.accepted)
            self._saved_at = (self.counts.accepted, self.ratio.sampled)
            instead = f"{folder} and all entries of the journal after it"
            break
        else:
            if damages and not self.journal.is_complete():
                told = "; ".join(damages)
                raise ValueError(f"the data of the run cannot be restored: {told}; there is no other snapshot")
        if damages:
            logger.error("%s; using %s instead, so no data are lost", "; ".join(damages), instead)

    def _apply_again(self, entry: Entry) -> None:
        """Apply an entry of the journal, as when it was accepted; set it aside if its data cannot be used.

        Log an error if acknowledged messages that came before it are gone, and nothing was logged of them.
        """
        missing = entry.seq - self.counts.next_seq.get(entry.run_id, 0)
        missing -= sum(f"_{entry.run_id}_" in name for name in self.journal.set_aside)
        if missing > 0:
            told = "%d acknowledged messages of the attempt %s are missing in the journal before its entry %s"
            logger.error(told, missing, entry.run_id, entry.name)
        self.ratio.sampled = max(self.ratio.sampled, entry.sampled)
        try:
            rows = None
            if entry.has_data:
                data = read_block(self.journal.data_file(entry), 2**62)
                if entry.data_checksum != checksum_of(data.tensors):
                    raise Refusal(422, "its data have changed since they were written")
                rows = self.intake.reread(data.tensors, entry)
            self._apply(entry, rows)
        except Refusal as refusal:  # its data have changed, or it was not acknowledged
            self.journal.reject(entry.name, refusal)

    # ------------------------------------------------------------------ helpers

    def _judge(self, sender: Sender, seq: int, newest: Publication, is_free: bool) -> Verdict | None:
        """Return the verdict on a message if it does not depend on its data, else None."""
        expected = self.counts.next_seq.get(sender.run_id, 0)
        if seq < expected:
            return "duplicate"
        if seq > expected:
            raise Refusal(400, f"seq must be {expected}, the next one of this attempt, got {seq}")
        self.intake.begin(newest)
        pending = sum(self._in_flight.values())
        is_free = is_free or self.intake.may_insert(newest.policy_version, self._batch_size, pending)
        return None if is_free else "wait"

    def _fetch(self, data_id: Any) -> tuple[Block | None, Refusal | None]:
        """Return the transitions of a message, or the refusal of the store."""
        if data_id is None:
            return None, None
        try:
            self.intake.check_form(self._store.form(data_id))
            return self._store.get(data_id), None
        except Refusal as refusal:
            return None, refusal

    def _apply(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        try:
            self.intake.apply(entry, rows)
        except Exception as error:
            raise Refusal(422, f"the buffer does not accept the data: {error!r}") from error

    def _sample(self, batch_size: int, num_batches: int, train_iter: int, options: Any) -> dict[str, Any] | None:
        if self.intake.rollout is not None:
            rows = self.intake.rollout.rows()
            self.ratio.sample(nested.length(rows))
            return rows
        try:
            batch: dict[str, Any] = self.buffer.sample(
                batch_size, cur_learner_iter=train_iter, num_batches=num_batches, **options
            )
        except NotEnoughError as error:  # for example, few transitions are within the buffer's limits on use or age
            logger.warning("the learner has to wait: %s", error)
            self.intake.is_starved = True
            return None
        except ValueError as error:
            raise Refusal(422, f"the buffer gives no minibatch: {error}") from error
        self.ratio.sample(batch_size * num_batches)
        return batch


def _length(tensors: Mapping[str, Any]) -> int:
    """Return the number of transitions of a block that was not checked yet; 0 if it cannot be counted."""
    reward = tensors.get("reward")
    return len(reward) if isinstance(reward, Tensor) and reward.ndim else 0
