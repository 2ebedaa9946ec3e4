"""The keys of a buffer are in its own config class, which a policy's config section finds by the buffer's type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lightning_ding.config import resolve, to_dict
from lightning_ding.entry.lightning_cli import with_every_key
from lightning_ding.policy import DQNPolicy, RainbowPolicy, create_policy
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer, create_buffer
from lightning_ding.worker.buffer.advanced import AdvancedBufferConfig, LAPReplayBuffer
from lightning_ding.worker.config import ReplayBufferConfig

BUFFERS = [BUFFER_REGISTRY.get(name) for name in BUFFER_REGISTRY]
EVERY_KEY = {key: value for buffer in BUFFERS for key, value in buffer.default_config().items()}
SHARED = {"type", "cfg_type"}


@dataclass(frozen=True)
class TemperedConfig(ReplayBufferConfig):
    temperature: float = 1.0


class TemperedBuffer(NaiveReplayBuffer):
    config_class = TemperedConfig
    config: TemperedConfig


def section(policy: type[Any], **keys: Any) -> Any:
    return policy({"other": {"replay_buffer": keys}}).config.other.replay_buffer


def test_section_of_a_policy_is_of_the_config_class_of_its_buffer() -> None:
    config = section(DQNPolicy, type="advanced", alpha=0.5)
    assert type(config) is AdvancedBufferConfig
    assert (config.alpha, config.replay_buffer_size) == (0.5, 1_000_000)
    assert section(RainbowPolicy, beta=0.5).beta == 0.5


def test_section_without_own_keys_is_read_before_its_buffer_is_registered() -> None:
    assert type(section(DQNPolicy, type="not yet", replay_buffer_size=5)) is ReplayBufferConfig


def test_buffer_has_its_defaults_if_the_section_names_it_only() -> None:
    buffer = create_buffer(ReplayBufferConfig(type="advanced", replay_buffer_size=5))
    assert isinstance(buffer, AdvancedReplayBuffer)
    assert buffer.config == AdvancedBufferConfig(replay_buffer_size=5)


@pytest.mark.parametrize("kind", list(BUFFER_REGISTRY))
def test_saved_config_with_the_defaults_of_all_buffers_still_loads(kind: str) -> None:
    saved = {key: value for key, value in EVERY_KEY.items() if key not in SHARED} | {"type": kind}
    config = section(DQNPolicy, **saved)
    assert set(to_dict(config)) == BUFFER_REGISTRY.get(kind).config_keys | {"type", "import_names"}


@pytest.mark.parametrize("type_", [{}, {"type": "advanced"}])
def test_misspelt_key_of_a_buffer_names_the_nearest_one(type_: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'other.replay_buffer.alhpa'; did you mean 'other.replay_buffer.alpha'\?"):
        section(RainbowPolicy, **type_, alhpa=0.5)


def test_unregistered_buffer_with_own_keys_can_be_made() -> None:
    assert TemperedBuffer({"temperature": 2.0}).config.temperature == 2.0
    assert TemperedBuffer.config_keys == NaiveReplayBuffer.config_keys | {"temperature"}
    with pytest.raises(ValueError, match="unknown config key 'temperatur'; did you mean 'temperature'"):
        TemperedBuffer({"temperatur": 2.0})


def test_keys_of_one_name_have_one_default_because_the_command_line_lists_them_together() -> None:
    for buffer in BUFFERS:
        own = buffer.default_config()
        expected = EVERY_KEY | ({"alpha": 0.4} if buffer is LAPReplayBuffer else {})  # the value that is its name
        assert {key: own[key] for key in own.keys() - SHARED} == {key: expected[key] for key in own.keys() - SHARED}


def test_config_with_every_key_reads_back_as_the_config_of_the_buffer() -> None:
    listed = with_every_key(DQNPolicy.config_class())
    assert set(to_dict(listed.other.replay_buffer)) == EVERY_KEY.keys() - {"cfg_type"}
    assert isinstance(listed, DQNPolicy.config_class)
    assert resolve(DQNPolicy.config_class, to_dict(listed)) == DQNPolicy.config_class()


SAVED = {key: value for key, value in EVERY_KEY.items() if key not in SHARED}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def register(entry: Any) -> None:
        entries = {name: BUFFER_REGISTRY.get(name) for name in BUFFER_REGISTRY}
        monkeypatch.setattr(BUFFER_REGISTRY, "_entries", {**entries, "mine": entry})

    return register


def test_saved_config_of_a_buffer_that_is_not_registered_still_loads() -> None:
    policy = create_policy({"type": "dqn", "other": {"replay_buffer": {**SAVED, "type": "mine"}}})
    assert policy.config.other.replay_buffer == ReplayBufferConfig(type="mine")
    with pytest.raises(KeyError, match="no buffer is registered as 'mine'"):
        create_buffer(policy.config.other.replay_buffer)
    with pytest.raises(KeyError, match="no buffer is registered as 'mine'"):
        section(DQNPolicy, **{**SAVED, "type": "mine", "alpha": 0.5})


def test_defaults_of_a_registered_buffer_do_not_matter_to_others(registered: Callable[[Any], None]) -> None:
    @dataclass(frozen=True)
    class MineConfig(ReplayBufferConfig):
        alpha: float = 0.9

    class Mine(NaiveReplayBuffer):
        config_class = MineConfig

    registered(Mine)
    assert type(section(DQNPolicy, **SAVED)) is ReplayBufferConfig
    assert section(DQNPolicy, **SAVED, type="advanced").alpha == 0.6
    assert section(DQNPolicy, **SAVED, type="mine").alpha == 0.6
    with pytest.raises(ValueError, match=r"'alpha' does nothing in NaiveReplayBuffer, got 0\.7"):
        section(DQNPolicy, alpha=0.7)


def test_registered_function_or_plain_class_does_not_matter_to_others(registered: Callable[[Any], None]) -> None:
    class Plain:
        pass

    for entry in (lambda cfg: NaiveReplayBuffer(), Plain):
        registered(entry)
        assert type(section(DQNPolicy, **SAVED)) is ReplayBufferConfig
        assert section(DQNPolicy, **SAVED, type="mine") == ReplayBufferConfig(type="mine", replay_buffer_size=10_000)
        with_every_key(DQNPolicy.config_class())


@pytest.mark.parametrize("value", [["naive"], 5, None])
def test_type_of_a_wrong_type_is_named_with_its_section(value: Any) -> None:
    with pytest.raises(TypeError, match=r"'other.replay_buffer.type' must be str, got"):
        section(DQNPolicy, type=value, alpha=0.6)


@pytest.mark.parametrize("value", ["json", None, [5]])
def test_import_names_of_a_wrong_type_are_named_with_their_section(value: Any) -> None:
    with pytest.raises(TypeError, match=r"'other.replay_buffer.import_names' must be tuple\[str, ...\], got"):
        section(DQNPolicy, import_names=value, alpha=0.6)


@pytest.mark.parametrize(("key", "meant"), [("burnin", "burn_in"), ("alpah", "alpha"), ("monitor_frq", "monitor_freq")])
def test_misspelt_key_names_the_nearest_one_of_all_buffers(key: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"'other.replay_buffer.{key}'; did you mean 'other.replay_buffer.{meant}'\?"):
        section(DQNPolicy, **{key: 1})


@pytest.mark.parametrize("given", [{}, {"window_seconds": 30.0}, {"push_sample_rate_limit": {"max": None}}])
def test_some_defaults_of_a_nested_key_of_another_buffer_are_accepted(given: dict[str, Any]) -> None:
    assert type(section(DQNPolicy, thruput_controller=given)) is ReplayBufferConfig
    assert NaiveReplayBuffer({"thruput_controller": given}).config == ReplayBufferConfig()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"config key 'alpha' does nothing in NaiveReplayBuffer, got 0\.5; its keys: "):
        section(DQNPolicy, alpha=0.5)
    with pytest.raises(TypeError, match=r"'other.replay_buffer.alpha' must be float, got str: 'low'"):
        section(RainbowPolicy, alpha="low")
    with pytest.raises(ValueError, match="'burn_in' does nothing in NaiveReplayBuffer, got 2; its keys: "):
        section(DQNPolicy, burn_in=2, sequence_length=8)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"window_seconds": 9.0}, ValueError, "'thruput_controller' does nothing in NaiveReplayBuffer, got "),
        ({"window_seconds": 0.0}, ValueError, "thruput_controller.window_seconds must be > 0, got 0.0"),
        ({"window_seconds": "9"}, TypeError, "'other.replay_buffer.thruput_controller.window_seconds' must be float"),
        ({"window": 9.0}, ValueError, "'other.replay_buffer.thruput_controller.window'; did you mean "),
        (5, TypeError, "'other.replay_buffer.thruput_controller' must be ThroughputConfig, got int: 5"),
    ],
)
def test_nested_key_of_another_buffer_is_refused_with_what_is_wrong(
    given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        section(DQNPolicy, thruput_controller=given)
