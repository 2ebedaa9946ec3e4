"""DI-engine's configs of teams that learn from rollouts: ``ppo`` with ``multi_agent``, ``happo`` and ``coma``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import deep_merge, resolve
from lightning_ding.di_engine.serial import serial_pipeline
from lightning_ding.di_engine.translate import translate
from lightning_ding.envs.teams import TwoStepGame
from lightning_ding.policy import COMAPolicy, HAPPOPolicy, MAPPOPolicy
from lightning_ding.policy.teams.mappo import MAPPOConfig

SHAPES = {"agent_num": 3, "agent_obs_shape": 18, "global_obs_shape": 48, "action_shape": 5, "action_space": "discrete"}


def run_of(kind: str, **changes: Any) -> Any:
    """Return the run of a pair like dizoo's of simple_spread."""
    policy: dict[str, Any] = {
        **{"cuda": True, "multi_agent": True, "action_space": "discrete", "model": SHAPES, "other": {}},
        "learn": {"multi_gpu": False, "epoch_per_collect": 5, "batch_size": 3200, "learning_rate": 5e-4},
        "collect": {"n_sample": 3200, "unroll_len": 1, "env_num": 8},
        "eval": {"env_num": 8, "evaluator": {"eval_freq": 50}},
    }
    policy["learn"] |= {"entropy_weight": 0.01, "grad_clip_type": "clip_norm", "grad_clip_value": 10}
    env = {"collector_env_num": 8, "evaluator_env_num": 8, "n_evaluator_episode": 8, "stop_value": 0}
    main = {"exp_name": "run", "env": env, "policy": deep_merge(policy, changes)}
    return translate((main, {"env": {"type": "cartpole"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}))


def test_ppo_with_multi_agent_is_mappo_with_dings_network() -> None:
    run = run_of("ppo")
    assert run.policy_class is MAPPOPolicy
    config: Any = resolve(MAPPOConfig, run.policy_config)
    assert (config.model.agent_num, config.model.agent_obs_shape, config.model.global_obs_shape) == (3, 18, None)
    assert (config.model.action_shape, config.model.action_space, config.model.agent_id) == (5, "discrete", False)
    assert list(config.model.encoder_hidden_size_list) == [256, 256, 256]  # a linear layer, and a head with two
    assert list(config.model.critic_hidden_size_list) == [512, 512]
    assert (config.learn.value_norm, config.learn.clip_ratio, config.learn.value_clip) == (True, 0.2, 0.2)
    assert (config.learn.grad_clip_norm, config.learn.optimizer.eps) == (10, 1e-8)
    assert config.collect.n_sample == 3200
    policy = MAPPOPolicy(deep_merge(run.policy_config, {"model": {"global_obs_shape": 48}}))  # which the env says
    sizes = [tuple(one.shape) for one in policy.model.parameters() if one.ndim == 2]
    assert sizes == [(256, 18), (256, 256), (256, 256), (5, 256), (512, 66), (512, 512), (1, 512)]


def test_widths_of_heads_are_those_of_the_network() -> None:
    wide = {"model": {"actor_head_hidden_size": 32, "actor_head_layer_num": 1, "critic_head_layer_num": 0}}
    model: Any = resolve(MAPPOConfig, run_of("ppo", **wide).policy_config).model
    assert (list(model.encoder_hidden_size_list), list(model.critic_hidden_size_list)) == ([32, 32], [512])


def test_happo_has_separate_critics_and_the_encoder_of_ding() -> None:
    run = run_of("happo", agent_num=3)
    assert run.policy_class is HAPPOPolicy
    model: Any = resolve(HAPPOPolicy.config_class, run.policy_config).model
    assert model.parameter_sharing is False
    assert list(model.encoder_hidden_size_list) == [128, 128, 64, 64, 64]
    assert list(model.critic_hidden_size_list) == [128, 128, 64, 64]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("ppo", {"model": {"sigma_type": "conditioned"}}, "policy.model.sigma_type must be 'independent' for mappo"),
        ("happo", {"model": {"use_lstm": True}}, "policy.model.use_lstm must be False for happo"),
    ],
)
def test_what_teams_do_not_have_is_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_of(kind, **changes)


COMA: dict[str, Any] = {
    "model": {
        **{"agent_num": 2, "obs_shape": {"agent_state": 3, "global_state": [3]}, "action_shape": [2]},
        "actor_hidden_size_list": [16, 8],
    },
    **{"agent_num": 2, "eval": {"env_num": 2}},
    "learn": {
        **{"update_per_collect": 1, "batch_size": 4, "learning_rate": 5e-4, "target_update_theta": 0.001},
        **{"discount_factor": 0.9, "td_lambda": 0.8, "value_weight": 1.0, "entropy_weight": 0.01},
    },
    "collect": {"n_sample": 8, "unroll_len": 5, "env_num": 2},
    "other": {"eps": {"type": "exp", "start": 0.5}, "replay_buffer": {"replay_buffer_size": 64, "max_use": 10}},
}
"""Of dizoo's ``ptz_simple_spread_coma_config.py``, for the two-step game."""


SETTING: Any = (lambda cfg: TwoStepGame(), [{}, {}], [{}, {}])


def coma(**changes: Any) -> Any:
    env = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2, "stop_value": 100}
    main: dict[str, Any] = {"exp_name": "run", "env": env, "policy": deep_merge(COMA, changes)}
    create: dict[str, Any] = {"env": {"type": "game"}, "env_manager": {"type": "base"}, "policy": {"type": "coma"}}
    if "n_episode" in main["policy"]["collect"]:
        create["collector"] = {"type": "episode"}
    return main, create


def test_coma_of_ding_learns_from_rollouts() -> None:
    run = translate(coma(), env_setting=SETTING)
    assert run.policy_class is COMAPolicy
    config: Any = resolve(COMAPolicy.config_class, run.policy_config)
    assert (config.model.agent_num, config.model.agent_obs_shape, config.model.global_obs_shape) == (2, 3, 3)
    assert list(config.model.encoder_hidden_size_list) == [16, 8]
    assert list(config.model.critic_hidden_size_list) == [8, 8]
    assert (config.collect.n_sample, config.learn.batch_size) == (40, 20)  # sequences of five steps
    assert (config.learn.epoch_per_collect, config.learn.target_theta, config.discount_factor) == (1, 0.001, 0.9)
    assert config.learn.entropy_weight == pytest.approx(10)  # the weight of DI-engine's actors is 0.001
    assert (config.learn.value_norm, config.learn.adv_norm, config.learn.grad_clip_norm) == (False, False, None)
    episodes = translate(coma(collect={"n_sample": None, "n_episode": 3}), env_setting=SETTING)
    assert episodes.policy_config["collect"]["n_episode"] == 3


def test_coma_of_ding_trains_by_the_entry_of_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = serial_pipeline(coma(), env_setting=SETTING, max_train_iter=2)
    assert policy.progress.env_step == 80
    assert policy.progress.train_iter == 8  # two rounds of two minibatches, for the critic and for the actors
