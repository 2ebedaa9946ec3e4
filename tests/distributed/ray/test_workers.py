"""The actor of the coordinator when Ray restarts it, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.ray import workers
from lightning_ding.distributed.ray.worker_set import not_restarted
from lightning_ding.distributed.ray.workers import CoordinatorActor
from tests.distributed.coordinator.coordinating import config

pytest.importorskip("ray")


@pytest.fixture
def cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ParallelConfig:
    context = SimpleNamespace(was_current_actor_reconstructed=True)
    monkeypatch.setattr(workers, "import_ray", lambda: SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)
    made = config(tmp_path)
    made["system"]["transport"] = "ray"
    return resolve(ParallelConfig, made)


@contextmanager
def restarted(cfg: ParallelConfig) -> Iterator[Any]:
    """Return an actor that Ray has restarted."""
    actor = CoordinatorActor(cfg)
    yield actor
    if actor.mistake() is None:
        actor.close()


def test_coordinator_that_died_before_it_wrote_its_state_begins_the_run(cfg: ParallelConfig) -> None:
    with restarted(cfg) as actor:
        assert actor.mistake() is None


def test_restarted_coordinator_deletes_no_journal_without_a_state(cfg: ParallelConfig, tmp_path: Path) -> None:
    entry = tmp_path / "coordinator" / "journal" / "buffer" / "000000000001_a_0.safetensors"
    entry.parent.mkdir(parents=True)
    entry.touch()
    with restarted(cfg) as actor:
        assert "but not coordinator/run.db" in str(actor.mistake())
    assert entry.exists()


def test_restarted_coordinator_deletes_the_weights_that_were_never_published(
    cfg: ParallelConfig, tmp_path: Path
) -> None:
    with restarted(cfg) as actor:
        published = {"kind": "policy", "name": "a" * 32}
        actor._coordinator.run.weights.publish("main", 1, published)
    files = [tmp_path / "data" / "policy" / f"{name}.safetensors" for name in ("a" * 32, "b" * 32, f".{'c' * 32}")]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.touch()
    with restarted(cfg) as actor:
        assert actor.mistake() is None
    assert [file.exists() for file in files] == [True, False, False]


def test_driver_sets_the_number_of_collecting_tasks_until_the_coordinator_has_written_it(
    cfg: ParallelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with restarted(cfg) as actor:
        asked: list[Any] = []
        answers: Iterator[dict[str, Any]] = iter([{"failed": "no space left"}, {"reply": {}}])

        def handle(*message: Any) -> dict[str, Any]:
            asked.append(message)
            return next(answers)

        monkeypatch.setattr(actor, "handle", handle)
        for number in (3, 3, 3):
            assert actor.look(0.0, number) == {"is_over": False, "line": None}
        assert asked == [("set_collectors", {"n": 3}, [])] * 2


def test_counters_of_a_run_are_metrics_of_ray(cfg: ParallelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.metrics.Gauge", PaperGauge)
    with restarted(cfg) as actor:
        actor._report_at = 0.0
        line = actor.look(0.0, None)["line"]
        assert line.startswith("env step 0, update 0")
        assert actor.look(0.0, None)["line"] is None  # not before ten seconds
    gauges = {name: gauge.value for name, gauge in PaperGauge.made.items()}
    assert gauges.pop("lightning_ding_return_mean") != 0  # not a number before the first episode
    assert gauges.pop("lightning_ding_restarts") == 0
    assert gauges == {f"lightning_ding_{name}": 0 for name in ("env_step", "train_iter", "episode", "collectors")}
    assert {gauge.tags["run"] for gauge in PaperGauge.made.values()} == {cfg.main.exp_name}


class PaperGauge:
    made: dict[str, PaperGauge] = {}  # noqa: RUF012

    def __init__(self, name: str, about: str, tag_keys: tuple[str, ...]) -> None:
        assert tag_keys == ("run",)
        self.made[name] = self

    def set_default_tags(self, tags: dict[str, str]) -> None:
        self.tags = tags

    def set(self, value: float) -> None:
        self.value = value


messages: Any = pytest.importorskip("ray.core.generated.common_pb2")
errors: Any = pytest.importorskip("ray.exceptions")

NODE = "The actor is dead because its node has died. Node Id: 9b5b"


@pytest.mark.parametrize("reason", [NODE, f"{NODE}\n\tthe actor's node was terminated: lagging heartbeats\n"])
def test_error_has_the_reason_that_ray_gives(reason: str) -> None:
    error = errors.ActorDiedError(
        messages.ActorDiedErrorContext(actor_id=bytes(16), class_name="WorkerActor", error_message=reason)
    )
    in_one_line = " ".join(reason.split())
    assert str(not_restarted("learner 0", error)) == f"learner 0 died, and Ray does not restart it: {in_one_line}"


def test_error_without_a_reason_of_ray_is_one_line() -> None:
    text = str(not_restarted("the coordinator", errors.ActorDiedError()))
    assert text == (
        "the coordinator died, and Ray does not restart it: The actor died unexpectedly before finishing this task."
    )
