"""Sections of DI-engine's env managers, as modes of vector envs."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.di_engine.env_manager import MODES, NOT_NEEDED, translate_manager


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("base", "sync"),
        ("base_v2", "sync"),
        ("subprocess", "async"),
        ("subprocess_v2", "async"),
        ("async_subprocess", "async"),
        ("gym_vector", "async"),
        ("env_pool", "async"),
    ],
)
def test_each_type_has_a_mode(kind: str, mode: str) -> None:
    managed = translate_manager({"type": kind, "cfg_type": "SomethingDict"})
    assert managed.mode == mode
    assert managed.translated == [f"env_manager.type {kind!r} -> mode {mode!r}"]
    assert (managed.datamodule, managed.collector, managed.warnings) == ({}, {}, [])
    assert len(MODES) == 7


def test_without_a_section_envs_are_stepped_in_this_process() -> None:
    assert translate_manager({}).mode == "sync"


@pytest.mark.parametrize(
    ("limits", "env_timeout"),
    [
        ({"step_timeout": 5}, (None, 5)),
        ({"reset_timeout": 60.5, "step_timeout": 5}, (60.5, 5)),
        ({"step_timeout": None}, (None, None)),
    ],
)
def test_time_limits_are_those_of_env_processes(limits: dict[str, Any], env_timeout: Any) -> None:
    managed = translate_manager({"type": "subprocess", **limits})
    assert managed.datamodule == {"env_timeout": env_timeout}
    assert managed.warnings == []


def test_time_limits_without_processes_are_a_warning() -> None:
    managed = translate_manager({"type": "base", "step_timeout": 5, "reset_timeout": None})
    assert managed.datamodule == {}
    assert len(managed.warnings) == 1
    assert "env.manager.step_timeout has no effect with the env manager 'base'" in managed.warnings[0]


def test_no_time_limits_without_processes_are_no_warning() -> None:
    assert translate_manager({"type": "base", "step_timeout": None}).warnings == []


def test_retries_drop_the_episode_of_an_env_that_fails() -> None:
    managed = translate_manager({"type": "subprocess", "max_retry": 3, "retry_type": "renew"})
    assert managed.collector == {"env_fault": "drop"}
    assert "max_retry 3 -> collect.collector.env_fault 'drop'" in managed.translated[1]
    assert managed.warnings == []


def test_one_attempt_raises_the_error_of_an_env() -> None:
    managed = translate_manager({"type": "subprocess", "max_retry": 1, "retry_waiting_time": 5})
    assert managed.collector == {}


def test_the_time_between_attempts_is_a_warning() -> None:
    managed = translate_manager({"max_retry": 2, "retry_waiting_time": 5})
    assert managed.warnings == ["env.manager.retry_waiting_time has no effect: an env that fails restarts at once"]


@pytest.mark.parametrize("name", sorted(NOT_NEEDED))
def test_an_entry_without_counterpart_says_why_it_is_not_needed(name: str) -> None:
    managed = translate_manager({"type": "subprocess", name: 7})
    assert managed.translated[1] == f"env.manager.{name} 7 -> not needed: {NOT_NEEDED[name]}"
    assert managed.warnings == []


def test_a_misspelt_entry_is_a_warning_with_the_right_name() -> None:
    warning = translate_manager({"type": "subprocess", "shard_memory": True}).warnings[0]
    assert "env.manager.shard_memory has no effect" in warning
    assert "did you mean 'shared_memory'?" in warning


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "supervisor"}, r"env_manager.type must be one of \['async_subprocess', .*got 'supervisor'"),
        ({"episode_num": 8}, "env.manager.episode_num must be inf; max_env_step limits a run, got 8"),
        ({"auto_reset": False}, "env.manager.auto_reset must be True"),
        ({"max_retry": 0}, "env.manager.max_retry must be an int >= 1, got 0"),
        ({"retry_type": "restart"}, "env.manager.retry_type must be 'reset' or 'renew', got 'restart'"),
        ({"step_timeout": -1}, "env.manager.step_timeout must be > 0 seconds or None, got -1"),
    ],
)
def test_what_cannot_be_done_raises(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate_manager(section)
