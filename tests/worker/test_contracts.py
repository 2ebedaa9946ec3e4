"""The interfaces of collectors, evaluators and buffers: the methods that a subclass must implement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import to_dict
from lightning_ding.registry import (
    BUFFER_REGISTRY,
    COMM_COLLECTOR_REGISTRY,
    COMM_LEARNER_REGISTRY,
    SERIAL_COLLECTOR_REGISTRY,
    SERIAL_EVALUATOR_REGISTRY,
    Registry,
)
from lightning_ding.worker import (
    AdvancedReplayBuffer,
    BattleEpisodeSerialCollector,
    BattleInteractionSerialEvaluator,
    BattleSampleSerialCollector,
    EpisodeReplayBuffer,
    EpisodeSerialCollector,
    HERReplayBuffer,
    IBuffer,
    InteractionSerialEvaluator,
    ISerialCollector,
    ISerialEvaluator,
    LAPReplayBuffer,
    MetricSerialEvaluator,
    NaiveReplayBuffer,
    PrioritisedSequenceReplayBuffer,
    SampleSerialCollector,
    SequenceReplayBuffer,
    create_comm_collector,
    create_comm_learner,
    create_serial_collector,
    create_serial_evaluator,
    get_buffer_cls,
    get_serial_collector_cls,
)
from lightning_ding.worker.base import Worker
from lightning_ding.worker.buffer.imagination import ImaginationReplayBuffer
from lightning_ding.worker.config import CollectorConfig, ReplayBufferConfig
from lightning_ding.worker.evaluator.config import EvaluatorConfig

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


COMMON_KEYS = {
    "CollectorConfig": {"collect_print_freq", "env_fault", "deepcopy_obs", "transform_obs"},
    "EvaluatorConfig": {"eval_freq", "stop_value"},
    "ReplayBufferConfig": {"replay_buffer_size", "frame_stack", "memmap_dir", "enable_track_used_data", "monitor_freq"},
}
OF_EPISODES = {"n_episode", "fixed_starts", "max_episode_steps"}
OF_PRIORITIES = {"alpha", "beta", "anneal_step", "anneal_unit", "max_use", "max_staleness", "thruput_controller"}
OF_SEQUENCES = {"sequence_length", "burn_in"}
KEYS: dict[type[Worker], set[str]] = {
    SampleSerialCollector: set(),
    EpisodeSerialCollector: {"get_train_sample", "reward_shaping"},
    BattleSampleSerialCollector: set(),
    BattleEpisodeSerialCollector: {"get_train_sample"},
    InteractionSerialEvaluator: {*OF_EPISODES, "figure_path", "render"},
    BattleInteractionSerialEvaluator: OF_EPISODES,
    MetricSerialEvaluator: set(),
    NaiveReplayBuffer: set(),
    ImaginationReplayBuffer: set(),
    AdvancedReplayBuffer: OF_PRIORITIES,
    LAPReplayBuffer: OF_PRIORITIES,
    SequenceReplayBuffer: OF_SEQUENCES,
    PrioritisedSequenceReplayBuffer: OF_PRIORITIES | OF_SEQUENCES,
    EpisodeReplayBuffer: OF_SEQUENCES,
    HERReplayBuffer: {"her_replay_k", "her_strategy"},
}
FAMILIES: list[tuple[Registry[type[Worker]], Any, Any]] = [
    (SERIAL_COLLECTOR_REGISTRY, get_serial_collector_cls, CollectorConfig),
    (SERIAL_EVALUATOR_REGISTRY, create_serial_evaluator, EvaluatorConfig),
    (BUFFER_REGISTRY, get_buffer_cls, ReplayBufferConfig),
]
EACH_FAMILY = pytest.mark.parametrize(("registry", "find", "config_class"), FAMILIES)


def own_names(registry: Registry[type[Worker]]) -> list[str]:
    """Return the names of the package's workers; other test files may have registered theirs in this process."""
    return [name for name in registry if registry.get(name).__module__.startswith("lightning_ding.")]


@EACH_FAMILY
def test_default_config_of_every_worker_makes_that_worker(
    registry: Registry[type[Worker]], find: Any, config_class: Any
) -> None:
    for name in own_names(registry):
        worker = registry.get(name)
        default = worker.default_config()
        assert (default.type, default.cfg_type) == (name, f"{worker.__name__}Dict")
        keys = COMMON_KEYS[config_class.__name__] | KEYS[worker]
        assert set(default) - {"type", "import_names", "cfg_type"} == worker.config_keys == keys
        assert default.items() >= {k: v for k, v in to_dict(config_class()).items() if k in keys}.items()
        for config in (default, {"type": name}, config_class(type=name)):
            found = find(config)
            assert (found if isinstance(found, type) else type(found)) is worker


@EACH_FAMILY
def test_type_that_is_unknown_or_cannot_be_imported_is_named(
    registry: Registry[type[Worker]], find: Any, config_class: Any
) -> None:
    first = min(registry)
    with pytest.raises(KeyError, match=rf"is registered as '{first}x'; did you mean '{first}'\? Registered: .*{first}"):
        find({"type": f"{first}x"})
    with pytest.raises(ImportError, match="cannot import 'no_such_module'"):
        find({"type": first, "import_names": ["no_such_module"]})
    with pytest.raises(ValueError, match="unknown config key 'typ'; did you mean 'type'"):
        registry.get(first)({"typ": first})  # type: ignore[call-arg]
    if find is not create_serial_evaluator:
        with pytest.raises(KeyError, match=rf"config needs a 'type', one of .*'{first}'.*; got the keys"):
            find({"import_names": []})


def test_keys_of_another_worker_are_refused() -> None:
    for worker, keys in KEYS.items():
        family = next(config_class for registry, _, config_class in FAMILIES if worker in map(registry.get, registry))
        same = [registry.get(n) for registry, _, c in FAMILIES if c is family for n in own_names(registry)]
        others = set().union(*(KEYS[one] for one in same))
        for key in sorted(others - keys - {"burn_in"}):
            with pytest.raises(ValueError, match=f"config key '{key}' does nothing in {worker.__name__}, got"):
                worker({**NEEDED.get(worker, {}), key: NOT_DEFAULT.get(key, True)})  # type: ignore[call-arg]


NEEDED: dict[type[Worker], dict[str, Any]] = {SequenceReplayBuffer: {"sequence_length": 4}}
NEEDED[PrioritisedSequenceReplayBuffer] = NEEDED[SequenceReplayBuffer]
NOT_DEFAULT: dict[str, Any] = {
    **{"alpha": 0.1, "beta": 0.1, "anneal_step": 3, "anneal_unit": "env_step", "max_use": 2, "max_staleness": 2},
    **{"thruput_controller": {"window_seconds": 3.0}, "sequence_length": 5, "her_replay_k": 7, "her_strategy": "final"},
    **{"n_episode": 3, "figure_path": "x", "render": {"render_freq": 5}, "max_episode_steps": 3},
}


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


KINDS = [
    (COMM_COLLECTOR_REGISTRY, "COMM_COLLECTOR_REGISTRY", create_comm_collector),
    (COMM_LEARNER_REGISTRY, "COMM_LEARNER_REGISTRY", create_comm_learner),
]


@pytest.mark.parametrize(("registry", "name", "create"), KINDS)
def test_comm_worker_is_made_by_the_module_that_its_config_imports(
    registry: Registry[Any],
    name: str,
    create: Callable[[Any], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"my_{name.lower()}"
    source = f"from lightning_ding.registry import {name}\n\n@{name}.register('wire')\nclass Wire:\n"
    (tmp_path / f"{module}.py").write_text(source + "    def __init__(self, cfg): self.port = cfg['port']\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert create({"type": "wire", "import_names": [module], "port": 7}).port == 7
        with pytest.raises(KeyError, match=r"is registered as 'wier'; did you mean 'wire'\?"):
            create({"type": "wier"})
    finally:
        registry._entries.pop("wire", None)
        sys.modules.pop(module, None)


@pytest.mark.parametrize(("registry", "name", "create"), KINDS)
def test_comm_worker_without_a_type_is_refused(
    registry: Registry[Any], name: str, create: Callable[[Any], Any]
) -> None:
    with pytest.raises(KeyError, match=f"a {registry.kind} config needs a 'type'"):
        create({"port": 7})
