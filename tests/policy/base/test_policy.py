"""Config, building, modes, attributes and states of every policy, tested on DQN."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.testing import assert_close

from lightning_ding import policy as policies
from lightning_ding.policy import CommandModePolicy, DQNConfig, DQNPolicy, Policy, PPOPolicy, QLearningPolicy
from lightning_ding.policy.base.config import LearnConfig
from lightning_ding.policy.base.optimizers import OptimizerConfig
from tests.policy.base.small_dqn import CFG, make_batch, make_policy, weights

OBS_SPACE, ACTION_SPACE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)


# Config


@pytest.mark.parametrize("base", [Policy, QLearningPolicy])
def test_a_base_class_has_no_default_config(base: type[Policy[Any]]) -> None:
    with pytest.raises(RuntimeError, match=f"{base.__name__} is a base class and has no default config"):
        base.default_config()


def test_every_config_class_of_the_policies_takes_keywords_only() -> None:
    files = Path(next(iter(policies.__path__))).rglob("*.py")
    names = {"lightning_ding.policy." + one.stem for one in files if one.parent.name == "policy"}
    modules = [import_module(name) for name in [*names, LearnConfig.__module__, OptimizerConfig.__module__]]
    found = {one for module in modules for one in vars(module).values() if dataclasses.is_dataclass(one)}
    own = {one for one in found if one.__module__.startswith("lightning_ding.policy.")}
    sections = [one for one in own if isinstance(one, type) and one.__name__.endswith("Config")]
    assert len(sections) >= 45
    assert {one for one in sections if not all(field.kw_only for field in dataclasses.fields(one))} == set()
    with pytest.raises(TypeError, match="positional"):
        DQNConfig(True)  # type: ignore[call-arg]


def test_the_default_config_names_its_policy() -> None:
    assert DQNPolicy.default_config().cfg_type == "DQNPolicyDict"


def test_the_default_config_makes_a_policy_with_the_defaults() -> None:
    assert DQNPolicy(DQNPolicy.default_config()).config == DQNConfig()


def test_a_changed_default_config_makes_a_policy_with_the_change() -> None:
    cfg = DQNPolicy.default_config()
    cfg.learn.batch_size = 7
    assert DQNPolicy(cfg).config.learn.batch_size == 7


def test_default_configs_are_independent_of_each_other() -> None:
    first = DQNPolicy.default_config()
    first.learn.batch_size = 7
    first.other.eps.start = 0.5
    second = DQNPolicy.default_config()
    assert (second.learn.batch_size, second.other.eps.start) == (128, 1.0)


def test_the_cfg_of_a_policy_cannot_be_changed_but_a_copy_of_it(policy: DQNPolicy) -> None:
    for cfg in (policy.cfg, policy.get_attribute("cfg")):
        with pytest.raises(TypeError, match=r"policy\.cfg\.learn\.batch_size cannot be set"):
            cfg.learn.batch_size = 7
    changed = copy.deepcopy(policy.cfg)
    changed.learn.batch_size = 7
    assert (policy.config.learn.batch_size, DQNPolicy(changed).config.learn.batch_size) == (6, 7)


def test_a_policy_keeps_no_reference_to_the_mapping_it_was_made_from() -> None:
    cfg = copy.deepcopy(CFG)
    cfg["model"]["obs_shape"] = {"a": [2]}
    policy = DQNPolicy(cfg)
    cfg["learn"]["batch_size"] = 7
    cfg["model"]["obs_shape"]["a"].append(3)
    assert (policy.config.learn.batch_size, policy.cfg.model.obs_shape) == (6, {"a": [2]})


def test_a_policy_takes_its_config_as_a_dataclass() -> None:
    config = DQNConfig(nstep=3)
    assert DQNPolicy(config).config is config


@pytest.mark.parametrize("key", ["cuda", "multi_gpu", "bp_update_sync", "on_policy", "traj_len_inf"])
def test_a_key_of_ding_that_has_moved_says_where_to(key: str) -> None:
    with pytest.raises(ValueError, match=f"config key '{key}' does not exist here: "):
        DQNPolicy({key: True})


# Building


def test_a_policy_without_shapes_has_no_network_until_it_is_built() -> None:
    policy = DQNPolicy()
    before = policy.is_built
    assert policy.build(OBS_SPACE, ACTION_SPACE) is policy
    assert (policy.config.model.obs_shape, policy.config.model.action_shape) == (4, 3)
    actions = policy.eval_mode.forward(torch.zeros(2, 4))["action"]
    assert (before, policy.is_built, actions.shape) == (False, True, (2,))


def test_build_leaves_a_network_that_fits(policy: DQNPolicy) -> None:
    model = policy.model
    policy.build(OBS_SPACE, ACTION_SPACE)
    assert policy.model is model


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.Text(3), spaces.MultiBinary([2, 2])])
def test_build_refuses_an_action_space_and_names_it(space: spaces.Space[Any]) -> None:
    with pytest.raises(TypeError) as error:
        DQNPolicy().build(OBS_SPACE, space)
    assert str(error.value).startswith("dqn needs a Discrete")
    assert f"got {space}" in str(error.value)


def test_build_takes_a_size_for_a_board_of_as_many_fields() -> None:
    board = spaces.Dict({"observation": spaces.Box(-1, 1, (3, 3, 2)), "action_mask": spaces.MultiBinary(3)})
    shapes = {"obs_shape": {"observation": 18, "action_mask": 3}, "action_shape": 3}
    policy = DQNPolicy({"model": shapes}).build(board, spaces.Discrete(3))
    assert policy.config.model.obs_shape == shapes["obs_shape"]
    with pytest.raises(ValueError, match=r"model\.obs_shape is .*17.* in the config, but the env has"):
        DQNPolicy({"model": {**shapes, "obs_shape": {"observation": 17, "action_mask": 3}}}).build(
            board, spaces.Discrete(3)
        )


@pytest.mark.parametrize("written", [4, [4], (4,)])
def test_build_takes_a_size_and_a_shape_of_one_axis_for_the_same(written: Any) -> None:
    policy = DQNPolicy({"model": {"obs_shape": written}})
    assert policy.build(OBS_SPACE, ACTION_SPACE).is_built


@pytest.mark.parametrize("model", [{"type": "dqn"}, lambda obs: obs, nn.Linear])
def test_a_model_that_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model must be an nn\.Module or None, got"):
        DQNPolicy(CFG, model=model)


def test_a_given_model_is_used_as_it_is() -> None:
    model = make_policy(seed=5).model
    policy = make_policy(model=model)
    assert policy.model is model


# Fields


@pytest.mark.parametrize(
    ("asked", "enabled"),
    [
        (None, ("learn", "collect", "eval", "command")),
        (["eval", "learn"], ("learn", "eval")),
        (("command", "collect", "learn"), ("learn", "collect", "command")),
        ({"collect"}, ("collect",)),
    ],
)
def test_fields_are_initialised_in_one_fixed_order(
    asked: Any, enabled: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for field in DQNPolicy.total_field:
        monkeypatch.setattr(DQNPolicy, f"_init_{field}", lambda self, name=field: order.append(name))
    policy = DQNPolicy(CFG, enable_field=asked)
    assert (policy.enable_field, tuple(order)) == (enabled, enabled)


@pytest.mark.parametrize("asked", [["learn", "learned"], "learn"])
def test_an_unknown_field_is_refused(asked: Any) -> None:
    with pytest.raises(ValueError, match=r"enable_field must be among \('learn', 'collect', 'eval', 'command'\), got"):
        DQNPolicy(CFG, enable_field=asked)


@pytest.mark.parametrize("mode", ["learn_mode", "collect_mode", "eval_mode"])
def test_a_mode_whose_field_is_not_enabled_refuses_to_work(mode: str) -> None:
    policy = make_policy(enable_field=["command"])
    with pytest.raises(RuntimeError, match=rf"the field '{mode[:-5]}' is not enabled, enable_field is \('command',\)"):
        getattr(policy, mode).forward(torch.zeros(2, 4))


def test_a_policy_that_only_collects_has_no_optimizer_and_no_target() -> None:
    policy = make_policy(enable_field=["collect"])
    assert (policy.configure_optimizers(), hasattr(policy, "target_model")) == (([], []), False)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"'learn\.batchsize'; did you mean 'learn\.batch_size'\?"):
        DQNPolicy({"learn": {"batchsize": 3}})
    with pytest.raises(TypeError, match=r"the observation space must be .* got Text\("):
        DQNPolicy().build(spaces.Text(7), ACTION_SPACE)
    with pytest.raises(ValueError, match=r"model\.action_shape is 2 in the config, but the env has 3"):
        DQNPolicy({"model": {"action_shape": 2}}).build(OBS_SPACE, ACTION_SPACE)
    with pytest.raises(RuntimeError, match=r"DQNPolicy has no spaces: .*call build\("):
        DQNPolicy().eval_mode.forward(torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="the field 'learn' is not enabled"):
        make_policy(enable_field=["collect"]).learn_mode.state_dict()


def test_a_policy_that_only_commands_has_no_network() -> None:
    policy = make_policy(enable_field=["command"])
    assert (list(policy.parameters()), policy.is_built) == ([], True)


def test_a_policy_that_only_commands_gives_settings() -> None:
    # linear from 1 to 0.05 over 10000 env steps: halfway 0.525
    command = make_policy(enable_field=["command"]).command_mode
    info = {"envstep": 5000, "learner_step": 3}
    settings = command.get_setting_learn(info), command.get_setting_collect(info), command.get_setting_eval(info)
    assert settings == ({}, {"eps": 0.525}, {})


# Modes


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        (
            "learn_mode",
            "forward reset info monitor_vars get_attribute set_attribute state_dict load_state_dict",
        ),
        (
            "collect_mode",
            "forward process_transition get_train_sample reset get_attribute set_attribute state_dict load_state_dict",
        ),
        ("eval_mode", "forward reset get_attribute set_attribute state_dict load_state_dict"),
        ("command_mode", "get_setting_learn get_setting_collect get_setting_eval"),
    ],
)
def test_a_mode_has_exactly_its_methods(policy: DQNPolicy, mode: str, fields: str) -> None:
    assert getattr(policy, mode)._fields == tuple(fields.split())


@pytest.mark.parametrize("mode", ["learn_mode", "collect_mode", "eval_mode", "command_mode"])
def test_a_mode_cannot_be_changed(policy: DQNPolicy, mode: str) -> None:
    found = getattr(policy, mode)
    with pytest.raises(AttributeError):
        setattr(found, found._fields[0], print)


def test_every_policy_has_a_command_mode() -> None:
    assert CommandModePolicy is Policy
    command = PPOPolicy(enable_field=["command"]).command_mode
    assert command.get_setting_collect({"envstep": 5000, "learner_step": 3}) == {}


def test_the_learn_mode_describes_the_policy_and_monitors_what_an_update_reports(policy: DQNPolicy) -> None:
    assert policy.learn_mode.info() == repr(policy)
    reported = set(policy.learn_mode.forward(make_batch()))
    assert set(policy.learn_mode.monitor_vars()) == reported | {"cur_lr"}


def test_resetting_takes_all_slots_or_some(policy: DQNPolicy) -> None:
    actions = policy.eval_mode.forward(torch.ones(2, 4))["action"]
    for mode in (policy.learn_mode, policy.collect_mode, policy.eval_mode):
        mode.reset()
        mode.reset([0, 1])
    assert_close(policy.eval_mode.forward(torch.ones(2, 4))["action"], actions)


def test_the_eval_mode_hands_arguments_on_to_a_policy_that_takes_them() -> None:
    class Shifted(DQNPolicy):
        def _forward_eval(self, obs: Any, shift: int = 0) -> dict[str, torch.Tensor]:
            return {"action": super()._forward_eval(obs)["action"] + shift}

    forward, obs = Shifted(CFG).eval_mode.forward, torch.randn(20, 4)
    assert_close(forward(obs, shift=10)["action"], forward(obs)["action"] + 10)
    with pytest.raises(TypeError, match="shift"):
        DQNPolicy(CFG).eval_mode.forward(obs, shift=10)


def test_the_eval_mode_and_the_module_take_the_action_of_the_largest_value(policy: DQNPolicy) -> None:
    obs = torch.randn(20, 4)
    best = policy.model(obs)["logit"].argmax(1)
    assert_close(policy.eval_mode.forward(obs)["action"], best)
    assert_close(policy(obs), best)


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
def test_observations_by_env_are_answered_by_env(policy: DQNPolicy, mode: str) -> None:
    obs = torch.randn(5, 4)
    forward = getattr(policy, mode).forward
    policy.seed(1)
    batch = forward(obs)["action"]
    policy.seed(1)
    by_env = forward({7: obs[0].numpy(), 2: obs[1], 9: obs[2], 0: obs[3], 4: obs[4]})
    assert {env_id: output["action"].item() for env_id, output in by_env.items()} == dict(
        zip([7, 2, 9, 0, 4], batch.tolist(), strict=True)
    )


def test_dict_observations_by_env_are_answered_by_env() -> None:
    torch.manual_seed(0)
    policy = DQNPolicy({"model": {"obs_shape": {"a": 4, "action_mask": 3}, "action_shape": 3}})
    masks = np.eye(3, dtype=np.int8)
    obs = {env_id: {"a": np.ones(4), "action_mask": masks[env_id]} for env_id in (2, 0, 1)}
    assert {env_id: out["action"].item() for env_id, out in policy.eval_mode.forward(obs).items()} == {0: 0, 1: 1, 2: 2}


def test_acting_takes_numpy_observations_as_an_env_gives_them(policy: DQNPolicy) -> None:
    obs = np.random.default_rng(0).normal(size=(20, 4))  # float64
    got = policy.eval_mode.forward(obs)["action"]
    assert_close(got, policy.eval_mode.forward(torch.from_numpy(obs).float())["action"])


def test_collecting_uses_the_epsilon_it_is_given(policy: DQNPolicy) -> None:
    obs = torch.randn(200, 4)
    greedy = policy.eval_mode.forward(obs)["action"]
    same = [(policy.collect_mode.forward(obs, eps=eps)["action"] == greedy).float().mean().item() for eps in (0.0, 1.0)]
    # all greedy; then 1/3 by chance
    assert (same[0], 0.2 < same[1] < 0.5) == (1.0, True)


def test_collecting_uses_the_epsilon_of_the_schedule_at_the_env_steps_so_far(policy: DQNPolicy) -> None:
    # epsilon 1 - 0.95 * 9000 / 10000 = 0.145: 1 - 0.145 * 2 / 3 = 0.903 of the actions are greedy
    obs = torch.randn(5000, 4)
    policy.progress.env_step = 9000
    same = policy.collect_mode.forward(obs)["action"] == policy.eval_mode.forward(obs)["action"]
    assert 0.88 < same.float().mean().item() < 0.925


def test_seeding_repeats_the_exploration(policy: DQNPolicy) -> None:
    draws = []
    for _ in range(2):
        policy.seed(3)
        draws.append(policy.collect_mode.forward(torch.zeros(50, 4), eps=1.0)["action"].tolist())
    assert draws[0] == draws[1]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copied_policy_acts_in_eval_mode_and_goes_back_to_training(policy: DQNPolicy, duplicate: Any) -> None:
    copied: DQNPolicy = duplicate(policy)
    seen: list[bool] = []
    copied.model.register_forward_hook(lambda *_: seen.extend(m.training for m in copied.model.modules()))
    copied.eval_mode.forward(torch.zeros(2, 4))
    assert (any(seen), all(m.training for m in copied.model.modules())) == (False, True)


def test_acting_puts_the_network_back_into_training_after_an_error(policy: DQNPolicy) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        policy.eval_mode.forward(torch.zeros(2, 5))
    assert all(m.training for m in policy.model.modules())


def test_acting_leaves_a_frozen_part_of_the_network_in_eval_mode(policy: DQNPolicy) -> None:
    encoder = policy.model.get_submodule("encoder").eval()
    policy.eval_mode.forward(torch.zeros(2, 4))
    assert (encoder.training, policy.model.training) == (False, True)


def test_acting_asks_a_module_that_overrides_train() -> None:
    class Stubborn(nn.Linear):
        calls: ClassVar[list[bool]] = []

        def train(self, mode: bool = True) -> Stubborn:
            self.calls.append(mode)
            return super().train(mode)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Stubborn(4, 3)

        def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logit": self.linear(obs)}

    policy = make_policy(model=Net())
    Stubborn.calls.clear()
    policy.eval_mode.forward(torch.zeros(2, 4))
    assert Stubborn.calls == [False, True]


def test_acting_leaves_the_network_in_training_and_makes_no_gradient() -> None:
    seen: list[bool] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.extend([self.training, torch.is_grad_enabled()])
            return {"logit": self.linear(obs)}

    policy = make_policy(model=Watching())
    policy.collect_mode.forward(torch.zeros(2, 4))
    assert (seen, [m.training for m in policy.model.modules()]) == ([False, False], [True, True])


def test_a_transition_holds_what_was_seen_done_and_found(policy: DQNPolicy) -> None:
    class Timestep:
        next_obs, reward, terminated, truncated = "next", "reward", "terminated", "truncated"

    transition = policy.collect_mode.process_transition("obs", {"action": "action", "logit": 0}, Timestep())
    assert transition == {
        name: name.removesuffix("_obs") if name == "next_obs" else name
        for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    }


# Attributes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_sample", 5),
        ("n_episode", None),
        ("unroll_len", 1),
        ("on_policy", False),
        ("batch_size", 6),
        ("device", torch.device("cpu")),
        ("priority", False),
        ("cuda", False),
        ("nstep", 3),
        ("discount_factor", 0.99),
        ("random_collect_size", 512),
        ("update_per_collect", 2),
    ],
)
def test_workers_get_the_attributes_they_ask_for(policy: DQNPolicy, name: str, value: Any) -> None:
    assert [mode.get_attribute(name) for mode in (policy.learn_mode, policy.collect_mode, policy.eval_mode)] == [
        value
    ] * 3


def test_workers_get_the_config_and_the_counters(policy: DQNPolicy) -> None:
    mode = policy.collect_mode
    assert (mode.get_attribute("cfg"), mode.get_attribute("progress")) == (policy.cfg, policy.progress)


def test_an_attribute_that_was_set_is_the_one_got_in_every_mode(policy: DQNPolicy) -> None:
    policy.learn_mode.set_attribute("temperature", 0.5)
    assert policy.eval_mode.get_attribute("temperature") == 0.5


# States


def test_the_state_of_the_learn_mode_restores_network_target_and_optimizer() -> None:
    trained, restored = make_policy(seed=1), make_policy(seed=2)
    for seed in range(3):
        trained.learn_mode.forward(make_batch(seed))
    restored.learn_mode.load_state_dict(trained.learn_mode.state_dict())
    reports = [policy.learn_mode.forward(make_batch(9)) for policy in (trained, restored)]
    assert_close(reports[1], reports[0], rtol=0, atol=0)
    assert weights(restored.model) == weights(trained.model)
    assert weights(restored.target_model) == weights(trained.target_model) != weights(trained.model)


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
def test_the_state_of_an_acting_mode_restores_the_network(mode: str) -> None:
    trained, restored = make_policy(seed=1), make_policy(seed=2)
    getattr(restored, mode).load_state_dict(getattr(trained, mode).state_dict())
    assert weights(restored.model) == weights(trained.model)


@pytest.mark.parametrize("mode", ["learn_mode", "collect_mode", "eval_mode"])
def test_the_state_of_a_mode_with_a_missing_parameter_is_refused(policy: DQNPolicy, mode: str) -> None:
    state = copy.deepcopy(getattr(policy, mode).state_dict())
    state["model"].pop(next(iter(state["model"])))
    with pytest.raises(RuntimeError, match="Missing key"):
        getattr(policy, mode).load_state_dict(state)


def test_the_state_of_a_learner_feeds_a_collector() -> None:
    learner, collector = make_policy(seed=1), make_policy(seed=2, enable_field=["collect"])
    learner.learn_mode.forward(make_batch())
    collector.collect_mode.load_state_dict(learner.learn_mode.state_dict())
    assert weights(collector.model) == weights(learner.model)


def test_a_checkpoint_carries_the_counters(policy: DQNPolicy) -> None:
    checkpoint: dict[str, Any] = {}
    policy.progress.env_step = 17
    policy.on_save_checkpoint(checkpoint)
    restored = make_policy()
    restored.on_load_checkpoint(checkpoint)
    assert restored.progress.env_step == 17


def test_other_mistakes_are_named(policy: DQNPolicy) -> None:
    with pytest.raises(ValueError, match=r"model\.obs_shape is 4 in the config, but the env has 5"):
        policy.build(spaces.Box(-1, 1, (5,)), ACTION_SPACE)
    with pytest.raises(NotImplementedError, match="DQNPolicy has no attribute 'temperature' for workers"):
        policy.collect_mode.get_attribute("temperature")
    with pytest.raises(AttributeError, match="'n_sample' is computed by DQNPolicy; change its config instead"):
        policy.collect_mode.set_attribute("n_sample", 3)
    with pytest.raises(KeyError, match="the checkpoint contains no 'progress'"):
        policy.on_load_checkpoint({"state_dict": {}})


def test_the_learning_rate_is_the_one_of_the_optimizer_now(policy: DQNPolicy) -> None:
    policy.configure_optimizers()[0][0].param_groups[0]["lr"] = 0.125
    assert policy.cur_lr() == 0.125
