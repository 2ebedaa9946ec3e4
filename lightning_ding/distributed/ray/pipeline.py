"""A whole distributed run over Ray, on this machine or on a cluster."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_ding.config import ConfigLike, require, resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.resume_config import check_folder
from lightning_ding.distributed.ray import COORDINATOR, import_ray, namespace_of
from lightning_ding.distributed.ray.channel import join_cluster
from lightning_ding.distributed.ray.workers import CoordinatorActor, WorkerActor
from lightning_ding.distributed.stop_signals import raised_once
from lightning_ding.exit_codes import BY_SIGNAL

logger = logging.getLogger(__name__)

OBJECT_STORE = 256 * 1024**2  # bytes of memory for blocks on this machine; Ray writes further blocks to the disk
LOOK = 1.0  # seconds between two checks of the workers
CLOSE_TIMEOUT = 120.0  # seconds for the coordinator to write its state
GOODBYE = 20.0  # seconds for the workers to end after the run


def run_on_ray(cfg: ConfigLike[ParallelConfig] = None, resume: bool = False) -> dict[str, Any]:
    """Run a coordinator, a learner and collectors as Ray's actors until the run is over.

    Ray restarts actors that die: the coordinator any number of times, a worker ``system.restarts`` times. The folder of
    the run must be on a disk that all machines of the cluster share. Every process in the cluster can run code in the
    processes of the run, and Ray decides which processes may join.

    Args:
        cfg: Config of the run; with ``system.ray_address`` None, Ray is started on this machine unless this process is
            already connected.
        resume: Whether to resume the run in ``main.exp_name``.

    Returns:
        The content of ``result.json``.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If the config is wrong, for example because an actor cannot have several ranks; or if the folder
            holds a run and ``resume`` is false, or holds none and ``resume`` is true.
        ConnectionError: If there is no cluster at ``system.ray_address``.
        RuntimeError: If the run was given up, a worker died too often, or Ray could not start an actor within
            ``system.reconnect_timeout``.
        SystemExit: After SIGTERM or Ctrl-C, with 128 + the number of the signal; the run can be resumed.
    """
    import_ray()  # before anything is written
    cfg = resolve(ParallelConfig, cfg)
    multi_gpu = cfg.system.learner.multi_gpu
    require(not multi_gpu, "system.learner.multi_gpu", 'False in an actor; start the ranks with "torchrun"', multi_gpu)
    main = replace(cfg.main, exp_name=str(Path(cfg.main.exp_name).resolve()))
    cfg = replace(cfg, main=main, system=replace(cfg.system, transport="ray"))
    folder = Path(cfg.main.exp_name)
    check_folder(folder, resume)
    with connected_to_ray(cfg), raised_once(lambda number: SystemExit(BY_SIGNAL + number)):
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
        cpus = cfg.system.collector.num + 2  # one for each actor even on a smaller machine, since they mostly wait
        ray.init(num_cpus=cpus, include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


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
        """Start the workers and wait for the end of the run."""
        self._wait_for_coordinator()
        roles = ["learner", *["collector"] * self._cfg.system.collector.num]
        for number, role in enumerate(roles):
            self._start_worker(f"{role} {number}", role)
        while not self._is_over():
            self._pending.look()
            self._look_at_workers()

    def result(self) -> dict[str, Any]:
        """Wait for the workers to end, close the coordinator and return its result."""
        if self._runs:
            self._ray.wait(list(self._runs), num_returns=len(self._runs), timeout=GOODBYE)
        result: dict[str, Any] = self._ray.get(self._coordinator.close.remote(), timeout=CLOSE_TIMEOUT)
        if result["error"] is not None:
            raise RuntimeError(f"the run was given up: {result['error']}")
        return result

    def close(self) -> None:
        """Kill all actors that are still alive."""
        for actor in [*self._actors.values(), self._coordinator]:
            self._ray.kill(actor)

    def _start_coordinator(self, resume: bool) -> Any:
        calls = max(64, 4 * self._cfg.system.collector.num)  # concurrent calls; those of workers without a task wait
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
        options |= {"max_restarts": restarts, "max_task_retries": restarts}  # Ray calls run() again in the new process
        gpus = _gpus(self._cfg.system.learner.trainer) if role == "learner" else 0
        actor = self._ray.remote(WorkerActor).options(**options, num_gpus=gpus).remote(self._cfg, role)
        self._actors[name] = actor
        self._pending.add(name, actor, {"CPU": 1, "GPU": gpus})
        self._run(name)

    def _run(self, name: str) -> None:
        self._runs[self._actors[name].run.remote()] = name

    def _is_over(self) -> bool:
        """Return whether the run is over; False while Ray restarts the coordinator."""
        errors = self._ray.exceptions
        try:
            return bool(self._ray.get(self._coordinator.is_over.remote(LOOK), timeout=30 * LOOK))
        except errors.ActorUnavailableError as error:
            logger.warning("the coordinator is not available: %s", type(error).__name__)
            time.sleep(LOOK)
        except errors.RayActorError as error:
            raise RuntimeError("the coordinator died, and Ray does not restart it") from error
        except errors.GetTimeoutError:
            logger.warning("the coordinator does not answer")
        return False

    def _look_at_workers(self) -> None:
        """Run workers again that ended before the run was over."""
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
            logger.warning("%s is restarted: %s", name, reason)
            self._run(name)

    def _why(self, ref: Any) -> str | None:
        """Return why a worker ended; None if it ended because the run is over."""
        errors = self._ray.exceptions
        try:
            code = self._ray.get(ref)
        except errors.RayActorError as error:
            raise RuntimeError(f"a worker died more than {self._cfg.system.restarts} times") from error
        except errors.RayTaskError as error:
            return str(error).strip().splitlines()[-1]
        if isinstance(code, Exception):  # a restart would fail in the same way
            raise code
        return None if code == 0 else f"exit code {code}"


def _gpus(trainer: dict[str, Any]) -> int:
    """Return the number of GPUs that a learner needs, from the arguments of its Trainer."""
    if trainer.get("accelerator") not in ("gpu", "cuda"):
        return 0
    devices = trainer.get("devices", 1)
    return devices if isinstance(devices, int) else 1


PATIENCE = 30.0  # seconds before a warning


class Pending:
    """Reports actors that Ray cannot start; Ray itself reports nothing.

    Args:
        timeout: Seconds after which waiting for an actor fails.
    """

    def __init__(self, timeout: float) -> None:
        self._ray = import_ray()
        self._timeout = timeout
        self._waiting: dict[Any, tuple[str, Mapping[str, float]]] = {}
        self._since = time.monotonic()
        self._has_warned = False

    def add(self, name: str, actor: Any, needs: Mapping[str, float]) -> None:
        """Wait for another actor, which needs resources such as ``{"CPU": 1}``."""
        self._waiting[actor.__ray_ready__.remote()] = (name, needs)
        self._since = time.monotonic()

    def look(self) -> None:
        """Log a warning once if actors have not started for a while.

        Raises:
            RuntimeError: If an actor has not started in time.
        """
        if not self._waiting:
            return
        started, _ = self._ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for ref in started:
            del self._waiting[ref]
        waited = time.monotonic() - self._since
        if self._waiting and waited >= self._timeout:
            raise RuntimeError(self._text(waited))
        if self._waiting and waited >= PATIENCE and not self._has_warned:
            self._has_warned = True
            logger.warning("%s", self._text(waited))

    def _text(self, waited: float) -> str:
        needed: Counter[str] = Counter()
        for _, needs in self._waiting.values():
            needed.update(needs)
        whole, free = self._ray.cluster_resources(), self._ray.available_resources()
        parts = [
            f"{count:g} {kind} ({free.get(kind, 0):g} of {whole.get(kind, 0):g} free)"
            for kind, count in needed.items()
            if count
        ]
        names = ", ".join(name for name, _ in self._waiting.values())
        return f"Ray has not started {names} in {waited:.0f} s, for which it needs {' and '.join(parts)}"
