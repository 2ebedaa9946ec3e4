"""Classes of workers that are written for DI-engine work, and ours take its names of arguments and of attributes."""

# mypy: disable-error-code="assignment, misc, override"

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from easydict import EasyDict

from lightning_ding.registry import BUFFER_REGISTRY, SERIAL_COLLECTOR_REGISTRY
from lightning_ding.worker import (
    BattleEpisodeSerialCollector,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    IBuffer,
    ISerialCollector,
    SampleSerialCollector,
    create_buffer,
    create_serial_collector,
    get_serial_collector_cls,
)
from tests.worker.collector.battle_toys import relay_env
from tests.worker.collector.by_env_toys import ByEnvPolicy
from tests.worker.collector.sampling_toys import counting_envs

BATTLE = [BattleSampleSerialCollector, BattleEpisodeSerialCollector]
KINDS = [SampleSerialCollector, EpisodeSerialCollector, *BATTLE]


class OwnCollector(ISerialCollector):
    """A collector with the methods that DI-engine asks for, and nothing of the base class."""

    config: ClassVar[dict[str, Any]] = {"collect_print_freq": 7, "amount": 1}

    def __init__(self, cfg: Any, env: Any = None, policy: Any = None) -> None:
        self.made_with = (cfg.amount, env, policy)

    def reset_env(self, _env: Any = None) -> None:
        self.env = _env

    def reset_policy(self, _policy: Any = None) -> None:
        self.policy = _policy

    def reset(self, _policy: Any = None, _env: Any = None) -> None:
        self.reset_env(_env)

    def collect(self, per_collect_target: Any) -> Any:
        return [per_collect_target]

    @property
    def envstep(self) -> int:
        return 5


class OwnBuffer(IBuffer):
    """A buffer with the methods that DI-engine asks for."""

    config: ClassVar[dict[str, Any]] = {"type": "own", "size": 3}

    def __init__(self, cfg: Any, tb_logger: Any = None, exp_name: str = "run", instance_name: str = "buffer") -> None:
        self.size, self.name, self.data = cfg.size, instance_name, []  # type: ignore[var-annotated]

    def push(self, data: Any, cur_collector_envstep: int) -> None:
        self.data.append(data)

    def sample(self, batch_size: int, cur_learner_iter: int) -> Any:
        return self.data[-batch_size:]

    def _nothing(self, *_: Any) -> Any:
        return None

    update = clear = count = save_data = load_data = state_dict = load_state_dict = _nothing


def test_own_collector_needs_only_the_methods_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERIAL_COLLECTOR_REGISTRY._entries, "own", OwnCollector)
    cfg = OwnCollector.default_config()
    cfg.amount = 2

    collector: Any = create_serial_collector(EasyDict(cfg, type="own"), env=1, policy=2)

    assert (cfg.cfg_type, OwnCollector.config["amount"]) == ("OwnCollectorDict", 1)
    assert (collector.made_with, collector.collect(3), collector.envstep) == ((2, 1, 2), [3], 5)
    collector.close()


def test_own_buffer_needs_only_the_methods_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUFFER_REGISTRY._entries, "own", OwnBuffer)
    cfg = OwnBuffer.default_config()
    cfg.size = 4

    buffer: Any = create_buffer(cfg, None, "run", "agent")

    assert (cfg.cfg_type, OwnBuffer.config["size"], buffer.size, buffer.name) == ("OwnBufferDict", 3, 4, "agent")
    buffer.push({"obs": 1}, 0)
    assert buffer.sample(1, 0) == [{"obs": 1}]
    with pytest.raises(NotImplementedError, match="OwnBuffer must implement drop_episodes"):
        buffer.drop_episodes([0])


@pytest.mark.parametrize("registry", [SERIAL_COLLECTOR_REGISTRY, BUFFER_REGISTRY])
def test_every_class_has_its_defaults_as_a_plain_dict(registry: Any) -> None:
    for name in registry:
        worker = registry.get(name)
        assert type(worker.config) is dict
        assert worker.config == dict(worker.default_config())
        worker.config["type"] = "changed"
        assert worker.config["type"] == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_of_di_engine_makes_the_collector(kind: Any) -> None:
    cfg = EasyDict(deepcopy_obs=False, transform_obs=False, collect_print_freq=50, cfg_type=f"{kind.__name__}Dict")
    cfg.type = kind.registry.name_of(kind)

    assert get_serial_collector_cls(cfg) is kind
    assert create_serial_collector(cfg).config.collect_print_freq == 50


@pytest.mark.parametrize("kind", KINDS)
def test_resets_take_the_names_of_di_engine(kind: Any) -> None:
    def env() -> Any:
        return relay_env() if kind in BATTLE else counting_envs()

    mode = ByEnvPolicy(n_sample=3, n_episode=3).collect_mode
    policy = [mode, mode] if kind in BATTLE else mode
    collector = kind(kind.default_config(), env(), policy, None, "run", "collector")

    collector.reset_env(_env=env())
    collector.reset_policy(_policy=policy)
    collector.collect()
    collector.envstep = 1000
    assert collector.envstep == 1000
    collector.reset(_policy=policy, _env=env())
    assert collector.envstep == 0
    collector.reset()
    collector.collect()
    collector.close()
    collector.close()
