"""The interfaces of collectors, evaluators and buffers: the methods that a subclass must implement."""

from __future__ import annotations

import pytest

from lightning_ding.registry import BUFFER_REGISTRY, SERIAL_COLLECTOR_REGISTRY, SERIAL_EVALUATOR_REGISTRY, Registry
from lightning_ding.worker import (
    IBuffer,
    InteractionSerialEvaluator,
    ISerialCollector,
    ISerialEvaluator,
    create_serial_collector,
    create_serial_evaluator,
)
from lightning_ding.worker.base import Worker

CONTRACTS = {
    ISerialCollector: {"collect", "reset_env", "reset_policy"},
    ISerialEvaluator: {"env", "eval", "reset_env", "run"},
    IBuffer: {
        *("clear", "count", "load_data", "load_state_dict", "push", "sample", "save_data", "state_dict", "update"),
    },
}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_incomplete_worker_cannot_be_made(contract: type[Worker]) -> None:
    incomplete = type("Incomplete", (contract,), {})
    assert contract.__abstractmethods__ >= CONTRACTS[contract]
    with pytest.raises(TypeError, match="abstract method"):
        incomplete()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_worker_is_a_context_that_closes_itself(contract: type[Worker]) -> None:
    closed: list[Worker] = []
    members = dict.fromkeys(contract.__abstractmethods__)
    worker = type("Complete", (contract,), {**members, "close": lambda self: closed.append(self)})()
    with worker as entered:
        assert (entered, closed) == (worker, [])
    assert closed == [worker]


@pytest.mark.parametrize("registry", [SERIAL_COLLECTOR_REGISTRY, SERIAL_EVALUATOR_REGISTRY, BUFFER_REGISTRY])
def test_default_config_of_every_worker_makes_that_worker(registry: Registry[type[Worker]]) -> None:
    names = list(registry)
    assert len(names) >= 3
    for name in names:
        worker = registry.get(name)
        config = worker.default_config()
        assert (config.type, config.cfg_type) == (name, f"{worker.__name__}Dict")
        assert set(config) - {"type", "import_names", "cfg_type"} == worker.config_keys
        assert worker.resolve_config(config).type == name


def test_worker_cannot_be_made_without_a_config_that_has_a_type() -> None:
    with pytest.raises(KeyError, match="config needs a 'type', one of"):
        create_serial_collector(None)
    with pytest.raises(TypeError, match="config must be a dataclass or a mapping, got str"):
        create_serial_collector("sample")

    assert isinstance(create_serial_evaluator(None), InteractionSerialEvaluator)


@pytest.mark.parametrize("registry", [SERIAL_COLLECTOR_REGISTRY, SERIAL_EVALUATOR_REGISTRY, BUFFER_REGISTRY])
def test_default_config_shares_nothing_with_the_next_one(registry: Registry[type[Worker]]) -> None:
    worker = registry.get(next(iter(registry)))
    worker.default_config().type = "changed"
    assert worker.default_config().type != "changed"
