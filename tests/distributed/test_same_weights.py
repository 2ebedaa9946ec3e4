"""Four collectors deliver each rollout together, and the weights are the same over each transport, to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lightning_ding.config import resolve
from lightning_ding.distributed import Coordinator
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.flask_fs.transport import FlaskTransport
from lightning_ding.distributed.in_process import InProcessChannel, MemoryStore
from lightning_ding.distributed.transport import Channel
from tests.distributed.test_on_policy import ENVS, Learner, Weights, config, policy_of
from tests.processes import wait_for

COLLECTORS, ROLLOUTS, UPDATES = 4, 6, 4


@contextmanager
def in_this_process(cfg: dict[str, Any]) -> Iterator[Callable[[], Channel]]:
    """Run a coordinator; yields a function that returns a channel to it."""
    store = MemoryStore()
    coordinator = Coordinator(cfg, store)
    coordinator.start()
    try:
        yield lambda: InProcessChannel(coordinator.handle, store)
    finally:
        coordinator.close()


@contextmanager
def over_http(cfg: dict[str, Any]) -> Iterator[Callable[[], Channel]]:
    """Run a coordinator that answers over HTTP, see :func:`in_this_process`."""
    transport, config = FlaskTransport(), resolve(ParallelConfig, cfg)
    coordinator = Coordinator(config)  # it listens itself
    coordinator.start()
    try:
        yield lambda: transport.connect(config)
    finally:
        coordinator.close()


class Watcher(Learner):
    """A learner that also keeps the env ids of each rollout."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.envs: list[list[int]] = []

    def _take(self, handle: Any) -> Any:
        found = super()._take(handle)
        assert found is not None
        self.envs.append(found["env_id"].unique().tolist())
        return found


def meeting_collectors(number: int) -> type[CommCollector]:
    """Return a class of collectors that begin together, as soon as there are as many of them."""
    meeting = threading.Barrier(number)

    class Together(CommCollector):
        def _create_collector(self, task_info: Any) -> Any:
            made = super()._create_collector(task_info)
            meeting.wait(60)
            return made

    return Together


def learned(cfg: dict[str, Any], running: Any) -> list[Weights]:
    """Return the weights that a learner publishes whose collectors begin together.

    Args:
        cfg: Config of the run.
        running: Context manager such as :func:`in_this_process`.
    """
    kind = meeting_collectors(COLLECTORS)
    with running(cfg) as connect:
        channels = [connect() for _ in range(1 + COLLECTORS)]
        learner = Watcher(cfg, channels[0])
        workers = [learner, *(kind(cfg, channel) for channel in channels[1:])]
        threads = [threading.Thread(target=worker.start, daemon=True) for worker in workers]
        threads[0].start()
        wait_for(lambda: bool(learner.published))  # torch's generator, too, is in use only once
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(60)
        status = channels[0].call("status")
        for channel in channels:
            channel.close()
    assert (status["is_over"], status["error"], status["restarts"], status["too_old"]) == (True, None, 0, 0)
    assert learner.envs == [list(range(ENVS * COLLECTORS))] * ROLLOUTS  # each collector has delivered its part
    return list(learner.published)


def check_same(first: list[Weights], other: list[Weights]) -> None:
    """See that two learners have published the same weights, which have changed."""
    assert len(first) == len(other) == 1 + ROLLOUTS
    assert any(key.startswith("normaliser") for key in first[-1])
    assert not torch.equal(*(torch.cat([one.flatten() for one in first[at].values()]) for at in (0, -1)))
    for mine, its in zip(first, other, strict=True):
        assert mine.keys() == its.keys()
        assert all(torch.equal(value, its[key]) for key, value in mine.items())


def small(folder: Path) -> dict[str, Any]:
    """Return the config of a run of PPO."""
    return config(folder, policy_of("ppo"), COLLECTORS, max_train_iter=ROLLOUTS * UPDATES, norm_obs=True)


def test_four_collectors_over_http_and_in_one_process_give_the_same_weights_to_the_last_bit(tmp_path: Path) -> None:
    first = learned(small(tmp_path / "memory"), in_this_process)
    for name in ("http", "again"):
        check_same(first, learned(small(tmp_path / name), over_http))
