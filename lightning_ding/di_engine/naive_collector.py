"""A collector that sends invented transitions, for tests of the coordinator."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lightning_ding.di_engine.comm_role import BaseCommRole
from lightning_ding.distributed.comm_worker.loop import AssignedTask, CommWorker
from lightning_ding.distributed.transport import Channel, Role
from lightning_ding.worker.arguments import check_integers

TRAJECTORIES = 20


class NaiveCollector(BaseCommRole):
    """Takes collecting tasks, and sends 20 trajectories of one step for each of them.

    Args:
        host: Address of the coordinator; None reads it from the folder of the run.
        port: Port of the coordinator; None reads it from the folder of the run.
        prefix: Folder of the run.
        channel: Channel to the coordinator; if None, one over HTTP and the folder is created.

    Raises:
        TypeError: If ``host`` or ``port`` has the wrong type.
    """

    transport: ClassVar[str | None] = "flask_fs"
    role: ClassVar[Role] = "collector"

    def __init__(
        self, host: str | None = None, port: int | None = None, prefix: str = "", channel: Channel | None = None
    ) -> None:
        if host is not None and not isinstance(host, str):
            raise TypeError(f"host must be a str or None, got {host!r}")
        if port is not None:
            check_integers(port=port)
        system = {"reconnect_timeout": 30.0, "coordinator": {"max_block": 1_000_000}}
        super().__init__({"main": {"exp_name": prefix}, "system": system}, channel)
        self._address = (host, port)
        self.sent = 0
        """Number of trajectories that the coordinator has accepted."""

    @override
    def _do_tasks(self, worker: CommWorker) -> int:
        return worker.run(self._work)

    @override
    def _stop(self) -> None:
        """Do nothing: the worker's loop asks for no further task."""

    def _work(self, task: AssignedTask) -> None:
        worker = self._connected()
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


def fake_trajectory(number: int) -> dict[str, Any]:
    """Return an episode of one step as transitions with leading axis 1; ``number`` is its id and its observation."""
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
    """Return the finish info of a task with a number of episodes of one step each."""
    counts = {"real_episode_count": episodes, "step_count": episodes, "sample_count": episodes}
    averages = {"avg_time_per_episode": 0.0, "avg_step_per_episode": 1.0, "avg_sample_per_episode": 1.0}
    rewards = {"reward_mean": 1.0, "reward_std": 0.0, "reward_raw": [1.0] * episodes}
    about = {"eval_flag": False, "env_num": 1, "duration": 0.0, "train_iter": 0, "collector_done": True}
    return {**about, **counts, **averages, **rewards, "finish_time": 0.0}
