"""Hooks of a learner that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback

from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker import BaseLearner, build_learner_hook_by_cfg, register_learner_hook
from lightning_ding.worker.learner import LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from lightning_ding.worker.learner.config import HookConfig
from tests.worker.learner.toy_hooks import POSITIONS, NoteHook, hook, names


def test_default_config_makes_the_hooks_that_report_and_save() -> None:
    hooks = build_learner_hook_by_cfg(HookConfig())

    assert names(hooks) == {
        "before_run": [],
        "after_run": ["save_ckpt_after_run"],
        "before_iter": [],
        "after_iter": ["log_show", "save_ckpt_after_iter"],
    }


def test_short_keys_make_the_built_in_hooks_with_their_priorities() -> None:
    cfg = {
        "save_ckpt_after_iter": 30,
        "log_reduce_after_iter": True,
        "load_ckpt_before_run": "some.pth.tar",
        "log_show_after_iter": 7,
        "save_ckpt_after_run": True,
    }
    hooks = build_learner_hook_by_cfg(cfg)

    made = [(type(one), one.name, one.priority, one.position) for of_one in hooks.values() for one in of_one]
    assert made == [
        (LoadCkptHook, "load_ckpt", 20, "before_run"),
        (SaveCkptHook, "save_ckpt_after_run", 20, "after_run"),
        (LogReduceHook, "log_reduce_after_iter", 10, "after_iter"),
        (SaveCkptHook, "save_ckpt_after_iter", 20, "after_iter"),
        (LogShowHook, "log_show", 20, "after_iter"),
    ]
    _, save, show = hooks["after_iter"]
    assert (save.freq, show.freq, hooks["before_run"][0].load_path) == (30, 7, Path("some.pth.tar"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("off", [False, None])
@pytest.mark.parametrize(
    "key", ["log_show_after_iter", "save_ckpt_after_iter", "save_ckpt_after_run", "log_reduce_after_iter"]
)
def test_false_switches_a_hook_off(key: str, off: Any) -> None:
    assert not any(build_learner_hook_by_cfg({key: off}).values())


def test_false_switches_every_hook_of_the_config_section_off() -> None:
    section = HookConfig(log_show_after_iter=False, save_ckpt_after_iter=False, save_ckpt_after_run=False)

    assert not any(build_learner_hook_by_cfg(section).values())


def test_no_config_makes_no_hooks_at_any_position() -> None:
    assert names(build_learner_hook_by_cfg(None)) == {position: [] for position in POSITIONS}


def test_empty_path_loads_nothing() -> None:
    assert build_learner_hook_by_cfg({"load_ckpt_before_run": ""})["before_run"] == []


def test_full_form_names_everything() -> None:
    cfg = {"mine": {"type": "save_ckpt", "name": "x", "position": "after_iter", "priority": 3, "ext_args": {"freq": 4}}}
    (one,) = build_learner_hook_by_cfg(cfg)["after_iter"]

    assert isinstance(one, SaveCkptHook)
    assert (one.name, one.priority, one.freq) == ("x", 3, 4)


def test_full_form_takes_its_key_for_a_name_and_100_for_a_priority() -> None:
    (one,) = build_learner_hook_by_cfg({"mine": {"type": "log_show", "position": "after_iter"}})["after_iter"]

    assert (one.name, one.priority) == ("mine", 100)


def test_short_key_takes_the_full_form_too() -> None:
    cfg = {"log_show_after_iter": {"type": "log_show", "position": "after_iter", "priority": 50}}

    assert [one.priority for one in build_learner_hook_by_cfg(cfg)["after_iter"]] == [50]


def test_config_section_takes_further_hooks() -> None:
    section = HookConfig(custom={"mine": {"type": "log_show", "position": "after_iter", "priority": 1}})

    assert names(build_learner_hook_by_cfg(section))["after_iter"] == ["mine", "log_show", "save_ckpt_after_iter"]


@pytest.mark.parametrize(
    ("cfg", "error", "message"),
    [
        ({"save_ckpt_after_itr": 5}, ValueError, "unknown learner hook 'save_ckpt_after_itr'; did you mean 'save_ckpt"),
        ({"mine": {"typ": "log_show"}}, ValueError, "unknown key 'typ' of the learner hook 'mine'; did you mean 'typ"),
        ({"mine": {"position": "after_iter"}}, KeyError, "the learner hook 'mine' needs a 'type'"),
        ({"mine": {"type": "log_show"}}, KeyError, "the learner hook 'mine' needs a 'position'"),
        ({"mine": {"type": "log_sho", "position": "after_iter"}}, KeyError, "did you mean 'log_show'"),
        ({"log_show_after_iter": 0}, ValueError, "ext_args.freq must be a number of updates >= 1, got 0"),
        ({"save_ckpt_after_iter": True}, ValueError, "ext_args.freq must be a number of updates >= 1, got True"),
        ({"save_ckpt_after_run": 5}, TypeError, "'save_ckpt_after_run' must be True or False, got 5"),
        ({"load_ckpt_before_run": 5}, ValueError, "ext_args.load_path must be the path of a file, got 5"),
    ],
)
def test_config_that_means_no_hook_is_an_error_that_says_why(cfg: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        build_learner_hook_by_cfg(cfg)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"log_show_after_iter": 0}, "hook.log_show_after_iter must be >= 1, or False or None"),
        ({"save_ckpt_after_iter": -3}, "hook.save_ckpt_after_iter must be >= 1, or False or None"),
        ({"custom": {"save_ckpt_after_run": {}}}, "hook.custom must be names other than the short keys"),
        ({"custom": {"mine": 3}}, "hook.custom.mine must be a mapping with a 'type', got 3"),
        ({"save_ckpt_after_itr": 3}, "unknown config key 'hook.save_ckpt_after_itr'; did you mean"),
    ],
)
def test_config_section_refuses_what_means_no_hook(section: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BaseLearner({"hook": section})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SaveCkptHook(ext_args={"frq": 3}),
            "unknown ext_args key 'frq' of SaveCkptHook at after_iter; did",
        ),
        (lambda: SaveCkptHook(position="after_run", ext_args={"freq": 3}), "unknown ext_args key 'freq'.*at after_run"),
        (lambda: SaveCkptHook(position="after_run", ext_args={"freq": 0}), "unknown ext_args key 'freq'.*at after_run"),
        (lambda: SaveCkptHook(position="before_iter"), "position must be after_iter or after_run for SaveCkptHook"),
        (lambda: LogShowHook(position="before_iter"), "position must be after_iter for LogShowHook"),
        (lambda: LogReduceHook(position="after_run"), "position must be after_iter for LogReduceHook"),
        (lambda: LogReduceHook(ext_args={"freq": 1}), "unknown ext_args key 'freq' of LogReduceHook"),
        (lambda: LoadCkptHook(position="after_run", ext_args={"load_path": "x"}), "position must be before_run"),
        (lambda: LoadCkptHook(ext_args={"path": "x"}), "unknown ext_args key 'path'.*; did you mean 'load_path'?"),
        (lambda: LoadCkptHook(), "ext_args.load_path must be the path of a file, got None"),
    ],
)
def test_built_in_hook_refuses_arguments_without_effect(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_register_learner_hook_lets_a_config_name_the_class() -> None:
    class Mine(NoteHook):
        pass

    register_learner_hook("mine_for_a_test", Mine)

    (one,) = build_learner_hook_by_cfg({"a": {"type": "mine_for_a_test", "position": "before_run"}})["before_run"]
    assert type(one) is Mine


@pytest.mark.parametrize("given", [type, Callback, "save_ckpt", hook()])
def test_register_learner_hook_refuses_other_types(given: Any) -> None:
    with pytest.raises(TypeError, match="cls must be a subclass of LearnerHook, got"):
        register_learner_hook("wrong", given)


def test_register_learner_hook_replaces_a_class_only_with_force_overwrite() -> None:
    class Other(SaveCkptHook):
        pass

    with pytest.raises(ValueError, match="the learner hook name 'save_ckpt' is taken"):
        register_learner_hook("save_ckpt", Other)
    try:
        register_learner_hook("save_ckpt", Other, force_overwrite=True)
        (one,) = build_learner_hook_by_cfg({"save_ckpt_after_run": True})["after_run"]
    finally:
        register_learner_hook("save_ckpt", SaveCkptHook, force_overwrite=True)
    assert type(one) is Other  # the short key is looked up when it is used
    assert LEARNER_HOOK_REGISTRY.get("save_ckpt") is SaveCkptHook
