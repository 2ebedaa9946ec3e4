"""What the messages of collectors do to a buffer and its counts: the same when they come as out of the journal."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_ding import nested
from lightning_ding.distributed.counts import Counts
from lightning_ding.distributed.journal import STATE_FILE, Entry
from lightning_ding.distributed.ratio import SampleRatio
from lightning_ding.distributed.replay_settings import ReplaySettings
from lightning_ding.distributed.rows import check_rows, episode_of_run, renumber
from lightning_ding.worker import create_buffer

BUFFER_FILE = "buffer.safetensors"
KEPT_EPISODES = 10_000  # that wait for the learner to log them


class Intake:
    """A buffer, the ratio of its use, and what was counted; not safe to use from several threads.

    Args:
        cfg: Of the buffer; empty for the policy's.
        settings: How it is filled and read.
    """

    def __init__(self, cfg: Mapping[str, Any], settings: ReplaySettings) -> None:
        self.settings = settings
        self.buffer = create_buffer(dict(cfg) or settings.buffer, seed=settings.seed)
        self.buffer.budget = settings.budget
        self.ratio = SampleRatio(settings.samples_per_insert, settings.warm_up, settings.tolerance, settings.round_size)
        self.counts = Counts()
        self.is_starved = False
        """Whether the buffer gave no minibatch although it holds enough, and got nothing since."""
        self._episodes: deque[tuple[float, int]] = deque(maxlen=KEPT_EPISODES)
        self._dropped = 0  # episodes

    def read(self, tensors: dict[str, Any], entry: Entry) -> dict[str, Any]:
        """Return the transitions of a block as they stand in the buffer.

        Raises:
            Refusal: 422, if they are not what they should be.
        """
        check_rows(tensors, self.settings.envs)
        return renumber(tensors, entry.slot, entry.run_number, self.settings.envs)

    def apply(self, entry: Entry, rows: dict[str, Any] | None) -> None:
        """Push transitions, drop episodes, count.

        Raises:
            ValueError: If the buffer does not take the transitions; then nothing has happened.
        """
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

    def lacks_data(self, version: int, batch_size: int) -> bool:
        """Return whether the learner cannot have a round, whatever the ratio says.

        Data of a later version than its own count as of its own from now on: it was taken up from a checkpoint.

        Args:
            version: Of the newest weights.
            batch_size: Transitions of a minibatch.
        """
        limit = self.settings.max_policy_lag
        waits = limit is not None and not self.settings.drops_old
        newest = min(self.counts.newest_version, version)
        self.counts.newest_version = newest
        is_old = waits and version - newest > (limit or 0)
        return self.is_starved or is_old or self.buffer.count() < batch_size

    def pop_episodes(self) -> dict[str, Any]:
        """Return the returns and lengths of what ended since the last call, and how many episodes were dropped."""
        episodes, dropped = list(self._episodes), self._dropped
        self._episodes.clear()
        self._dropped = 0
        return {"returns": [one[0] for one in episodes], "lengths": [one[1] for one in episodes], "dropped": dropped}

    def state_dict(self) -> dict[str, Any]:
        """Return the counts as builtins."""
        return {"counts": asdict(self.counts), "ratio": self.ratio.state_dict()}

    def save_buffer(self, folder: Path) -> None:
        """Write the buffer into a folder."""
        self.buffer.save_data(folder / BUFFER_FILE)

    def load(self, folder: Path) -> None:
        """Take what a folder of the journal holds."""
        state = json.loads((folder / STATE_FILE).read_text())
        self.counts = Counts(**state["counts"])
        self.ratio.load_state_dict(state["ratio"])
        self.buffer.load_data(folder / BUFFER_FILE)

    def _push(self, rows: dict[str, Any], entry: Entry, env_step: int) -> None:
        """Push transitions that are not too old, and count them all."""
        counts, lag, limit = self.counts, entry.newest_version - rows["policy_version"], self.settings.max_policy_lag
        size, newest = len(lag), min(int(rows["policy_version"].max()), entry.newest_version)
        if limit is not None and self.settings.drops_old:
            rows = nested.index(rows, lag <= limit)
        kept = nested.length(rows)
        if kept:
            self.buffer.push(rows, env_step)
        self.ratio.insert(kept)
        self.is_starved = False
        counts.sample += size
        counts.too_old += size - kept
        counts.lag_sum += int(lag.clamp(min=0).sum())
        counts.lag_max = max(counts.lag_max, int(lag.max()))
        counts.newest_version = max(counts.newest_version, newest)
