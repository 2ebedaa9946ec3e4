"""How workers are restarted over Ray, one by one or all ranks together, with actors that exist only on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.settings import number_of_ranks
from lightning_ding.distributed.ray import worker_set as module
from lightning_ding.distributed.ray.collectors import needs_of_learner, with_a_device_for_each_actor as split
from lightning_ding.distributed.ray.worker_set import WorkerSet


def config(multi_gpu: bool = True, restarts: int = 20, **trainer: Any) -> ParallelConfig:
    """Return the config of a run with arguments of the Trainer."""
    return resolve(
        ParallelConfig, {"system": {"restarts": restarts, "learner": {"multi_gpu": multi_gpu, "trainer": trainer}}}
    )


def test_ranks_are_the_devices_of_all_nodes_and_each_actor_has_one() -> None:
    cfg = config(accelerator="gpu", devices=4, num_nodes=2)

    assert number_of_ranks(cfg) == 8
    assert split(cfg, 8).system.learner.trainer == {"accelerator": "gpu", "devices": 1, "num_nodes": 8}
    assert needs_of_learner(split(cfg, 8)) == {"CPU": 1, "GPU": 1}


def test_learner_of_one_rank_has_all_devices() -> None:
    cfg = config(multi_gpu=False, accelerator="gpu", devices=2)

    assert number_of_ranks(cfg) == 1
    assert split(cfg, 1) == cfg
    assert needs_of_learner(cfg) == {"CPU": 1, "GPU": 2}
    assert needs_of_learner(config(accelerator="cpu", devices=2)) == {"CPU": 1, "GPU": 0}


@pytest.mark.parametrize(
    ("name", "value"), [("devices", "auto"), ("devices", -1), ("num_nodes", True), ("devices", [0])]
)
def test_number_of_ranks_that_ray_cannot_know_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"system\.learner\.trainer\.{name} must be an integer >= 1 with multi_gpu"):
        number_of_ranks(config(**{name: value}))


class PaperActor:
    """Records its calls, and that it was killed; a call ends as the test decides."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.calls: list[Any] = []
        self.open_store = self.run = self.node = self.__ray_ready__ = self

    def remote(self, *arguments: Any) -> str:
        if not arguments:
            return self.name
        self.calls.append(arguments)
        return f"{self.name} call {len(self.calls)}"


class PaperRay:
    """Actors whose calls end when ``ends`` holds an answer for their name."""

    exceptions = type("exceptions", (), {"RayError": RuntimeError, "RayActorError": ConnectionError})

    def __init__(self) -> None:
        self.ends: dict[str, Any] = {}
        self.actors: list[PaperActor] = []
        self.options: dict[str, Any] = {}

    def remote(self, actor: type) -> Any:
        return SimpleNamespace(options=self.make)

    def make(self, name: str, **options: Any) -> Any:
        self.options = options

        def start(cfg: Any, role: str) -> PaperActor:
            self.actors.append(PaperActor(name))
            return self.actors[-1]

        return SimpleNamespace(remote=start)

    def kill(self, actor: PaperActor) -> None:
        actor.is_killed = True

    def wait(self, refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return [ref for ref in reversed(refs) if ref in self.ends], []

    def cluster_resources(self) -> dict[str, float]:
        return {}

    available_resources = cluster_resources

    def why(self, ref: str) -> Any:
        if isinstance(self.ends[ref], Exception):
            raise self.ends[ref]
        return self.ends[ref]

    def alive(self) -> list[str]:
        return [actor.name for actor in self.actors if not actor.is_killed]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> PaperRay:
    paper = PaperRay()
    monkeypatch.setattr(module, "import_ray", lambda: paper)
    monkeypatch.setattr(module, "why_ended", paper.why)
    return paper


def ranks_of(cfg: ParallelConfig, ranks: int = 2) -> WorkerSet:
    """Return a set with a learner that was started."""
    found = WorkerSet(cfg)
    found.start("learner 0", "learner", {"CPU": 1}, range(ranks))
    return found


@pytest.mark.parametrize("end", ["exit code 1", RuntimeError("its node died"), ConnectionError("it died")])
def test_all_ranks_are_restarted_when_one_of_them_ends(ray: PaperRay, end: Any) -> None:
    ranks = ranks_of(config())
    ranks.look()
    assert ray.alive() == ["learner 0.0", "learner 0.1"]
    assert [actor.calls for actor in ray.actors] == [[(0, 2, "learner 0.0")], [(1, 2, "learner 0.0")]]
    assert "max_restarts" not in ray.options

    ray.ends["learner 0.1 call 1"] = end
    ranks.look()

    assert ray.alive() == ["learner 1.0", "learner 1.1"]
    assert ray.actors[-1].calls == [(1, 2, "learner 1.0")]


def test_ranks_for_which_there_is_no_room_any_more_are_reported_and_given_up(
    ray: PaperRay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = ranks_of(config())
    ray.ends |= {"learner 0.0": None, "learner 0.1": None}  # they have started
    ranks.look()
    assert ranks.pending._waiting == {}
    ray.ends["learner 0.1 call 1"] = "exit code 1"  # a node has died
    ranks.look()
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    ranks.look()
    assert caplog.messages[-1].startswith("Ray has not started learner 1.0, learner 1.1 in 0 s, for which it needs 2")
    ranks.pending._timeout = 0.0
    with pytest.raises(RuntimeError, match=r"Ray has not started learner 1\.0, learner 1\.1 in 0 s"):
        ranks.look()


def test_ranks_that_are_restarted_too_often_end_the_run(ray: PaperRay) -> None:
    ranks = ranks_of(config(restarts=1))
    ray.ends |= {"learner 0.0 call 1": "exit code 1", "learner 0.1 call 1": "exit code 2"}  # both are one failure
    ray.ends["learner 1.0 call 1"] = "exit code 3"

    ranks.look()
    with pytest.raises(RuntimeError, match=r"^learner 0 ended more than 1 times: exit code 3$"):
        ranks.look()


def test_ranks_are_not_restarted_after_rank_zero_has_ended_well(ray: PaperRay) -> None:
    ranks = ranks_of(config())

    ray.ends |= {
        "learner 0.1 call 1": "exit code 1",
        "learner 0.0 call 1": None,
    }  # it loses its connection to rank zero
    ranks.look()

    assert ray.alive() == ["learner 0.0", "learner 0.1"]


def test_worker_of_one_process_that_fails_is_called_again_and_ray_restarts_one_that_dies(ray: PaperRay) -> None:
    workers = ranks_of(config(restarts=1), ranks=1)
    assert (ray.options["max_restarts"], ray.options["max_task_retries"]) == (1, -1)

    ray.ends["learner 0 call 1"] = "exit code 1"
    workers.look()

    assert ray.alive() == ["learner 0"]
    assert ray.actors[0].calls == [(0,), (0,)]
    ray.ends["learner 0 call 2"] = ConnectionError("The actor died")
    with pytest.raises(RuntimeError, match=r"^learner 0 died, and Ray does not restart it: The actor died$"):
        workers.look()


def test_stopped_worker_is_not_restarted(ray: PaperRay) -> None:
    workers = ranks_of(config(), ranks=1)
    workers.stop("learner 0")
    ray.ends["learner 0 call 1"] = "exit code 1"
    workers.look()
    assert ray.alive() == []
