"""The translation of a pair whose policy is a class in DI-engine's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import yaml

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.di_engine.convert import Unnamed, to_recipe, to_yaml
from lightning_ding.di_engine.run import Run
from lightning_ding.di_engine.translate import translate
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY
from tests.toys.reference_policies import PlainDQN, PlainDQNCommand, PlainPG

ENV = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 3, "stop_value": 195}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    POLICY_REGISTRY.register("plain_dqn")(PlainDQN)
    POLICY_REGISTRY.register("plain_dqn_command")(PlainDQNCommand)
    POLICY_REGISTRY.register("plain_pg")(PlainPG)
    yield
    cast(Any, POLICY_REGISTRY)._entries = before


def pair(main: dict[str, Any] | None = None, kind: str = "plain_dqn", **create: Any) -> Any:
    parts = {"env": {"type": "cartpole"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    return {"exp_name": "run", "env": ENV, "policy": main or {}}, deep_merge(parts, create)


def cfg_of(run: Run) -> Any:
    """Return the config that an instance of the run's policy has."""
    return cast(Any, run.policy_class)(run.policy_config)._cfg


def test_keys_reach_the_policy_with_their_names_over_the_config_of_the_class() -> None:
    learn = {"learning_rate": 0.5, "batch_size": 4}
    run = translate(pair({"learn": learn, "collect": {"n_sample": 12}}))
    assert run.policy_config["learn"] == learn
    cfg = cfg_of(run)
    assert (cfg.learn.learning_rate, cfg.learn.update_per_collect, cfg.collect.n_sample) == (0.5, 2, 12)
    assert "policy.learn.batch_size -> self._cfg.learn.batch_size" in run.translated
    assert run.warnings == ()


def test_precedence_is_class_then_create_config_then_main_config() -> None:
    given = {"learn": {"batch_size": 5, "learning_rate": 0.5}, "discount_factor": 0.7}
    cfg = cfg_of(translate(pair({"learn": {"batch_size": 6}}, policy=given)))
    assert (cfg.learn.batch_size, cfg.learn.learning_rate, cfg.discount_factor, cfg.nstep) == (6, 0.5, 0.7, 1)


@pytest.mark.parametrize("kind", ["plain_dqn", "plain_dqn_command"])
def test_class_of_the_command_name_takes_precedence(kind: str) -> None:
    assert translate(pair(kind=kind)).policy_class is PlainDQNCommand
    del cast(Any, POLICY_REGISTRY)._entries["plain_dqn_command"]
    assert translate(pair(kind=kind)).policy_class is PlainDQN


def test_config_decides_whether_the_policy_learns_from_rollouts() -> None:
    replay, rollout = translate(pair()), translate(pair(kind="plain_pg"))
    assert (replay.on_policy, rollout.on_policy) == (False, True)
    assert (replay.datamodule_class, rollout.datamodule_class) == (ReplayDataModule, RolloutDataModule)
    run = translate(pair({"on_policy": True, "collect": {"n_sample": 8}}))
    assert (run.on_policy, run.datamodule_class) == (True, RolloutDataModule)
    assert cast(Any, run.policy_class)(run.policy_config).on_policy


def test_evaluations_are_as_far_apart_as_in_ding() -> None:
    frequent = {"eval": {"evaluator": {"eval_freq": 7}}}
    run = translate(pair(frequent))
    assert (run.data["rounds_per_epoch"], run.eval_every_updates) == (4, None)  # 4 rounds of 2 updates, at least 7
    run = translate(pair(frequent, kind="plain_pg"))
    assert (run.data["rounds_per_epoch"], run.eval_every_updates) == (1, 7)  # a round has an unknown number of updates


def test_learner_section_is_that_of_the_run() -> None:
    hook = {"save_ckpt_after_iter": 80, "log_show_after_iter": 20, "load_ckpt_before_run": "a.ckpt"}
    learner = {"hook": hook, "train_iterations": 5}
    run = translate(pair({"learn": {"learner": learner, "resume_training": True}}))
    assert (run.save_every_n_epochs, run.log_every_n_rounds, run.checkpoint, run.resumes) == (10, 10, "a.ckpt", True)
    assert "learner" not in run.policy_config.get("learn", {})
    assert any("train_iterations has no effect" in line for line in run.warnings)


def test_evaluator_gets_episodes_and_stop_value_of_the_env() -> None:
    run = translate(pair({"eval": {"evaluator": {"n_episode": 9, "stop_value": 1}}}))
    evaluator = cfg_of(run).eval.evaluator
    assert (evaluator.n_episode, evaluator.stop_value, evaluator.fixed_starts) == (3, 195, True)
    assert [line.partition(" = ")[0] for line in run.warnings] == [
        "policy.eval.evaluator.n_episode",
        "policy.eval.evaluator.stop_value",
    ]
    main, create = pair()
    main["env"] = {**ENV, "stop_value": int(1e10)}
    assert cfg_of(translate((main, create))).eval.evaluator.stop_value is None


def test_unroll_len_belongs_to_collecting() -> None:
    assert cfg_of(translate(pair({"unroll_len": 3}))).collect.unroll_len == 3


def test_fault_handling_of_the_env_manager_reaches_the_collector() -> None:
    manager = {"type": "subprocess", "max_retry": 5, "retry_type": "renew"}
    assert translate(pair(env_manager=manager)).policy_config["collect"]["collector"] == {"env_fault": "drop"}


@pytest.mark.parametrize(
    ("policy", "create", "kind"),
    [
        ({}, {}, "naive"),
        ({"priority": True}, {}, "advanced"),
        ({"priority": True}, {"replay_buffer": {"type": "deque", "priority": True}}, "advanced"),
        ({"other": {"replay_buffer": {"max_use": 3}}}, {}, "advanced"),
        ({}, {"replay_buffer": {"type": "advanced", "max_use": float("inf"), "deepcopy": True}}, "naive"),
    ],
)
def test_buffer_is_the_one_that_draws_as_that_of_the_pair(policy: Any, create: Any, kind: str) -> None:
    run = translate(pair(policy, **create))
    assert cast(Any, run.policy_class)(run.policy_config).config.other.replay_buffer.type == kind


@pytest.mark.parametrize(
    ("policy", "warning"),
    [
        ({"learn": {"bach_size": 3}}, "policy.learn.bach_size = 3 is not in PlainDQNCommand.config; did you mean 'po"),
        ({"mine": 3}, "policy.mine = 3 is not in PlainDQNCommand.config"),
        ({"learn": {"learner": {"load_pat": "a"}}}, "policy.learn.learner.load_pat = 'a' is not read; did you mean 'p"),
    ],
)
def test_key_that_the_class_does_not_list_is_a_warning(policy: Any, warning: str) -> None:
    (line,) = translate(pair(policy)).warnings
    assert line.startswith(warning)


def test_unlisted_key_reaches_the_policy_all_the_same() -> None:
    assert cfg_of(translate(pair({"mine": {"size": 3}}))).mine.size == 3


@pytest.mark.parametrize(
    ("policy", "create", "message"),
    [
        ({"eval": {"evaluator": {"eval_frq": 3}}}, {}, "unknown config key 'eval.evaluator.eval_frq'; did you mean"),
        ({"collect": {"collector": {"typ": "sample"}}}, {}, "unknown config key 'collect.collector.typ'"),
        ({"other": {"replay_buffer": {"sise": 3}}}, {}, "unknown config key 'other.replay_buffer.sise'"),
        ({"learn": {"learner": {"hook": {"save_every": 3}}}}, {}, "learn.learner.hook.save_every is no hook"),
        ({"collect": {"n_sample": None}}, {}, "policy.collect.n_sample must be set for PlainDQNCommand, got None"),
        ({"traj_len_inf": True}, {}, "traj_len_inf must be False"),
        ({}, {"collector": {"type": "episode"}}, "create_config.collector.type must be 'sample' for PlainDQNCommand"),
        ({}, {"policy": {"type": "plain_dqm"}}, "create_config.policy.type must be one of dqn, .*, got 'plain_dqm'"),
        ({}, {"evaluator": {"type": "metric"}}, "policy.eval.evaluator.type must be 'interaction' for PlainDQNCommand"),
    ],
)
def test_key_that_cannot_be_used_is_refused_in_one_line(policy: Any, create: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        translate(pair(policy, **create))
    assert "\n" not in str(error.value)


def test_replay_needs_the_size_of_a_minibatch() -> None:
    class Bare(Policy[Any]):
        """A class without a config."""

    POLICY_REGISTRY.register("bare")(Bare)
    with pytest.raises(ValueError, match=r"policy\.learn\.batch_size must be set for Bare, got None"):
        translate(pair({"collect": {"n_sample": 8}}, kind="bare"))
    assert translate(pair({"collect": {"n_sample": 8}, "learn": {"batch_size": 4}}, kind="bare")).policy_class is Bare


def test_recipe_names_the_class_and_yaml_is_refused() -> None:
    run = translate(pair({"learn": {"batch_size": 4}}))
    recipe = to_recipe(run, "recipe")
    assert "from tests.toys.reference_policies import PlainDQNCommand\n" in recipe
    assert "'batch_size': 4" in recipe
    with pytest.raises(Unnamed, match="is in DI-engine's form: `lightning-ding fit` has no list of its keys"):
        to_yaml(run)


def test_class_that_no_module_defines_cannot_be_written() -> None:
    own = type("Own", (PlainDQN,), {"__module__": "_config_file"})
    POLICY_REGISTRY.register("own")(own)
    with pytest.raises(Unnamed, match="must be a class or function of a module that can be imported"):
        to_recipe(translate(pair(kind="own")), "recipe")


def test_yaml_of_the_ten_is_still_written() -> None:
    run = translate(({"env": ENV, "policy": {"collect": {"n_sample": 8}}}, pair(kind="dqn")[1]))
    assert yaml.safe_load(to_yaml(run))["policy"] == "dqn"
