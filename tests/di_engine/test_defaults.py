"""The tables of DI-engine's defaults: each entry is DI-engine's, has an effect, and none is missing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import deep_merge, resolve
from lightning_ding.di_engine.configs import compile_config, flat, nested
from lightning_ding.di_engine.defaults import ALWAYS_WITHOUT_KEY, DEFAULTS, TEAM_DEFAULTS, WITHOUT_KEY
from lightning_ding.di_engine.keys import KEYS
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import TYPES, pair_of

DING = json.loads(Path(__file__).with_name("ding_defaults.json").read_text())
"""The defaults of DI-engine 0.5.3, which ``make_ding_defaults.py`` read from its source."""
WITHOUT_ENTRY = {"random_collect_size": 0}
"""Defaults that DI-engine's code has where its configs have none."""
EFFECTIVE = {"rainbow": {"other": {"eps": {"start": 0.95}}}}
"""Settings with which the entries of a policy have an effect: a constant epsilon has no shape."""
ENTRIES = [(kind, name) for kind in TYPES for name, _ in flat(DEFAULTS[kind])]


def all_of(kind: str) -> dict[str, Any]:
    """Return DI-engine's defaults of a policy, its network and its buffer."""
    buffer = {f"other.replay_buffer.{name}": value for name, value in DING["buffer"].items()}
    evaluator = {f"eval.evaluator.{name}": value for name, value in DING["evaluator"].items()}
    values: dict[str, Any] = (
        (buffer if kind not in ("a2c", "ppg", "ppo", "pg") else {}) | evaluator | DING["policies"][kind]
    )
    return {name: value for name, value in values.items() if not name.endswith("replay_buffer.type")}


def test_the_table_has_every_policy() -> None:
    assert set(DEFAULTS) == {*TYPES, *TEAM_DEFAULTS} == set(KEYS)
    assert set(TYPES) == set(DING["policies"])  # those of teams have their tests in test_team_keys and test_team_q_keys
    assert len(ENTRIES) >= 60


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_entry_is_the_default_of_ding(kind: str, name: str) -> None:
    expected = DING["policies"][kind] | {k: v for k, v in WITHOUT_ENTRY.items() if k not in DING["policies"][kind]}
    assert dict(flat(DEFAULTS[kind]))[name] == expected[name]


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_entry_changes_the_run(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = translate(pair_of(kind, EFFECTIVE.get(kind)))
    rest = {one: value for one, value in flat(DEFAULTS[kind]) if one != name}
    monkeypatch.setitem(DEFAULTS, kind, nested(rest))
    assert translate(pair_of(kind, EFFECTIVE.get(kind))).policy_config != before.policy_config


@pytest.mark.parametrize("kind", TYPES)
def test_defaults_of_ding_that_are_not_in_the_table_are_ours(kind: str) -> None:
    implied = {"type", "cuda", "multi_gpu", "on_policy", "learn.resume_training", "collect.n_sample"}
    implied |= {"action_space", "model.action_space", "continuous"}  # taken from the env
    keys: dict[str, Any] = {}
    if kind in ("rainbow", "d4pg", "r2d2", "r2d2_gtrxl", "r2d3", "ngu", "dqfd"):  # of prioritised buffers only
        keys["other.replay_buffer.alpha"] = 0.6
    run = translate(pair_of(kind, nested(keys)))
    for name, value in all_of(kind).items():
        if name in implied or name in dict(flat(DEFAULTS[kind])):
            continue
        given = translate(pair_of(kind, nested(keys | {name: value})))
        config_class = run.policy_class.config_class
        assert resolve(config_class, given.policy_config) == resolve(config_class, run.policy_config), name


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind in TYPES for path in WITHOUT_KEY.get(kind, {})])
def test_what_ding_does_without_a_key_differs_from_our_default(kind: str, path: str) -> None:
    config_class: Any = translate(pair_of(kind)).policy_class.config_class
    ours = config_class()
    for part in path.split("."):
        ours = getattr(ours, part)
    assert ours != WITHOUT_KEY[kind][path]


def test_evaluations_begin_with_the_same_seeds_as_in_ding() -> None:
    assert ALWAYS_WITHOUT_KEY == {"eval.evaluator.fixed_starts": True}
    assert all(translate(pair_of(kind)).policy_config["eval"]["evaluator"]["fixed_starts"] for kind in TYPES)


def test_create_config_precedes_defaults_and_main_config_precedes_both() -> None:
    main, create = pair_of("dqn", {"learn": {"batch_size": 1}})
    create["policy"] |= {"learn": {"batch_size": 2, "learning_rate": 0.5}}
    create["replay_buffer"] = {"type": "naive", "replay_buffer_size": 7}
    cfg = compile_config(main, create)
    assert (cfg.policy.learn.batch_size, cfg.policy.learn.learning_rate, cfg.policy.learn.update_per_collect) == (
        1,
        0.5,
        3,
    )
    assert (cfg.policy.other.replay_buffer.type, cfg.policy.other.replay_buffer.replay_buffer_size) == ("naive", 7)
    main = deep_merge(main, {"policy": {"other": {"replay_buffer": {"type": "advanced", "replay_buffer_size": 9}}}})
    assert compile_config(main, create).policy.other.replay_buffer == {"type": "advanced", "replay_buffer_size": 9}


def test_env_has_dings_defaults_and_its_manager() -> None:
    main, create = pair_of("dqn")
    del main["env"]["n_evaluator_episode"]
    main["env"]["manager"] = {"shared_memory": False}
    create["env_manager"] = {"type": "subprocess", "shared_memory": True}
    env = compile_config(main, create).env
    assert (env.stop_value, env.n_evaluator_episode, env.collector_env_num, env.type) == (1e10, 4, 2, "cartpole")
    assert env.manager == {"type": "subprocess", "shared_memory": False}


def test_unroll_len_of_the_policy_replaces_that_of_collect() -> None:
    cfg = compile_config(*pair_of("dqn", {"unroll_len": 3, "collect": {"unroll_len": 2}}))
    assert cfg.policy.collect.unroll_len == 3
    assert "unroll_len" not in cfg.policy


def test_pair_is_not_changed() -> None:
    pair = pair_of("dqn", {"learn": {"batch_size": 5}})
    before = copy.deepcopy(pair)
    compiled = compile_config(*pair)
    compiled.policy.learn.batch_size = 6
    compiled.env.collector_env_num = 99
    translate(pair)
    assert pair == before
    assert DEFAULTS["dqn"]["learn"]["batch_size"] == 64


def test_compiled_config_has_the_seed_and_the_name() -> None:
    main, create = pair_of("dqn")
    cfg = compile_config(main, create, seed=3)
    assert (cfg.seed, cfg.exp_name) == (3, "run")
    del main["exp_name"]
    assert compile_config(main, create).exp_name == "default_experiment"


def test_unknown_policy_names_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"policy.type must be one of dqn, .*got 'mbpo'"):
        compile_config(*pair_of("mbpo"))


def test_create_config_may_have_dings_name() -> None:
    main, create = pair_of("dqn")
    assert compile_config(main, create_cfg=create, auto=True, seed=3) == compile_config(main, create, seed=3)


class Worker:
    """A class."""


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        (
            (Worker, Worker, Worker),
            {},
            "classes of compile_config must be left out: create_config names",
        ),
        ((), {"policy": Worker, "env": None}, "serial_pipeline takes an env and a network of your own as env"),
        ((), {}, "create_cfg must be a create_config, with auto=True, got None"),
        (
            (pair_of("dqn")[1],),
            {"save_cfg": True},
            "save_cfg must be False: serial_pipeline and the other entries",
        ),
        ((pair_of("dqn")[1],), {"auto": False}, "create_cfg must be a create_config, with auto=True"),
    ],
)
def test_other_ways_of_compiling_name_the_replacement(positional: Any, named: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compile_config(pair_of("dqn")[0], *positional, **named)
    with pytest.raises(TypeError, match="compile_config has no argument 'policyy'; did you mean 'policy'"):
        compile_config(*pair_of("dqn"), policyy=Worker)
