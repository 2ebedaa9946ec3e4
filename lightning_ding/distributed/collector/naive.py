"""A collector that makes its transitions up: for tests of what is behind it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ding.distributed.channel import Channel
from lightning_ding.distributed.worker_loop import CommWorker, Task
from lightning_ding.worker.arguments import check_integers

TRAJECTORIES = 20


class NaiveCollector:
    """Takes collecting tasks, and sends 20 trajectories of one step for each.

    Args:
        host: Where the coordinator listens; None takes what it has written into the folder of the run.
        port: The same.
        prefix: Folder of the run.
        channel: The way to the coordinator; None makes one over HTTP and the folder.

    Raises:
        TypeError: If ``host`` or ``port`` is of the wrong type.
    """

    def __init__(
        self, host: str | None = None, port: int | None = None, prefix: str = "", channel: Channel | None = None
    ) -> None:
        if host is not None and not isinstance(host, str):
            raise TypeError(f"host must be a str or None, got {host!r}")
        if port is not None:
            check_integers(port=port)
        self._address = (host, port)
        self._folder = Path(prefix)
        self._channel = channel
        self._worker: CommWorker | None = None
        self.sent = 0
        """Trajectories that the coordinator took."""

    def start(self) -> int:
        """Do tasks until the run is over, and return the exit code; see :meth:`CommWorker.run`."""
        channel = self._channel or self._make_channel()
        self._worker = CommWorker(channel, "collector")
        try:
            return self._worker.run(self._work)
        finally:
            if self._channel is None:
                channel.close()

    def close(self) -> None:
        """Let ``start`` return when the task is done."""
        if self._worker is not None:
            self._worker.leave()

    def _work(self, task: Task) -> None:
        worker = self._worker
        assert worker is not None
        for seq in range(TRAJECTORIES):
            handle = worker.channel.store.put("data", fake_trajectory(seq))
            metadata: dict[str, Any] = {"policy_iter": 0, "env_step": 1, "cur_episode": seq + 1, "cur_sample": seq + 1}
            metadata |= {"cur_step": seq + 1, "get_data_time": 0.0, "returns": [1.0], "lengths": [1]}
            metadata |= {"dropped_episodes": [], "wait_time": 0.0}
            accepted = False
            while not accepted:
                answer = worker.call("collector_data_task", seq=seq, data_id=handle, metadata=metadata)
                accepted = answer["accepted"]
                if answer["close"]:
                    break
                time.sleep(0.0 if accepted else answer["wait"])
            self.sent += accepted
            if answer["close"]:
                break
        worker.call("collector_close_task", info=finish_info(self.sent))

    def _make_channel(self) -> Channel:
        from lightning_ding.distributed.flask_fs.channel import FlaskChannel
        from lightning_ding.distributed.flask_fs.token import read_token

        limits = {"channel": 0, "reconnect_timeout": 30.0, "max_block": 1_000_000}
        return FlaskChannel(self._folder, *self._address, read_token(None, self._folder), **limits)  # type: ignore[arg-type]


def fake_trajectory(number: int) -> dict[str, Any]:
    """Return an episode of one step, as transitions with leading axis 1; ``number`` is its id and what it holds."""
    return {
        "obs": np.full((1, 4), number, np.float32),
        "action": np.zeros(1, np.int64),
        "reward": np.ones(1, np.float32),
        "next_obs": np.full((1, 4), number + 1, np.float32),
        "terminated": np.ones(1, bool),
        "truncated": np.zeros(1, bool),
        "env_id": np.zeros(1, np.int64),
        "episode_id": np.full(1, number, np.int64),
        "policy_version": np.zeros(1, np.int64),
    }


def finish_info(episodes: int) -> dict[str, Any]:
    """Return the finish info of a task of so many episodes of one step."""
    counts = {"real_episode_count": episodes, "step_count": episodes, "sample_count": episodes}
    averages = {"avg_time_per_episode": 0.0, "avg_step_per_episode": 1.0, "avg_sample_per_episode": 1.0}
    rewards = {"reward_mean": 1.0, "reward_std": 0.0, "reward_raw": [1.0] * episodes}
    about = {"eval_flag": False, "env_num": 1, "duration": 0.0, "train_iter": 0, "collector_done": True}
    return {**about, **counts, **averages, **rewards, "finish_time": 0.0}
