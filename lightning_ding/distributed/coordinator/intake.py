"""Processing of collectors' messages: changes of a buffer, or of the rollout of the newest weights, and of its counts.

A message has the same effect when it arrives and when it is read from the journal after a restart.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from lightning_ding import nested
from lightning_ding.distributed.coordinator.journal import Entry
from lightning_ding.distributed.coordinator.publications import Publication
from lightning_ding.distributed.coordinator.rollouts import Rollout
from lightning_ding.distributed.coordinator.sample_ratio import SampleRatio
from lightning_ding.distributed.coordinator.schema import (
    EPISODES,
    IDS,
    Announced,
    Column,
    check_rows,
    described,
    renumber,
)
from lightning_ding.distributed.coordinator.settings import ReplaySettings
from lightning_ding.distributed.messages import read_columns
from lightning_ding.distributed.transport import Refusal
from lightning_ding.worker import create_buffer
from lightning_ding.worker.buffer.base import IBuffer

logger = logging.getLogger(__name__)

BUFFER_FILE = "buffer.safetensors"
KEPT_EPISODES = 10_000  # episodes that wait for the learner to log them
NEWEST_EPISODES = 100  # whose mean return is part of the status
OLD_COUNT = "serial"
"""Count in the snapshots of earlier versions that nothing needs."""


class Intake:
    """A buffer or a rollout, its sample ratio and its counts; must not be used from several threads at once.

    Args:
        cfg: Config of the buffer; empty to use the buffer config of the policy.
        settings: Settings for filling and reading the buffer.
    """

    def __init__(self, cfg: Mapping[str, Any], settings: ReplaySettings) -> None:
        self.settings = settings
        self._config = coordinator = settings.config.system.coordinator
        self._buffer_config = dict(cfg) or settings.buffer
        self._env: Any = None
        self.rollout: Rollout | None = None
        """The rollout of the newest weights, for an on-policy algorithm; it takes the place of the buffer."""
        self.buffer = self._make_buffer()
        self._announced: Announced | None = None
        self._held: Announced | None = None  # columns of the first block of the buffer
        tolerance = coordinator.tolerance if settings.rollout is None else math.inf  # the rollout says who waits
        self.ratio = SampleRatio(settings.samples_per_insert, settings.warm_up, tolerance, settings.round_size)
        self.counts = Counts()
        self.is_starved = False
        """Whether the buffer could not give a minibatch although it holds enough transitions, and got none since."""
        self._episodes: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=KEPT_EPISODES)
        self._dropped = 0  # episodes
        self._new: deque[dict[str, Any]] = deque()  # blocks since the last round, for a reward model
        self._new_length = 0  # transitions in them
        self.returns: deque[float] = deque(maxlen=NEWEST_EPISODES)
        """Returns of the newest episodes."""

    def read(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any]:
        """Return the transitions of a block with the env and episode ids that they have in the buffer.

        Raises:
            Refusal: 422, if the block does not have the form of transitions.
        """
        check_rows(tensors, self.settings.envs, self.settings.columns)
        if self._announced is not None:
            tensors = self._announced.check(tensors)
        return renumber(tensors, entry.slot, entry.run_number, self.settings.envs)

    def check_form(self, form: Mapping[str, tuple[str, tuple[int, ...]]] | None) -> None:
        """Refuse a large block that the learner cannot use, before its data are read.

        Args:
            form: Types and shapes of its columns, see :meth:`Store.form`; None if they are not known.

        Raises:
            Refusal: 422, if they do not fit the columns that the learner has announced.
        """
        if form is None or self._announced is None:
            return
        columns = {name: Column(kind, shape[1:]) for name, (kind, shape) in form.items() if name not in IDS}
        if (why := self._announced.misfit(Announced(columns, True))) is not None:
            raise Refusal(422, why)

    def reread(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any] | None:
        """Return the transitions of an entry of the journal as :meth:`read` does.

        It is None, with one line in the log, if they came before the learner and do not have its columns.
        """
        rows, columns = check_rows(tensors, self.settings.envs, self.settings.columns), self._announced
        why = None if columns is None else columns.misfit(described(tensors))
        if why is not None:
            logger.error("%d transitions of the journal that the learner cannot use are dropped: %s", rows, why)
            return None
        return self.read(tensors, entry)

    def announce(self, columns: Announced) -> None:
        """Hold later blocks against the columns that the learner learns from; drop transitions that do not fit.

        Such transitions can only be here if their collector did not wait for weights, which a learner publishes after
        its columns.
        """
        self._announced = columns
        why = None if self._held is None else columns.misfit(self._held)
        if why is not None:
            logger.error("%d transitions that the learner cannot use are dropped: %s", self.buffer.count(), why)
            self.buffer, self._held, self.is_starved = self._make_buffer(), None, False
            self.clear_new()

    def apply(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        """Push transitions, drop episodes and update the counts.

        Raises:
            ValueError: If the buffer does not accept the transitions; then nothing has changed.
        """
        counts, about = self.counts, entry.metadata
        env_step = counts.env_step + about["env_step"]
        if rows is not None:
            self._push(rows, entry, env_step)
        if about["dropped_episodes"]:
            dropped = [entry.run_number * EPISODES + one for one in about["dropped_episodes"]]  # as in ``renumber``
            self.buffer.drop_episodes(dropped)
            self._dropped += len(dropped)
            counts.dropped_episodes += len(dropped)
        counts.env_step = env_step
        counts.sample += about.get("samples_elsewhere", 0)
        counts.episode += len(about["returns"])
        counts.collector_wait += about["wait_time"]
        self.returns.extend(about["returns"])
        infos = about.get("infos", [{}] * len(about["returns"]))
        self._episodes.extend(zip(about["returns"], about["lengths"], infos, strict=True))
        counts.accepted = max(counts.accepted, entry.number)  # entries are written in parallel
        counts.next_seq[entry.run_id] = entry.seq + 1

    def begin(self, newest: Publication) -> None:
        """Begin the rollout of the newest weights, unless it has begun; a replay buffer needs no beginning."""
        if self.rollout is not None:
            self.rollout.begin(newest.serial, newest.policy_version)

    def may_insert(self, policy_version: int, batch_size: int, pending: int) -> bool:
        """Return whether a message may be accepted now, or has to wait for the learner.

        Args:
            policy_version: Version of the newest weights.
            batch_size: Transitions of a minibatch.
            pending: Transitions that will be inserted first.
        """
        if self.rollout is not None:
            return not self.rollout.is_full
        return self.ratio.may_insert(self.lacks_data(policy_version, batch_size), pending)

    def lacks_data(self, policy_version: int, batch_size: int) -> bool:
        """Return whether there are too few or too old data for a round, regardless of the sample ratio.

        After resuming from a checkpoint, data produced by newer weights are treated as if produced by the current ones.

        Args:
            policy_version: Version of the newest weights.
            batch_size: Transitions of a minibatch.
        """
        if self.rollout is not None:
            return not self.rollout.is_complete
        limit = self._config.max_policy_lag
        waits = limit is not None and self._config.on_policy_lag == "wait"
        newest = min(self.counts.data_policy_version, policy_version)
        self.counts.data_policy_version = newest
        is_old = waits and policy_version - newest > (limit or 0)
        return self.is_starved or is_old or self.buffer.count() < batch_size

    def pop_episodes(self) -> dict[str, Any]:
        """Return the returns and lengths of episodes that ended since the last call, and the number of dropped ones.

        If an env gave numbers in its infos, ``infos`` has those of each episode by name.
        """
        episodes, dropped = list(self._episodes), self._dropped
        self._episodes.clear()
        self._dropped = 0
        returns, lengths, infos = ([one[part] for one in episodes] for part in range(3))
        found = {"returns": returns, "lengths": lengths, "dropped": dropped}
        return found | ({"infos": infos} if any(infos) else {})

    def clear_new(self) -> None:
        """Forget the transitions for a reward model."""
        self._new.clear()
        self._new_length = 0

    def pop_new(self) -> dict[str, Any] | None:
        """Return the transitions since the last call, those of an env in chronological order, for a reward model.

        They are at most as many as the buffer can hold, the newest; None if there are none, or nothing needs them.
        """
        blocks = list(self._new)
        self.clear_new()
        return cast("dict[str, Any]", nested.concatenate(blocks)) if blocks else None

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the columns of the buffer as builtins."""
        held = None if self._held is None else self._held.state_dict()
        return {"counts": asdict(self.counts), "ratio": self.ratio.state_dict(), "held": held}

    def close(self) -> None:
        """Close the env whose functions the buffer uses, if there is one."""
        if self._env is not None:
            self._env.close()

    def save_buffer(self, folder: Path) -> None:
        """Write the buffer into a folder."""
        self.buffer.save_data(folder / BUFFER_FILE)

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Load a snapshot.

        Args:
            folder: Folder of the snapshot, with the file of :meth:`save_buffer`.
            state: State that :meth:`state_dict` returned.
        """
        self.counts = Counts(**{name: count for name, count in state["counts"].items() if name != OLD_COUNT})
        self.ratio.load_state_dict(state["ratio"])
        self.buffer.load_data(folder / BUFFER_FILE)
        self._held = None if state["held"] is None else read_columns(state["held"])

    def _make_buffer(self) -> IBuffer:
        if self.settings.rollout is not None:
            self.rollout = Rollout(self.settings.rollout)
            return cast(IBuffer, self.rollout)
        buffer = create_buffer(self._buffer_config, seed=self.settings.config.main.seed)
        buffer.budget = self.settings.config.main.max_env_step
        if buffer.needs_env:
            self._env = self._env or self.settings.make_env()
            buffer.use_env(self._env.envs[0])
        return buffer

    def _push(self, rows: dict[str, Any], entry: Entry, env_step: int) -> None:
        """Push the transitions that are not too old, and count all of them."""
        counts, limit = self.counts, self._config.max_policy_lag
        versions = rows["policy_version"].numpy().astype(np.int64)  # (K,)
        lag = entry.policy_version - versions
        size = kept = len(lag)
        if self.rollout is not None:
            self.rollout.begin(entry.serial, entry.policy_version)
            is_former = entry.metadata.get("is_former", False)
            kept = 0 if is_former else self.rollout.push(rows, entry.run_id, entry.slot, entry.number)
        elif limit is not None and self._config.on_policy_lag == "drop":
            rows = nested.index(rows, torch.from_numpy(lag <= limit))
            kept = nested.length(rows)
        if kept and self.rollout is None:
            self.buffer.push(rows, env_step)
            if self.settings.sends_new:
                self._new.append(rows)
                self._new_length += kept
                while self._new_length > max(self.settings.buffer["replay_buffer_size"], kept):
                    self._new_length -= nested.length(self._new.popleft())
        if kept:
            self._held = self._held or described(rows)
        self.ratio.insert(kept)
        self.is_starved = False
        counts.sample += size
        counts.too_old += size - kept
        counts.lag_sum += int(np.maximum(lag, 0).sum())
        counts.lag_max = max(counts.lag_max, int(lag.max()))
        newest = min(int(versions.max()), entry.policy_version)
        counts.data_policy_version = max(counts.data_policy_version, newest)


class Sender(NamedTuple):
    """The attempt at a task that sent a message."""

    run_id: str
    slot: int
    run_number: int


@dataclass
class Counts:
    """Counts of the data that a buffer received."""

    env_step: int = 0
    episode: int = 0
    sample: int = 0
    """Accepted transitions, including those that were too old, and those that comm workers exchange themselves."""
    too_old: int = 0
    """Transitions that were not pushed because they were too old."""
    dropped_episodes: int = 0
    lag_sum: int = 0
    """Updates between the weights that collected a transition and the newest ones, summed over ``sample``."""
    lag_max: int = 0
    data_policy_version: int = 0
    """Version of the newest weights that data were collected with."""
    accepted: int = 0
    """Number of the newest entry of the journal."""
    refused: int = 0
    collector_wait: float = 0.0
    learner_wait: float = 0.0
    next_seq: dict[str, int] = field(default_factory=dict)
    """Expected number of the next message, by the id of each current attempt."""
