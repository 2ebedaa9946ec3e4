"""Policies are made by name."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from lightning_ding.policy import DQNConfig, DQNPolicy, create_policy, get_policy_cls
from lightning_ding.registry import POLICY_REGISTRY


@pytest.mark.parametrize("name", ["dqn", "dqn_command"])
def test_create_policy_takes_the_name_with_and_without_command(name: str) -> None:
    policy = create_policy({"type": name, "nstep": 3})
    assert (type(policy), policy.config.nstep) == (DQNPolicy, 3)


def test_create_policy_prefers_a_policy_registered_under_the_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherPolicy(DQNPolicy):
        """Registered with the suffix."""

    monkeypatch.setitem(POLICY_REGISTRY._entries, "dqn_command", OtherPolicy)
    assert get_policy_cls({"type": "dqn_command"}) is OtherPolicy


def test_create_policy_hands_model_and_fields_over() -> None:
    model = nn.Linear(4, 3)
    policy = create_policy({"type": "dqn"}, model=model, enable_field=["eval"])
    assert (policy.model, policy.enable_field) == (model, ("eval",))


def test_create_policy_leaves_its_config_as_it_is() -> None:
    cfg: dict[str, Any] = {"type": "dqn", "import_names": [], "learn": {"batch_size": 3}}
    create_policy(cfg)
    assert cfg == {"type": "dqn", "import_names": [], "learn": {"batch_size": 3}}


def test_create_policy_takes_a_default_config_with_a_type() -> None:
    cfg = DQNPolicy.default_config()
    cfg.type = "dqn"
    assert create_policy(cfg).config == DQNConfig()


def test_get_policy_cls_imports_modules_first() -> None:
    with pytest.raises(ImportError, match="no_such_plugin"):
        get_policy_cls({"type": "dqn", "import_names": ["no_such_plugin"]})


@pytest.mark.parametrize("name", ["dnq", "dnq_command"])
def test_an_unknown_policy_lists_the_known_ones(name: str) -> None:
    with pytest.raises(KeyError, match=r"no policy is registered as 'dnq'; did you mean 'dqn'\? Registered: .*dqn"):
        get_policy_cls({"type": name})


def test_a_policy_config_without_a_type_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"needs a 'type', one of \[.*'dqn'.*\]; got the keys \['nstep'\]"):
        create_policy({"nstep": 3})
