"""The number of collectors over Ray, with a cluster that exists only on paper."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.distributed.ray import collectors as module
from lightning_ding.distributed.ray.collectors import Collectors


class NoAnswerError(Exception):
    """An answer that does not come, because the coordinator is being restarted."""


class PaperRay:
    """A cluster with nodes of some CPUs, whose answers come at once."""

    exceptions = type("exceptions", (), {"RayError": NoAnswerError})

    def __init__(self, **cpus: int) -> None:
        self.cpus = cpus

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.cpus.values()))}

    def nodes(self) -> list[dict[str, Any]]:
        return [*({"NodeID": name, "Alive": True} for name in self.cpus), {"NodeID": "gone", "Alive": False}]

    def wait(self, refs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return refs, []

    def get(self, ref: Any) -> Any:
        if ref == "lost":
            raise NoAnswerError
        return ref


class PaperSet:
    """Records what is started and stopped."""

    def __init__(self) -> None:
        self.needed: dict[str, bool] = {}
        self.strategies: dict[str, Any] = {}
        self.where: dict[str, str | None] = {}

    def start(self, name: str, role: str, needs: Any, is_needed: bool, scheduling_strategy: Any) -> None:
        assert (role, needs) == ("collector", {"CPU": 1})
        self.needed[name] = is_needed
        self.strategies[name] = scheduling_strategy
        self.where[name] = None

    def stop(self, name: str) -> None:
        del self.where[name]

    def node(self, name: str) -> str | None:
        return self.where[name]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> PaperRay:
    paper = PaperRay(head=2, a=2)
    monkeypatch.setattr(module, "import_ray", lambda: paper)
    return paper


@pytest.fixture
def workers() -> PaperSet:
    return PaperSet()


def test_fixed_number_of_collectors_is_in_one_group_that_is_spread_over_the_nodes(
    ray: PaperRay, workers: PaperSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Any] = []
    monkeypatch.setattr(module, "make_group", lambda *group: group)
    monkeypatch.setattr(module, "in_bundle", lambda group, index: (group, index))
    monkeypatch.setattr(module, "remove_group", removed.append)
    collectors = Collectors(workers, 2, None, lambda number: pytest.fail("it is fixed"))  # type: ignore[arg-type]

    collectors.start()
    ray.cpus["b"] = 8
    collectors.look()
    collectors.close()

    group = ({"CPU": 1}, 2, "SPREAD")
    assert workers.strategies == {"collector 1": (group, 0), "collector 2": (group, 1)}
    assert workers.needed == {"collector 1": True, "collector 2": True}
    assert removed == [group]


def test_number_of_collectors_follows_the_cluster_and_those_of_a_dead_node_end_first(
    ray: PaperRay, workers: PaperSet
) -> None:
    asked: list[int] = []

    def set_tasks(number: int) -> Any:
        asked.append(number)
        return {"reply": {}} if len(asked) != 2 else "lost"

    collectors = Collectors(workers, 2, 2, set_tasks)  # type: ignore[arg-type]
    collectors.start()
    collectors.look()
    assert asked == [2]
    assert workers.needed == {"collector 1": True, "collector 2": False}
    assert set(workers.strategies.values()) == {"SPREAD"}

    ray.cpus["b"] = 2
    for _ in range(3):  # the first answer is lost, and the second one is there
        collectors.look()
    assert list(workers.where) == ["collector 1", "collector 2", "collector 3", "collector 4"]
    assert asked == [2, 4, 4]

    workers.where = {"collector 1": "gone", "collector 2": "a", "collector 3": "a", "collector 4": None}
    del ray.cpus["b"]
    for _ in range(3):
        collectors.look()
    assert list(workers.where) == ["collector 2", "collector 3"]
    assert asked == [2, 4, 4, 2]


def test_one_collector_is_left_however_small_the_cluster_is(ray: PaperRay, workers: PaperSet) -> None:
    collectors = Collectors(workers, 2, 2, lambda number: {"reply": {}})  # type: ignore[arg-type]
    collectors.start()
    workers.where = dict.fromkeys(workers.where, "a")

    ray.cpus = {"a": 1}
    collectors.look()

    assert list(workers.where) == ["collector 1"]  # the newest one ends first
