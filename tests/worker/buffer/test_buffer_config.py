"""The keys of a buffer are in its own config class, which a policy's config section finds by the buffer's type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lightning_ding.config import resolve, to_dict
from lightning_ding.entry.lightning_cli import with_every_key
from lightning_ding.policy import DQNPolicy, RainbowPolicy
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker import AdvancedReplayBuffer, NaiveReplayBuffer, create_buffer
from lightning_ding.worker.buffer.advanced import AdvancedBufferConfig
from lightning_ding.worker_config import ReplayBufferConfig

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


def test_key_of_another_buffer_is_refused_in_the_section_of_a_policy() -> None:
    with pytest.raises(ValueError, match=r"config key 'alpha' does nothing in NaiveReplayBuffer, got 0\.5; its keys: "):
        section(DQNPolicy, alpha=0.5)


@pytest.mark.parametrize("type_", [{}, {"type": "advanced"}])
def test_misspelt_key_of_a_buffer_names_the_nearest_one(type_: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'other.replay_buffer.alhpa'; did you mean 'other.replay_buffer.alpha'\?"):
        section(RainbowPolicy, **type_, alhpa=0.5)


def test_value_of_a_wrong_type_is_named_with_its_section() -> None:
    with pytest.raises(TypeError, match=r"'other.replay_buffer.alpha' must be float, got str: 'low'"):
        section(RainbowPolicy, alpha="low")


def test_unregistered_buffer_with_own_keys_can_be_made() -> None:
    assert TemperedBuffer({"temperature": 2.0}).config.temperature == 2.0
    assert TemperedBuffer.config_keys == NaiveReplayBuffer.config_keys | {"temperature"}
    with pytest.raises(ValueError, match="unknown config key 'temperatur'; did you mean 'temperature'"):
        TemperedBuffer({"temperatur": 2.0})


def test_keys_of_one_name_have_one_default_because_the_command_line_lists_them_together() -> None:
    for buffer in BUFFERS:
        own = buffer.default_config()
        assert {key: own[key] for key in own.keys() - SHARED} == {key: EVERY_KEY[key] for key in own.keys() - SHARED}


def test_config_with_every_key_reads_back_as_the_config_of_the_buffer() -> None:
    listed = with_every_key(DQNPolicy.config_class())
    assert set(to_dict(listed.other.replay_buffer)) == EVERY_KEY.keys() - {"cfg_type"}
    assert isinstance(listed, DQNPolicy.config_class)
    assert resolve(DQNPolicy.config_class, to_dict(listed)) == DQNPolicy.config_class()
