"""The version with which workers and coordinator recognise each other."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from lightning_ding import __version__
from lightning_ding.distributed import messages as module
from lightning_ding.distributed.coordinator.schema import COLUMNS
from lightning_ding.distributed.messages import fields_of, fingerprint, schema, version
from lightning_ding.distributed.transport import MESSAGES
from lightning_ding.policy.dqn import DQNConfig
from lightning_ding.registry import POLICY_REGISTRY


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
