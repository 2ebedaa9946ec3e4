"""DI-engine's configs with ``multi_agent: True`` become the policies of teams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.di_engine.serial import serial_pipeline
from lightning_ding.di_engine.translate import translate
from lightning_ding.policy import MADDPGPolicy, MASACPolicy

SHAPES = {"agent_obs_shape": 18, "global_obs_shape": 48, "action_shape": 5}


def make_pair(kind: str, model: Any, learn: Any, other: Any = (), **env: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    numbers = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2, "stop_value": 0}
    spread = {"env_id": "simple_spread_v2", "n_agent": 3, "n_landmark": 3, "max_cycles": 5, "agent_obs_only": False}
    main = {
        "exp_name": "team",
        "env": {**spread, "agent_specific_global_state": True, **numbers, **env},
        "policy": {
            **{"multi_agent": True, "random_collect_size": 20, "model": {**SHAPES, **model}, "learn": learn},
            **{"collect": {"n_sample": 10}, "eval": {"evaluator": {"eval_freq": 2}}, "other": dict(other)},
        },
    }
    create = {"env": {"type": "petting_zoo"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    return main, create


EPS = {"eps": {"type": "linear", "start": 1, "end": 0.05, "decay": 100}}
SMALL = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 16, "critic_head_layer_num": 2}


def test_discrete_sac_of_several_agents_becomes_masac() -> None:
    pytest.importorskip("mpe2")
    learn = {"batch_size": 8, "learning_rate_alpha": 5e-5, "target_entropy": -2}
    run = translate(make_pair("discrete_sac", {"twin_critic": True, **SMALL}, learn, EPS))
    assert (run.policy, run.policy_class) == ("masac", MASACPolicy)
    assert run.policy_config["model"] == {
        **{"agent_obs_shape": 18, "action_shape": 5},
        "agent_id": False,
        "critic_input": "state",
        "encoder_hidden_size_list": [8, 8],
        "critic_hidden_size_list": [16, 16, 16],
    }
    assert run.policy_config["learn"]["target_entropy"] == -2
    assert run.policy_config["other"]["eps"] == {"start": 1, "end": 0.05, "decay": 100}


@pytest.mark.parametrize(("kind", "is_delayed"), [("ddpg", False), ("td3", True)])
def test_ddpg_and_td3_of_several_agents_become_maddpg(kind: str, is_delayed: bool) -> None:
    pytest.importorskip("mpe2")
    run = translate(make_pair(kind, {"action_space": "regression"}, {"batch_size": 8}, continuous_actions=True))
    assert (run.policy, run.policy_class) == ("maddpg", MADDPGPolicy)
    config = MADDPGPolicy(run.policy_config).config
    assert (config.learn.noise, config.learn.actor_update_freq, config.model.twin_critic) == (
        (True, 2, True) if is_delayed else (False, 1, False)
    )
    assert list(config.model.encoder_hidden_size_list or ()) == [64, 64]
    assert config.model.last_layer_init is None


@pytest.mark.parametrize("kind", ["discrete_sac", "sac", "ddpg"])
def test_such_a_config_trains(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpe2")
    monkeypatch.chdir(tmp_path)
    space = {"sac": "reparameterization", "ddpg": "regression"}.get(kind)
    model = {} if space is None else {"action_space": space}
    learn = {"update_per_collect": 2, "batch_size": 8}
    pair = make_pair(kind, model, learn, continuous_actions=kind != "discrete_sac")
    policy: Any = serial_pipeline(pair, seed=0, max_train_iter=4)
    assert policy.progress.train_iter == 4
    assert isinstance(policy, MASACPolicy if "sac" in kind else MADDPGPolicy)
