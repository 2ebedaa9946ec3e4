"""A whole distributed run over Ray: on this machine, or on a cluster."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from lightning_ding.config import ConfigLike, require, resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import COORDINATOR, import_ray, namespace_of
from lightning_ding.distributed.ray.actors import CoordinatorActor, WorkerActor
from lightning_ding.distributed.ray.cluster import join_cluster
from lightning_ding.distributed.ray.pending import Pending
from lightning_ding.distributed.run_folder import check_folder
from lightning_ding.exit_codes import BY_SIGNAL

logger = logging.getLogger(__name__)

OBJECT_STORE = 256 * 1024**2  # bytes of memory for blocks on this machine; Ray spills to the disk what goes beyond
LOOK = 1.0  # seconds between two looks at the workers
CLOSE_TIMEOUT = 120.0  # seconds for the coordinator to write down what it has
GOODBYE = 20.0  # seconds that workers have to end when the run is over


def run_on_ray(cfg: ConfigLike[ParallelConfig] = None, resume: bool = False) -> dict[str, Any]:
    """Run a coordinator, a learner and collectors as Ray's actors until the run is over.

    Ray starts an actor that died anew, the coordinator any number of times and a worker ``system.restarts`` times. The
    folder of the run must lie on a disk that all machines of the cluster share. Whoever has joined the cluster can
    run code in the run's processes; who may join is Ray's affair.

    Args:
        cfg: Of the run; ``system.ray_address`` None starts Ray on this machine, unless this process has it already.
        resume: Go on with the run in ``main.exp_name``.

    Returns:
        What the coordinator writes into ``result.json``.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the config is wrong, such as one with several ranks of the learner, which actors cannot have; or
            if the folder holds a run and ``resume`` is false, or it holds none and ``resume`` is true.
        ConnectionError: If there is no cluster at ``system.ray_address``.
        RuntimeError: If the run was given up, a worker died too often, or Ray found no place for an actor within
            ``system.reconnect_timeout``.
        SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal; then ``resume`` goes on.
    """
    import_ray()  # before anything is written
    cfg = resolve(ParallelConfig, cfg)
    multi_gpu = cfg.system.learner.multi_gpu
    require(not multi_gpu, "system.learner.multi_gpu", 'False in an actor; start the ranks with "torchrun"', multi_gpu)
    cfg = replace(cfg, main=replace(cfg.main, exp_name=str(Path(cfg.main.exp_name).resolve())))
    folder = Path(cfg.main.exp_name)
    check_folder(folder, resume)
    with connected_to_ray(cfg), _ending_on_signals():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(to_dict(cfg), indent=1))
        (folder / "result.json").unlink(missing_ok=True)
        run = _Run(cfg, resume)
        try:
            run.wait()
            return run.result()
        finally:
            run.close()


@contextmanager
def connected_to_ray(cfg: ParallelConfig) -> Iterator[Any]:
    """Connect to a cluster or start Ray on this machine, and undo it at the end, unless it was so before.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If ``system.ray_address`` is not the form of an address.
        ConnectionError: If there is no cluster at it.
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
        cpus = cfg.system.collector.num + 2  # as many as actors, however few this machine has: they mostly wait
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Leave by ``SystemExit`` at the first SIGTERM or Ctrl-C; other threads than the main one cannot hear them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        for heard in before:  # a second one shall not disturb the leaving
            signal.signal(heard, signal.SIG_IGN)
        raise SystemExit(BY_SIGNAL + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """The actors of one run."""

    def __init__(self, cfg: ParallelConfig, resume: bool) -> None:
        self._ray = import_ray()
        self._cfg = cfg
        self._namespace = namespace_of(cfg.main.exp_name)
        self._pending = Pending(cfg.system.reconnect_timeout)
        self._coordinator = self._start_coordinator(resume)
        self._actors: dict[str, Any] = {}
        self._runs: dict[Any, str] = {}
        self._failures: dict[str, int] = {}

    def wait(self) -> None:
        """Start the workers and wait for the end of the run.

        Raises:
            ImportError: If a package is missing where the actors are.
            ValueError: If there is a mistake in the config.
            RuntimeError: If an actor died too often, or Ray found no place for one in time.
        """
        self._wait_for_coordinator()
        roles = ["learner", *["collector"] * self._cfg.system.collector.num]
        for number, role in enumerate(roles):
            self._start_worker(f"{role} {number}", role)
        while not self._is_over():
            self._pending.look()
            self._look_at_workers()

    def result(self) -> dict[str, Any]:
        """Let the workers, who have been told, end, and the coordinator after them; return its result.

        Raises:
            RuntimeError: If the run was given up.
        """
        if self._runs:
            self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=GOODBYE)
        result: dict[str, Any] = self._ray.get(self._coordinator.close.remote(), timeout=CLOSE_TIMEOUT)
        if result["error"] is not None:
            raise RuntimeError(f"the run was given up: {result['error']}")
        return result

    def close(self) -> None:
        """End all actors that still live."""
        for actor in [*self._actors.values(), self._coordinator]:
            self._ray.kill(actor)

    def _start_coordinator(self, resume: bool) -> Any:
        calls = max(64, 4 * self._cfg.system.collector.num)  # at a time; those of workers without a task wait
        options = {"name": COORDINATOR, "namespace": self._namespace, "num_cpus": 1}
        options |= {"max_restarts": -1, "max_concurrency": calls}
        actor = self._ray.remote(CoordinatorActor).options(**options).remote(self._cfg, resume)
        self._pending.add(COORDINATOR, actor, {"CPU": 1})
        return actor

    def _wait_for_coordinator(self) -> None:
        answer = self._coordinator.mistake.remote()
        while not self._ray.wait([answer], timeout=LOOK)[0]:
            self._pending.look()
        if (mistake := self._ray.get(answer)) is not None:
            raise mistake

    def _start_worker(self, name: str, role: str) -> None:
        restarts = self._cfg.system.restarts
        options = {"name": name, "namespace": self._namespace, "num_cpus": 1}
        options |= {"max_restarts": restarts, "max_task_retries": restarts}  # run() is called again in the new process
        gpus = _gpus(self._cfg.system.learner.trainer) if role == "learner" else 0
        actor = self._ray.remote(WorkerActor).options(**options, num_gpus=gpus).remote(self._cfg, role)
        self._actors[name] = actor
        self._pending.add(name, actor, {"CPU": 1, "GPU": gpus})
        self._run(name)

    def _run(self, name: str) -> None:
        self._runs[self._actors[name].run.remote()] = name

    def _is_over(self) -> bool:
        """Return whether the run is over; False while its coordinator is being started anew."""
        errors = self._ray.exceptions
        try:
            return bool(self._ray.get(self._coordinator.is_over.remote(LOOK), timeout=30 * LOOK))
        except errors.ActorUnavailableError as error:
            logger.warning("the coordinator is not there: %s", type(error).__name__)
            time.sleep(LOOK)
        except errors.RayActorError as error:
            raise RuntimeError("the coordinator died, and Ray does not start it anew") from error
        except errors.GetTimeoutError:
            logger.warning("the coordinator does not answer")
        return False

    def _look_at_workers(self) -> None:
        """Let workers run again that ended before the run did."""
        if not self._runs:
            return
        ended, _ = self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)
        for ref in ended:
            name = self._runs.pop(ref)
            reason = self._why(ref)
            if reason is None:
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] > self._cfg.system.restarts:
                raise RuntimeError(f"{name} ended more than {self._cfg.system.restarts} times: {reason}")
            logger.warning("%s is started again: %s", name, reason)
            self._run(name)

    def _why(self, ref: Any) -> str | None:
        """Return why a worker ended; None if the coordinator had told it to.

        Raises:
            ImportError, ValueError: If there is a mistake in the config.
            RuntimeError: If Ray does not start it anew any more.
        """
        errors = self._ray.exceptions
        try:
            code = self._ray.get(ref)
        except errors.RayActorError as error:
            raise RuntimeError(f"a worker died more than {self._cfg.system.restarts} times") from error
        except errors.RayTaskError as error:
            return str(error).strip().splitlines()[-1]
        if isinstance(code, Exception):  # another start would end in the same way
            raise code
        return None if code == 0 else f"exit code {code}"


def _gpus(trainer: dict[str, Any]) -> int:
    """Return how many GPUs a learner is to be given, by the arguments of its Trainer."""
    if trainer.get("accelerator") not in ("gpu", "cuda"):
        return 0
    devices = trainer.get("devices", 1)
    return devices if isinstance(devices, int) else 1
