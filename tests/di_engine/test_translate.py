"""A translated run apart from the keys of its policy: files, sections, devices, hooks, policies and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from easydict import EasyDict
from torch import nn

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.di_engine.serial import make, make_object
from lightning_ding.di_engine.shared_keys import Notes
from lightning_ding.di_engine.translate import translate
from lightning_ding.di_engine.world_model import pop_world_model
from lightning_ding.policy import DQNPolicy, Policy, TD3Policy
from lightning_ding.registry import MODEL_REGISTRY, POLICY_REGISTRY
from lightning_ding.worker.learner.builtin_hooks import SaveCkptHook
from tests.di_engine.pairs import OFFLINE, ON_POLICY, TYPES, pair_of, small_pair

FILE = """
main_config = dict(exp_name="from_file", env=dict(collector_env_num=2, evaluator_env_num=1), policy=dict(nstep=2))
create_config = dict(env=dict(type="cartpole"), env_manager=dict(type="base"), policy=dict(type="dqn"))
"""


@pytest.mark.parametrize("kind", TYPES)
def test_run_has_the_policy_and_the_datamodule_of_its_type(kind: str) -> None:
    run = translate(pair_of(kind), seed=3)
    policy = "r2d2" if kind == "r2d2_gtrxl" else kind
    assert run.policy_class is POLICY_REGISTRY.get(policy)
    other = OfflineDataModule if kind in OFFLINE else ReplayDataModule
    assert run.datamodule_class is (RolloutDataModule if kind in ON_POLICY else other)
    assert (run.policy, run.family, run.seed, run.data["seed"]) == (policy, kind, 3, 3)


def test_config_file_is_run_and_read(tmp_path: Path) -> None:
    file = tmp_path / "cartpole_dqn_config.py"
    file.write_text(FILE)
    for source in (file, str(file)):
        run = translate(source)
        assert (run.exp_name, run.policy_config["nstep"]) == ("from_file", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [("main_config = {}", "but has no create_config"), ("create_config = {}", "but has no main_config")],
)
def test_config_file_must_define_both(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        translate(file)


@pytest.mark.parametrize("name", ["missing.py", "config.yaml"])
def test_file_that_is_no_config_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"a Python file with main_config and create_config, got .*{name}"):
        translate(tmp_path / name)


def test_pair_may_be_a_list_of_easydicts() -> None:
    assert (
        translate([EasyDict(part) for part in pair_of("dqn")]).policy_config == translate(pair_of("dqn")).policy_config
    )


@pytest.mark.parametrize("source", [7, None, ("a", "b")])
def test_source_of_another_type_is_refused(source: Any) -> None:
    with pytest.raises(TypeError, match="input_cfg must be the path of a config file or a pair"):
        translate(source)


@pytest.mark.parametrize(("key", "why"), [("rnd_reward_model", "only ngu has them"), ("learner", "describe a dist")])
def test_sections_of_other_pipelines_are_refused_with_the_reason(key: str, why: str) -> None:
    main, create = pair_of("dqn")
    with pytest.raises(ValueError, match=f"main_config.{key} has no counterpart: {why}"):
        translate((main | {key: {}}, create))
    with pytest.raises(ValueError, match=f"create_config.{key} has no counterpart"):
        translate((main, create | {key: {}}))


def test_unknown_section_names_the_nearest() -> None:
    main, create = pair_of("dqn")
    with pytest.raises(ValueError, match=r"unknown section 'main_config.policies'; did you mean 'policy'\?"):
        translate((main | {"policies": {}}, create))
    with pytest.raises(ValueError, match="main_config must have the section 'policy'"):
        translate(({"env": {}}, create))


def test_command_names_are_those_of_the_policies() -> None:
    main, create = pair_of("dqn")
    assert translate((main, deep_merge(create, {"policy": {"type": "dqn_command"}}))).policy == "dqn"


def test_modules_of_ding_are_not_imported_and_others_are() -> None:
    main, create = pair_of("dqn")
    translate((main, deep_merge(create, {"policy": {"import_names": ["ding.policy.dqn", "dizoo.x"]}})))
    with pytest.raises(ImportError, match="cannot import 'no_such_module'"):
        translate((main, deep_merge(create, {"policy": {"import_names": ["no_such_module"]}})))


@pytest.fixture
def own_policy() -> Any:
    class OwnTD3(TD3Policy):
        """A policy of a user."""

    POLICY_REGISTRY.register("own_td3")(OwnTD3)
    yield OwnTD3
    POLICY_REGISTRY._entries.pop("own_td3")


def test_registered_subclass_has_the_keys_and_defaults_of_its_base(own_policy: type[Policy[Any]]) -> None:
    main, create = pair_of("td3", {"collect": {"n_sample": 4}})
    run = translate((main, deep_merge(create, {"policy": {"type": "own_td3"}})))
    assert (run.policy_class, run.family) == (own_policy, "td3")
    assert run.policy.endswith("OwnTD3")
    assert run.policy_config["random_collect_size"] == 25_000


@MODEL_REGISTRY.register("tiny_test_network")
class TinyNetwork(nn.Module):
    """A network of a user."""

    def __init__(self, obs_shape: int, action_shape: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_shape, width), nn.Linear(width, action_shape))

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logit": self.layers(obs)}


def test_registered_network_gets_the_arguments_of_the_model_section() -> None:
    model = {"type": "tiny_test_network", "obs_shape": 4, "action_shape": 2, "width": 5}
    policy, _ = make(translate(pair_of("dqn", {"model": model})))
    assert isinstance(policy.model, TinyNetwork)
    assert policy.model.layers[0].out_features == 5


# ---------------------------------------------------------------------------------------------------- the Trainer


def test_cuda_without_a_gpu_trains_on_the_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = translate(pair_of("dqn", {"cuda": True}))
    assert run.warnings == ("policy.cuda = True, but there is no GPU: training on the CPU",)
    assert run.trainer == {"accelerator": "auto", "max_epochs": -1, "devices": 1}


def test_cuda_with_a_gpu_is_not_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert translate(pair_of("dqn", {"cuda": True})).warnings == ()
    assert translate(pair_of("dqn", {"cuda": False})).trainer["accelerator"] == "cpu"


def test_several_gpus_train_with_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    trainer = translate(pair_of("dqn", {"multi_gpu": True})).trainer
    assert (trainer["strategy"], trainer["devices"], trainer["num_nodes"]) == ("ddp", 4, 1)


def test_ranks_of_torchrun_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    trainer = translate(pair_of("dqn")).trainer
    assert (trainer["strategy"], trainer["devices"], trainer["num_nodes"]) == ("ddp", 4, 2)


def options_of(run: Any, name: str) -> Any:
    return next((one["init_args"] for one in run.callbacks if one["class_path"].endswith(f".{name}")), None)


def test_hooks_become_callbacks() -> None:
    hook = {"log_show_after_iter": 100, "save_ckpt_after_iter": 1000}
    learn = {"update_per_collect": 5, "learner": {"hook": hook}}
    run = translate(pair_of("dqn", {"learn": learn, "eval": {"evaluator": {"eval_freq": 50}}}))
    assert options_of(run, "MetricsLogger") == {"log_every_n_rounds": 20}
    assert options_of(run, "RunCheckpoint") == {"dirpath": "run/ckpt", "every_n_epochs": 20}
    assert options_of(run, "BestCheckpoint") == {"dirpath": "run/ckpt"}
    assert run.logger["init_args"] == {"save_dir": "run", "name": "log", "version": "serial"}


def test_hooks_have_dings_defaults() -> None:
    run = translate(pair_of("ddpg", {"eval": {"evaluator": {"eval_freq": 1000}}}))
    assert options_of(run, "MetricsLogger") == {"log_every_n_rounds": 100}
    assert options_of(run, "RunCheckpoint")["every_n_epochs"] == 10


def test_checkpoint_to_start_from_is_loaded_without_counters() -> None:
    learner = {"hook": {"load_ckpt_before_run": "a.pth.tar"}}
    run = translate(pair_of("dqn", {"learn": {"learner": learner}}))
    assert (options_of(run, "InitialWeights"), run.resumes) == ({"path": "a.pth.tar"}, False)
    run = translate(pair_of("dqn", {"learn": {"learner": learner, "resume_training": True}}))
    assert (options_of(run, "InitialWeights"), run.resumes, run.checkpoint) == (None, True, "a.pth.tar")


def test_end_of_a_run_is_always_saved() -> None:
    run = translate(pair_of("dqn", {"learn": {"learner": {"hook": {"save_ckpt_after_run": False}}}}))
    assert run.warnings == (
        "policy.learn.learner.hook.save_ckpt_after_run = False has no effect: a run always saves its end",
    )


SAVE = {"type": "save_ckpt", "position": "after_iter", "ext_args": {"freq": 5}}


def test_hook_in_full_form_is_a_callback_with_its_arguments() -> None:
    hook = {"mine": {**SAVE, "priority": 7}, "other": {**SAVE, "name": "second"}}
    run = translate(pair_of("dqn", {"learn": {"learner": {"hook": hook}}}))
    first, second = [make_object(one) for one in run.callbacks if one["class_path"] is SaveCkptHook]
    assert (first.name, first.priority, first.position, first.freq) == ("mine", 7, "after_iter", 5)
    assert (second.name, second.priority) == ("second", 100)
    assert "policy.learn.learner.hook.mine -> the callback SaveCkptHook" in run.translated
    assert run.warnings == ()


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        ({"mine": 5}, ValueError, r"policy\.learn\.learner\.hook\.mine is no hook of a learner: give a mapping"),
        ({"mine": {"position": "after_iter"}}, KeyError, "the learner hook 'mine' needs a 'type'"),
        ({"mine": {**SAVE, "type": "save_ckp"}}, KeyError, "did you mean 'save_ckpt'"),
        ({"mine": {**SAVE, "prio": 3}}, ValueError, "unknown key 'prio' of the learner hook 'mine'"),
    ],
)
def test_hook_that_cannot_be_made_is_named(hook: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        translate(pair_of("dqn", {"learn": {"learner": {"hook": hook}}}))


def test_modules_of_the_learner_register_its_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """from lightning_ding.worker import LearnerHook, register_learner_hook
class FromModule(LearnerHook):
    def __call__(self, engine): ...
register_learner_hook("of_a_module", FromModule)
"""
    (tmp_path / "module_of_a_hook.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    hook = {"mine": {"type": "of_a_module", "position": "before_run"}}
    learner = {"import_names": ["module_of_a_hook"], "hook": hook}
    run = translate(pair_of("dqn", {"learn": {"learner": learner}}))
    assert run.callbacks[-1]["class_path"].__name__ == "FromModule"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, ""),
        ({"load_path": "a"}, "a"),
        ({"load_path": "a", "learn": {"learner": {"load_path": "b"}}}, "b"),
    ],
)
def test_checkpoint_of_eval_is_read_from_both_places(policy: dict[str, Any], expected: str) -> None:
    assert translate(pair_of("dqn", policy)).evaluated == expected


def test_envs_and_their_limits_reach_the_datamodule() -> None:
    main, create = small_pair("dqn", stop_value=195)
    run = translate((main, create | {"env_manager": {"type": "subprocess"}}), max_env_step=77)
    found = {name: run.data[name] for name in ("num_envs", "evaluator_env_num", "mode", "stop_value", "max_env_step")}
    expected = {"num_envs": 2, "evaluator_env_num": 2, "mode": "async", "stop_value": 195, "max_env_step": 77}
    assert (found, run.data["n_evaluator_episode"]) == (expected, 2)


def test_evaluation_envs_render_for_the_videos_of_the_evaluator() -> None:
    render = {"eval": {"evaluator": {"render": {"render_freq": 10, "mode": "train_iter"}}}}
    assert translate(pair_of("dqn", render)).data["eval_env_kwargs"]["render_mode"] == "rgb_array"
    assert "render_mode" not in translate(pair_of("dqn", render)).data.get("env_kwargs", {})
    assert "render_mode" not in translate(pair_of("dqn")).data.get("eval_env_kwargs", {})


def test_stop_value_that_is_never_reached_is_left_out() -> None:
    assert "stop_value" not in translate(pair_of("dqn")).data
    assert "stop_value" not in translate(pair_of("dqn", stop_value=int(1e10))).data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [0, 1]}, r"seed must be a whole number >= 0, got \[0, 1\]"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"max_train_iter": "5"}, "max_train_iter must be a whole number >= 1, got '5'"),
        ({"max_env_step": 0.5}, "max_env_step must be a whole number >= 1, got 0.5"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        translate(pair_of("dqn"), **arguments)


def test_limits_may_be_whole_floats() -> None:
    assert translate(pair_of("dqn"), max_env_step=1e4).data["max_env_step"] == 10_000  # type: ignore[arg-type]


def test_same_seed_for_every_episode_is_refused() -> None:
    assert translate(pair_of("dqn"), dynamic_seed=True).data == translate(pair_of("dqn")).data
    with pytest.raises(ValueError, match="dynamic_seed must be None or True"):
        translate(pair_of("dqn"), dynamic_seed=False)


def test_defaults_are_left_out_of_the_config() -> None:
    run = translate(pair_of("dqn", {"model": {"dueling": True}, "learn": {"ignore_done": False}}))
    assert "dueling" not in run.policy_config["model"]
    assert "ignore_done" not in run.policy_config["learn"]
    assert DQNPolicy(run.policy_config).config.model.dueling


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="lightning-ding parallel"):
        translate((*pair_of("dqn"), {}))
    with pytest.raises(ValueError, match=r"type must be one of dqn, .* got 'mbsac'"):
        translate(pair_of("mbsac"))
    with pytest.raises(TypeError, match=r"'learn.batch_size' must be int, got str"):
        translate(pair_of("dqn", {"learn": {"batch_size": "64"}}))


def test_a_number_of_iterations_that_only_distributed_runs_read_is_named() -> None:
    run = translate(pair_of("dqn", {"learn": {"learner": {"train_iterations": 10}}}))
    text = "policy.learn.learner.train_iterations has no effect: max_train_iter limits the updates of a serial run"
    assert text in run.warnings


def test_a_seed_in_the_config_that_another_one_replaces_is_named() -> None:
    main, create = pair_of("dqn")
    assert "seed = 5 has no effect: the seed of the run is 1" in translate(({**main, "seed": 5}, create), 1).warnings
    assert not any(line.startswith("seed") for line in translate(({**main, "seed": 5}, create), 5).warnings)


def dyna(**world_model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pair of dizoo's pendulum_sac_mbpo_config.py, with fewer keys."""
    schedule = {"type": "linear", "rollout_start_step": 2000, "rollout_end_step": 15_000}
    schedule |= {"rollout_length_min": 1, "rollout_length_max": 5}
    network = {"ensemble_size": 5, "elite_size": 3, "state_size": 3, "hidden_size": 100, "use_decay": True}
    section = {"train_freq": 100, "cuda": False, "rollout_length_scheduler": schedule, "model": network, **world_model}
    section["other"] = {"rollout_batch_size": 10_000, "imagination_buffer": {"replay_buffer_size": 600_000}}
    model = {"obs_shape": 3, "action_shape": 1}
    policy = {"random_collect_size": 1000, "model": model, "learn": {"auto_alpha": False}, "collect": {"n_sample": 1}}
    main = {"exp_name": "dyna", "env": {"collector_env_num": 2, "evaluator_env_num": 1}, "policy": policy}
    create = {"env": {"type": "mbpendulum"}, "policy": {"type": "sac"}, "world_model": {"type": "mbpo"}}
    create |= {"replay_buffer": {"type": "naive"}, "imagination_buffer": {"type": "elastic"}}
    return main | {"world_model": section}, create


def test_sac_with_the_world_model_mbpo_is_mbpo() -> None:
    run = translate(dyna(), entry="dyna")
    assert run.policy == "mbpo"
    config: Any = run.policy_class(run.policy_config).config
    dynamics, rollout = config.dynamics, config.rollout
    assert (dynamics.ensemble_num, dynamics.elite_num, dynamics.fit_freq) == (5, 3, 100)
    assert list(dynamics.hidden_size_list) == [100] * 4
    assert dynamics.weight_decay == 5e-5
    assert dynamics.terminated_fn == "lightning_ding.rl.dynamics.never_terminated"
    assert (rollout.batch_size, rollout.deterministic, rollout.retain) == (10_000, True, 4)
    assert [list(point) for point in rollout.length] == [[2000, 1], [15_000, 5]]
    assert config.learn.real_ratio == 0.05
    assert any("imagination_buffer.replay_buffer_size = 600000 has no effect" in line for line in run.warnings)
    constant = {"type": "constant", "rollout_length": 3}
    policy = translate(dyna(rollout_length_scheduler=constant), entry="dyna").policy_config
    assert policy["rollout"]["length"] == [[0, 3]]


@pytest.mark.parametrize(
    ("env_id", "name"),
    [("Hopper-v4", "hopper"), ("Walker2d-v5", "walker2d"), ("HopperBulletEnv-v0", None), ("Ant-v4", None)],
)
def test_the_end_of_an_episode_in_a_world_model_is_that_of_the_same_env(env_id: str, name: str | None) -> None:
    found: Any = pop_world_model(*dyna(), "sac", env_id, Notes())
    assert found["dynamics"]["terminated_fn"] == (name and f"lightning_ding.rl.dynamics.{name}_terminated")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "ddppo"}, "create_config.world_model.type must be 'mbpo'"),
        (
            {"type": "mbpo", "gradient_model": True},
            r"world_model must be one with the keys .* got \['gradient_model'\]",
        ),
    ],
)
def test_another_world_model_is_refused(change: dict[str, Any], message: str) -> None:
    main, create = dyna()
    with pytest.raises(ValueError, match=message):
        translate((main, create | {"world_model": change}))
    with pytest.raises(ValueError, match=r"create_config.policy.type must be 'sac' with"):
        translate((main, create | {"policy": {"type": "td3"}}))
