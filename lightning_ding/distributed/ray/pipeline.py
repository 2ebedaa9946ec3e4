"""A whole distributed run over Ray, on this machine or on a cluster, and its transport."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from lightning_ding.config import ConfigLike, require, resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.folder import check_start
from lightning_ding.distributed.coordinator.settings import number_of_ranks
from lightning_ding.distributed.ray import COORDINATOR, coordinator_class, import_ray, namespace_of
from lightning_ding.distributed.ray.channel import RayChannel, join_cluster
from lightning_ding.distributed.ray.collectors import (
    Collectors,
    needs_of_learner,
    room_for_collectors,
    with_a_device_for_each_actor,
)
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.ray.worker_set import WorkerSet, not_restarted
from lightning_ding.distributed.ray.workers import CoordinatorActor
from lightning_ding.distributed.stop_signals import collected
from lightning_ding.distributed.transport import Channel, Handler, Server, Store, Transport
from lightning_ding.utils.exit_codes import BY_SIGNAL

logger = logging.getLogger(__name__)

OBJECT_STORE = 256 * 1024**2  # bytes of memory for blocks on this machine; Ray writes further blocks to the disk
LOOK = 1.0  # seconds between two checks of the workers
CLOSE_TIMEOUT = 120.0  # seconds for the coordinator to write its state
GOODBYE = 20.0  # seconds for the workers to end after the run


def run_on_ray(cfg: ConfigLike[ParallelConfig] = None, resume: bool = False) -> dict[str, Any]:
    """Run a coordinator, a learner and collectors as Ray's actors until the run is over.

    Ray restarts actors that die, on another node if theirs has died: the coordinator any number of times, a worker
    ``system.restarts`` times. The ranks of a learner are restarted together, as often. The folder of the run must be on
    a disk that all machines of the cluster share. Every process in the cluster can run code in the processes of the
    run, and Ray decides which processes may join.

    Args:
        cfg: Config of the run; with ``system.ray_address`` None, Ray is started on this machine unless this process is
            already connected.
        resume: Whether to resume the run in ``main.exp_name``.

    Returns:
        The content of ``result.json``.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the config is wrong; or if the folder holds a run and ``resume`` is false, or holds none and
            ``resume`` is true.
        ConnectionError: If there is no cluster at ``system.ray_address``.
        RuntimeError: If the run was given up, a worker died too often, or Ray could not start an actor within
            ``system.reconnect_timeout``.
        SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal; the run can be resumed.
    """
    import_ray()  # before anything is written
    cfg = resolve(ParallelConfig, cfg)
    number_of_ranks(cfg)  # before anything is written
    demos = cfg.main.demonstrations
    demos = str(Path(demos).resolve()) if demos is not None and Path(demos).exists() else demos  # or one of Minari
    main = replace(cfg.main, exp_name=str(Path(cfg.main.exp_name).resolve()), demonstrations=demos)
    cfg = replace(cfg, main=main, system=replace(cfg.system, transport="ray"))
    folder = Path(cfg.main.exp_name)
    is_finished = check_start(cfg, resume)
    with connected_to_ray(cfg), collected() as received:  # an exit raised inside ray.get would lose its code
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(to_dict(cfg), indent=1))
        if not is_finished:  # otherwise the coordinator deletes it when the run continues
            (folder / "result.json").unlink(missing_ok=True)
        run = _Run(cfg, resume, received)
        try:
            run.wait()
            return run.result()
        finally:
            run.close()


@contextmanager
def connected_to_ray(cfg: ParallelConfig) -> Iterator[Any]:
    """Connect to a cluster or start Ray on this machine, and disconnect at the end; keep an existing connection.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If ``system.ray_address`` does not have the form of an address.
        ConnectionError: If there is no cluster at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING, "namespace": namespace_of(cfg.main.exp_name)}
    if cfg.system.ray_address is not None:
        join_cluster(cfg.system.ray_address, **quiet)
    else:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 gives other processes nearly all of a busy core
        others, is_auto = 1 + number_of_ranks(cfg), cfg.system.collector.num == "auto"
        # one CPU for each actor even on a smaller machine, since they mostly wait
        cpus = max(os.cpu_count() or 1, others + 1) if is_auto else cfg.system.collector.number + others
        limits = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE}
        ray.init("local", **limits, include_dashboard=False, **quiet)  # also on a machine of a cluster
    try:
        yield ray
    finally:
        ray.shutdown()


class _Run:
    """The actors of one run, which ends early after a signal."""

    def __init__(self, cfg: ParallelConfig, resume: bool, received: Sequence[int]) -> None:
        self._ray = import_ray()
        self._received = received
        self._ranks = number_of_ranks(cfg)
        number = None if cfg.system.collector.num == "auto" else cfg.system.collector.number
        if number is None:  # as many as the cluster has room for now
            room = room_for_collectors(self._ray.cluster_resources().get("CPU", 0), 1 + self._ranks)
            cfg = replace(cfg, system=replace(cfg.system, collector=replace(cfg.system.collector, num=room)))
        self._cfg = cfg = with_a_device_for_each_actor(cfg, self._ranks)
        self._workers = WorkerSet(cfg)
        options: Any = {"num_cpus": 1, "max_restarts": -1}
        coordinator = coordinator_class(CoordinatorActor, namespace_of(cfg.main.exp_name), **options)
        self._coordinator = coordinator.remote(cfg, resume)
        self._workers.pending.add(COORDINATOR, self._coordinator, {"CPU": 1})
        self._collectors = Collectors(self._workers, number, 1 + self._ranks)

    def wait(self) -> None:
        """Start the workers and wait for the end of the run."""
        answer = self._coordinator.mistake.remote()
        while not self._ray.wait([answer], timeout=LOOK)[0]:
            self._leave_after_signal()
            self._workers.look()
        if (mistake := self._ray.get(answer)) is not None:
            raise mistake
        needs = needs_of_learner(self._cfg)
        placed = ("DEFAULT",) if self._ranks == 1 else self._workers.reserve(needs, self._ranks, "PACK")
        self._workers.start("learner 0", "learner", needs, placed)
        self._collectors.start()
        while not self._is_over(self._collectors.look()):
            self._leave_after_signal()
            self._workers.look()

    def result(self) -> dict[str, Any]:
        """Wait for the workers to end, close the coordinator and return its result."""
        self._workers.wait(GOODBYE)
        result: dict[str, Any] = self._ray.get(self._coordinator.close.remote(), timeout=CLOSE_TIMEOUT)
        if result["error"] is not None:
            raise RuntimeError(f"the run was given up: {result['error']}")
        return result

    def close(self) -> None:
        """Kill all actors that are still alive."""
        self._workers.close()
        self._ray.kill(self._coordinator)

    def _leave_after_signal(self) -> None:
        if self._received:
            raise SystemExit(BY_SIGNAL + self._received[0])

    def _is_over(self, collectors: int | None) -> bool:
        """Return whether the run is over, and log its progress; False while Ray restarts the coordinator."""
        errors = self._ray.exceptions
        try:
            found = self._ray.get(self._coordinator.look.remote(LOOK, collectors), timeout=30 * LOOK)
        except errors.ActorUnavailableError as error:
            logger.warning("the coordinator is not available: %s", type(error).__name__)
            time.sleep(LOOK)
        except errors.RayActorError as error:
            raise not_restarted("the coordinator", error) from error
        except errors.GetTimeoutError:
            logger.warning("the coordinator does not answer")
        else:
            if found["line"] is not None:
                logger.info("%s", found["line"])
            return bool(found["is_over"])
        return False


class RayTransport(Transport):
    """Actors of a Ray cluster, at ``system.ray_address`` or on this machine; Ray starts and restarts all processes."""

    runs_alone: ClassVar[bool] = True

    @override
    def make_store(self, config: ParallelConfig) -> Store:
        return RayStore(Path(config.main.exp_name) / "data", config.system.coordinator.max_block)

    @override
    def serve(self, config: ParallelConfig, handler: Handler, store: Store) -> Server:
        raise ValueError("over Ray a coordinator is an actor, which `parallel` or run_on_ray starts")

    @override
    def connect(self, config: ParallelConfig, host: str | None = None, port: int | None = None) -> Channel:
        """Return a channel to the coordinator's actor; join the cluster first if this process has not.

        Raises:
            ImportError: If Ray is not installed.
            ConnectionError: If there is no cluster at ``system.ray_address``.
        """
        require(host is None, "host", "None over Ray, which finds the coordinator by its name", host)
        namespace = namespace_of(config.main.exp_name)
        if not import_ray().is_initialized():
            join_cluster(config.system.ray_address or "auto", namespace=namespace, log_to_driver=False)
        return RayChannel(namespace, config.system.reconnect_timeout, config.system.coordinator.max_block)

    @override
    def run(self, config: ParallelConfig, resume: bool = False) -> dict[str, Any]:
        return run_on_ray(config, resume)
