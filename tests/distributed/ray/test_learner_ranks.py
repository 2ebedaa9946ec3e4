"""The ranks of a learner over Ray, with actors that exist only on paper."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import learner_ranks as module
from lightning_ding.distributed.ray.learner_ranks import (
    LearnerRanks,
    needs_of_learner,
    number_of_ranks,
    with_a_device_for_each_actor as split,
)


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
    """Records that it was killed; its calls end as the test decides."""

    def __init__(self, name: str, ends: dict[str, Any]) -> None:
        self.name = name
        self.is_killed = False
        self.open_store = self.run_rank = self
        self._ends = ends

    def remote(self, *arguments: Any) -> str:
        if arguments:
            _, ranks, address = arguments
            assert (ranks, address) == (2, f"{self.name.rpartition('.')[0]}.0")
        return self.name


class PaperRay:
    """Actors whose calls end when ``ends`` holds an answer for their name."""

    exceptions = type("exceptions", (), {"RayError": RuntimeError})

    def __init__(self) -> None:
        self.ends: dict[str, Any] = {}
        self.actors: list[PaperActor] = []

    def make(self, cfg: Any, role: str, name: str, needs: Any, scheduling_strategy: Any) -> PaperActor:
        self.actors.append(PaperActor(name, self.ends))
        return self.actors[-1]

    def kill(self, actor: PaperActor) -> None:
        actor.is_killed = True

    def wait(self, refs: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        return [ref for ref in refs if ref in self.ends], []

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
    monkeypatch.setattr(module, "make_worker", paper.make)
    monkeypatch.setattr(module, "why_ended", paper.why)
    monkeypatch.setattr(module, "make_group", lambda *group: group)
    monkeypatch.setattr(module, "in_bundle", lambda group, index: (group, index))
    return paper


class NoPending:
    """Waits for nothing."""

    def add(self, name: str, actor: Any, needs: Any) -> None:
        pass


def ranks_of(cfg: ParallelConfig) -> LearnerRanks:
    """Return two ranks that were started."""
    found = LearnerRanks(cfg, 2, NoPending())  # type: ignore[arg-type]
    found.start()
    return found


@pytest.mark.parametrize("end", ["exit code 1", RuntimeError("its node died")])
def test_all_ranks_are_restarted_when_one_of_them_ends(ray: PaperRay, end: Any) -> None:
    ranks = ranks_of(config())
    ranks.look()
    assert ray.alive() == ["learner 0.0", "learner 0.1"]

    ray.ends["learner 0.1"] = end
    ranks.look()

    assert ray.alive() == ["learner 1.0", "learner 1.1"]


def test_ranks_that_are_restarted_too_often_end_the_run(ray: PaperRay) -> None:
    ranks = ranks_of(config(restarts=1))
    ray.ends |= {"learner 0.0": "exit code 1", "learner 1.0": "exit code 3"}

    ranks.look()
    with pytest.raises(RuntimeError, match=r"^the learner was restarted 1 times: rank 0 .* ended: exit code 3$"):
        ranks.look()


def test_ranks_are_not_restarted_after_rank_zero_has_ended_well(ray: PaperRay) -> None:
    ranks = ranks_of(config())

    ray.ends["learner 0.0"] = None
    ranks.look()
    ray.ends["learner 0.1"] = "exit code 1"  # the others lose their connection to it
    ranks.look()

    assert ray.alive() == ["learner 0.0", "learner 0.1"]
