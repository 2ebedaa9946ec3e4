"""The number of collectors over Ray, with a cluster that exists only on paper."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.distributed.ray import collectors as module
from lightning_ding.distributed.ray.collectors import Collectors


class PaperRay:
    """A cluster with nodes of some CPUs, whose answers come at once."""

    def __init__(self, **cpus: int) -> None:
        self.cpus = cpus

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(sum(self.cpus.values()))}

    def nodes(self) -> list[dict[str, Any]]:
        return [*({"NodeID": name, "Alive": True} for name in self.cpus), {"NodeID": "gone", "Alive": False}]


class PaperSet:
    """Records what is started and stopped."""

    def __init__(self) -> None:
        self.needed: dict[str, bool] = {}
        self.strategies: dict[str, Any] = {}
        self.where: dict[str, str | None] = {}

    def reserve(self, *group: Any) -> list[Any]:
        return [(group, index) for index in range(group[1])]

    def start(self, name: str, role: str, needs: Any, strategies: Any, is_needed: bool) -> None:
        assert (role, needs) == ("collector", {"CPU": 1})
        self.needed[name] = is_needed
        (self.strategies[name],) = strategies
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
    ray: PaperRay, workers: PaperSet
) -> None:
    collectors = Collectors(workers, 2, 2)  # type: ignore[arg-type]

    collectors.start()
    ray.cpus["b"] = 8

    assert collectors.look() is None
    group = ({"CPU": 1}, 2, "SPREAD")
    assert workers.strategies == {"collector 1": (group, 0), "collector 2": (group, 1)}
    assert workers.needed == {"collector 1": True, "collector 2": True}


def test_number_of_collectors_follows_the_cluster_and_those_of_a_dead_node_end_first(
    ray: PaperRay, workers: PaperSet
) -> None:
    collectors = Collectors(workers, None, 2)  # type: ignore[arg-type]
    collectors.start()
    assert collectors.look() == 2
    assert workers.needed == {"collector 1": True, "collector 2": False}
    assert set(workers.strategies.values()) == {"SPREAD"}

    ray.cpus["b"] = 2
    assert collectors.look() == 4
    assert list(workers.where) == ["collector 1", "collector 2", "collector 3", "collector 4"]

    workers.where = {"collector 1": "gone", "collector 2": "a", "collector 3": "a", "collector 4": None}
    del ray.cpus["b"]
    assert collectors.look() == 2
    assert list(workers.where) == ["collector 2", "collector 3"]


def test_one_collector_is_left_however_small_the_cluster_is(ray: PaperRay, workers: PaperSet) -> None:
    collectors = Collectors(workers, None, 2)  # type: ignore[arg-type]
    collectors.start()
    workers.where = dict.fromkeys(workers.where, "a")

    ray.cpus = {"a": 1}

    assert collectors.look() == 1
    assert list(workers.where) == ["collector 1"]  # the newest one ends first
