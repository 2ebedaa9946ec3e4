"""Adding a transport: its own module, and its name or its dotted path in the config."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lightning_ding import __version__, distributed
from lightning_ding.config import resolve
from lightning_ding.di_engine.naive_collector import finish_info
from lightning_ding.distributed import NaiveCollector, messages as module, transport as transports
from lightning_ding.distributed.comm_worker.collector import CommCollector
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.coordinator.schema import COLUMNS
from lightning_ding.distributed.messages import fields_of, fingerprint, schema, version
from lightning_ding.distributed.transport import MESSAGES, TRANSPORTS, get_transport
from lightning_ding.entry.coordinate import coordinate
from lightning_ding.entry.parallel import parallel_pipeline
from lightning_ding.policy.dqn import DQNConfig
from lightning_ding.registry import POLICY_REGISTRY
from tests.distributed.coordinator.coordinating import POLICY
from tests.distributed.toy_transport import SocketChannel, SocketTransport
from tests.processes import ROOT

TOY = "tests.distributed.toy_transport.SocketTransport"


def config(folder: Path, **system: Any) -> ParallelConfig:
    commander = {"type": "naive"}
    return resolve(
        ParallelConfig,
        {
            "main": {"exp_name": str(folder), "policy": POLICY, "max_env_step": 20},
            "system": {"transport": TOY, "coordinator": {"commander": commander, "tolerance": 1e6}, **system},
        },
    )


def test_run_over_a_toy_transport_ends_with_the_data_of_its_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(transports.TRANSPORTS, "toy", TOY)  # the registry line
    threads: list[int] = []
    monkeypatch.setattr("lightning_ding.entry.coordinate.torch.set_num_threads", threads.append)
    cfg = config(tmp_path, transport="toy")
    transport = get_transport("toy")
    transport.make_secret(cfg)
    coordinating = threading.Thread(target=coordinate, args=(cfg,))
    coordinating.start()
    while not (tmp_path / "coordinator.json").exists():
        assert coordinating.is_alive()
        time.sleep(0.01)
    collector = NaiveCollector(channel=transport.connect(cfg))
    assert collector.start() == 0
    coordinating.join(timeout=60)
    assert not coordinating.is_alive()
    assert threads[0] == 1  # each thread of a server would start others
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["env_step"], result["counters"]["sample"], result["error"]) == (20, 20, None)


def test_transport_is_found_by_its_name_or_its_dotted_path() -> None:
    assert isinstance(get_transport(TOY), SocketTransport)
    assert [get_transport(name).runs_alone for name in TRANSPORTS] == [False, True]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("flask", r"must be one of 'flask_fs', 'ray', or a dotted path, got 'flask'; did you mean 'flask_fs'\?"),
        ("tests.distributed.toy_transport.SocketServer", r"must lead to a Transport, got 'tests\..*SocketServer'"),
    ],
)
def test_transport_that_does_not_exist_is_named(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^system.transport {reason}"):
        get_transport(name)


@pytest.mark.parametrize("worker", [CommCollector, CommLearner])
def test_worker_connects_over_the_transport_of_the_config(worker: Any, tmp_path: Path) -> None:
    assert isinstance(worker(config(tmp_path))._make_channel(), SocketChannel)


@pytest.mark.parametrize("name", ["FlaskFileSystemCollector", "FlaskFileSystemLearner", "RayCollector", "RayLearner"])
def test_worker_of_one_transport_can_be_pickled(name: str) -> None:
    worker = getattr(distributed, name)
    assert pickle.loads(pickle.dumps(worker)) is worker
    assert worker.__qualname__ == name
    assert worker.__doc__.startswith("A BaseComm")


@pytest.mark.parametrize("episodes", [0, 3])
def test_summary_of_invented_episodes(episodes: int) -> None:
    info = finish_info(episodes)
    assert (info["real_episode_count"], info["reward_raw"]) == (episodes, [1.0] * episodes)
    assert (info["avg_step_per_episode"], info["avg_sample_per_episode"]) == (1.0, 1.0)
    assert (info["reward_mean"], info["reward_std"]) == (1.0, 0.0)


def test_only_the_registry_and_its_own_folder_name_a_transport() -> None:
    names = re.compile(r"distributed\.(flask_fs|ray)\b|[\"'](flask_fs|ray)[\"']")
    package = ROOT / "lightning_ding"
    naming = {
        file.relative_to(package).as_posix()
        for folder in ("distributed", "entry")
        for file in (package / folder).rglob("*.py")
        if names.search(file.read_text()) and file.parent.name not in ("flask_fs", "ray")
    }
    assert naming == {
        "distributed/__init__.py",  # exports
        "distributed/config.py",  # the default
        "distributed/transport.py",  # the registry
    }


@pytest.mark.slow
def test_processes_of_a_run_meet_over_a_toy_transport(tmp_path: Path) -> None:
    system = {"coordinator": {"commander": {"eval_interval": None}}, "collector": {"num": 1}}
    cfg = config(tmp_path, **system, learner={"validate": False, "trainer": {"accelerator": "cpu"}})
    result = parallel_pipeline(cfg)
    assert result["env_step"] >= 20
    assert result["error"] is None


def test_version_is_that_of_the_package_and_a_fingerprint() -> None:
    assert re.fullmatch(re.escape(__version__) + r"\+[0-9a-f]{12}", version())
    assert version() == f"{__version__}+{fingerprint(schema())}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCHEMA", -1), ("MESSAGES", MESSAGES[1:]), ("COLUMNS", (*COLUMNS, "extra")), ("PARTS", ("model",))],
)
def test_fingerprint_differs_if_messages_columns_or_weights_differ(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(schema())
    monkeypatch.setattr(module, name, value)
    assert fingerprint(schema()) != before


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherConfig(DQNConfig):
    discount_factor: float = 0.5


def test_fingerprint_differs_if_the_default_of_a_policy_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(schema())
    monkeypatch.setattr(POLICY_REGISTRY.get("dqn"), "config_class", OtherConfig)
    assert fingerprint(schema()) != before


def test_fields_are_those_of_all_sections() -> None:
    fields = fields_of(DQNConfig)
    assert fields["discount_factor"] == ["float", "0.99"]
    assert fields["learn"]["batch_size"] == ["int", "128"]
    assert fields["other"]["replay_buffer"].keys() >= {"type", "replay_buffer_size"}
