"""Whole configs of DI-engine's zoo: what they become, and that they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry import serial_pipeline, serial_pipeline_ngu, serial_pipeline_offline, serial_pipeline_onpolicy
from lightning_ding.policy import CQLPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.reward_model.cases import write_expert

ENV = {"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs.cartpole_env"]}
MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128, 64]}
R2D2: dict[str, Any] = {
    "exp_name": "cartpole_r2d2_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 8, "n_evaluator_episode": 8, "stop_value": 195},
    "policy": {
        **{"cuda": False, "priority": False, "priority_IS_weight": False, "model": MODEL},
        **{"discount_factor": 0.995, "nstep": 5, "burnin_step": 2, "learn_unroll_len": 40},
        "learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.0005, "target_update_theta": 0.001},
        "collect": {"n_sample": 32, "unroll_len": 42, "traj_len_inf": True, "env_num": 8},
        "eval": {"env_num": 8, "evaluator": {"eval_freq": 30}},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.05, "decay": 10_000},
            "replay_buffer": {"replay_buffer_size": 100_000},
        },
    },
}
DQFD: dict[str, Any] = {
    "exp_name": "cartpole_dqfd_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "priority": True, "nstep": 3, "discount_factor": 0.97, "model": {**MODEL, "dueling": True}},
        "learn": {
            **{"batch_size": 64, "learning_rate": 0.001, "lambda1": 1, "lambda2": 3.0, "lambda3": 0},
            **{"per_train_iter_k": 10, "expert_replay_buffer_size": 10_000},
        },
        "collect": {"n_sample": 8, "model_path": "model_path_placeholder"},
        "eval": {"evaluator": {"eval_freq": 50}},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000},
            "replay_buffer": {"replay_buffer_size": 20_000},
        },
    },
}

DT: dict[str, Any] = {
    "exp_name": "cartpole_dt_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "dataset": {"data_dir_prefix": "demos.npz", "rtg_scale": None, "context_len": 20, "env_type": "classic"},
    "policy": {
        **{"cuda": False, "rtg_target": 10, "evaluator_env_num": 5, "clip_grad_norm_p": 1.0, "max_timestep": 1000},
        **{"state_mean": 1, "state_std": 0, "batch_size": 64, "learning_rate": 0.001, "warmup_steps": 5},
        "model": {
            **{"state_dim": 4, "act_dim": 2, "n_blocks": 6, "h_dim": 128, "context_len": 20, "n_heads": 8},
            **{"drop_p": 0.1, "continuous": False},
        },
        "collect": {"data_type": "hdf5", "data_path": "demos.hdf5"},
        "eval": {"evaluator": {"eval_freq": 100}},
    },
}

CQL: dict[str, Any] = {
    "exp_name": "pendulum_cql",
    "env": {"evaluator_env_num": 5, "act_scale": True, "n_evaluator_episode": 5, "stop_value": -250},
    "policy": {
        "cuda": False,
        "model": {
            **{"obs_shape": 3, "action_shape": 1, "twin_critic": True, "action_space": "reparameterization"},
            **{"actor_head_hidden_size": 128, "critic_head_hidden_size": 128},
        },
        "learn": {
            **{"train_epoch": 3, "batch_size": 16, "learning_rate_q": 3e-4, "learning_rate_policy": 1e-3},
            **{"learning_rate_alpha": 1e-3, "ignore_done": True, "target_theta": 0.005, "discount_factor": 0.98},
            **{"alpha": 0.2, "auto_alpha": True, "lagrange_thresh": -1.0, "min_q_weight": 4.0},
        },
        "collect": {"data_type": "hdf5", "data_path": "./expert_demos.hdf5", "collector_logit": False},
        "command": {},
        "eval": {"evaluator": {"eval_freq": 7}},
    },
}
DISCRETE_CQL: dict[str, Any] = {
    "exp_name": "cartpole_cql_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "discount_factor": 0.97, "nstep": 3, "model": {**MODEL, "num_quantiles": 64}},
        "learn": {
            **{"train_epoch": 2, "batch_size": 16, "learning_rate": 0.001, "target_update_freq": 100},
            **{"kappa": 1.0, "min_q_weight": 4.0},
        },
        "collect": {"data_type": "hdf5", "data_path": "./expert_demos.hdf5"},
        "eval": {"evaluator": {"eval_freq": 100}},
    },
}
TD3_BC: dict[str, Any] = {
    "exp_name": "pendulum_td3_bc_seed0",
    "env": {"evaluator_env_num": 5, "act_scale": True, "n_evaluator_episode": 5, "stop_value": -250},
    "policy": {
        **{"cuda": False, "priority": False, "random_collect_size": 800},
        "model": {
            **{"obs_shape": 3, "action_shape": 1, "twin_critic": True, "action_space": "regression"},
            **{"actor_head_hidden_size": 128, "critic_head_hidden_size": 128},
        },
        "learn": {
            **{"train_epoch": 1, "batch_size": 16, "learning_rate_actor": 1e-4, "learning_rate_critic": 1e-3},
            **{"ignore_done": False, "target_theta": 0.005, "discount_factor": 0.99, "actor_update_freq": 2},
            **{"noise": True, "noise_sigma": 0.2, "noise_range": {"min": -0.5, "max": 0.5}, "alpha": 2.0},
        },
        "collect": {"noise_sigma": 0.1, "data_type": "hdf5", "data_path": "./expert_demos.hdf5"},
        "eval": {"evaluator": {"eval_freq": 100}},
        "other": {"replay_buffer": {"replay_buffer_size": 20_000}},
    },
}
OFFLINE = {"cql": CQL, "discrete_cql": DISCRETE_CQL, "td3_bc": TD3_BC}

R2D2_GTRXL: dict[str, Any] = {  # dizoo/classic_control/cartpole/config/cartpole_r2d2_gtrxl_config.py
    "exp_name": "cartpole_r2d2_gtrxl_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "priority": False, "priority_IS_weight": False},
        "model": {
            **{"obs_shape": 4, "action_shape": 2, "memory_len": 5, "hidden_size": 64, "gru_bias": 2.0},
            **{"att_layer_num": 3, "dropout": 0.0, "att_head_num": 4},
        },
        **{"discount_factor": 0.99, "nstep": 3, "burnin_step": 4, "unroll_len": 11, "seq_len": 8},
        "learn": {
            **{"update_per_collect": 16, "batch_size": 64, "learning_rate": 0.0005, "target_update_freq": 500},
            **{"value_rescale": True, "init_memory": "old"},
        },
        "collect": {"n_sample": 32, "traj_len_inf": True, "env_num": 8},
        "eval": {"env_num": 5, "evaluator": {"eval_freq": 20}},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.05, "decay": 10_000},
            "replay_buffer": {"replay_buffer_size": 100_000},
        },
    },
}


def pair(main: dict[str, Any], kind: str) -> Any:
    env = {"type": "pendulum"} if "pendulum" in main["exp_name"] else ENV
    return main, {"env": env, "env_manager": {"type": "base"}, "policy": {"type": kind}}


def test_config_of_r2d2_on_cartpole_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert translate(pair(R2D2, "r2d2")).warnings == ()
    policy: Any = serial_pipeline(pair(R2D2, "r2d2"), seed=0, max_env_step=1)
    config = policy.config
    assert (policy.progress.env_step, policy.progress.train_iter) == (32 * 42, 5)  # one round
    assert (config.burnin_step, config.learn_unroll_len, config.nstep) == (2, 35, 5)
    assert (config.priority, config.other.replay_buffer.type) == (False, "sequence")
    assert (config.other.replay_buffer.replay_buffer_size, config.model.core.hidden_size) == (4_200_000, 64)
    assert (config.learn.target_theta, config.learn.learning_rate) == (0.001, 0.0005)
    assert (tmp_path / "cartpole_r2d2_seed0" / "ckpt" / "best.ckpt").is_file()


def test_config_of_r2d2_with_a_transformer_on_cartpole_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = translate(pair(R2D2_GTRXL, "r2d2_gtrxl"))
    assert run.warnings == ("policy.learn.target_update_freq = 500 is not read by r2d2_gtrxl",)
    policy: Any = serial_pipeline(pair(R2D2_GTRXL, "r2d2_gtrxl"), seed=0, max_env_step=1)
    config, core = policy.config, policy.config.model.core
    assert (type(policy), policy.progress.env_step) == (POLICY_REGISTRY.get("r2d2"), 32 * 11)
    assert (config.burnin_step, config.learn_unroll_len, config.nstep, config.priority) == (4, 4, 3, False)
    assert (config.learn.value_rescale, config.learn.target_theta, config.discount_factor) == (True, 0.001, 0.99)
    assert (core.type, core.hidden_size, core.num_layers, core.num_heads, core.head_size) == ("gtrxl", 64, 3, 4, 16)
    assert (core.memory_length, core.gate_bias) == (5 + 8 - 1, 2.0)
    assert policy.model.encoder.core.memory_shape == (3, 12, 64)
    assert (config.model.encoder_hidden_size_list, config.other.replay_buffer.replay_buffer_size) == ((64,), 1_100_000)


def test_options_of_a_transformer_that_do_not_exist_here_are_named() -> None:
    def of(**model: Any) -> Any:
        return translate(pair(deep_merge(R2D2_GTRXL, {"policy": {"model": model}}), "r2d2_gtrxl"))

    assert "policy.model.dropout = 0.1 has no effect: the transformer has no dropout" in of(dropout=0.1).warnings
    for name, value in {"gru_gating": False, "att_mlp_num": 3}.items():
        with pytest.raises(ValueError, match=rf"policy\.model\.{name} must be"):
            of(**{name: value})


def test_config_of_dqfd_on_cartpole_trains_on_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "or give the config of an expert, which plays with the network in collect.model_path"
    with pytest.raises(ValueError, match=f"policy.collect.data_path must be an .npz.* Minari data set; {hint}"):
        translate(pair(DQFD, "dqfd"))
    path = write_expert(tmp_path, False)
    learn = {**DQFD["policy"]["learn"], "batch_size": 32}  # there are 40 demonstrations
    section = {**DQFD["policy"], "learn": learn, "collect": {"n_sample": 8, "pho": 0.25, "data_path": path}}
    main = {**DQFD, "policy": section}
    run = translate(pair(main, "dqfd"))
    assert (run.data["demonstrations"], run.data["demonstration_share"], run.warnings) == (path, 0.25, ())
    policy: Any = serial_pipeline(pair(main, "dqfd"), seed=0, max_env_step=1)
    used = policy.config.learn
    assert policy.progress.train_iter == 10 + 3
    assert (used.lambda2, used.lambda3, used.optimizer.type, used.optimizer.weight_decay) == (
        3.0,
        0.0,
        "adamw",
        0.0,
    )
    assert (policy.config.priority, policy.config.other.replay_buffer.type, policy.config.nstep) == (
        True,
        "advanced",
        3,
    )


def test_decay_of_dqfd_is_that_of_the_optimizer_as_in_ding() -> None:
    learn = {**DQFD["policy"]["learn"], "lambda3": 0.01}
    section = {**DQFD["policy"], "learn": learn, "collect": {"n_sample": 8, "data_path": "expert.npz"}}
    run = translate(pair({**DQFD, "policy": section}, "dqfd"))
    assert run.policy_config["learn"]["optimizer"] == {"type": "adamw", "weight_decay": 0.01}
    assert run.policy_config["learn"]["lambda3"] == 0.0
    without = {**DQFD, "policy": {**section, "learn": {**learn, "expert_replay_buffer_size": 0}}}
    with pytest.raises(ValueError, match=r"policy\.learn\.expert_replay_buffer_size must be > 0: dqfd here needs"):
        translate(pair(without, "dqfd"))


def test_config_of_the_decision_transformer_becomes_ours() -> None:
    run = translate(pair(DT, "dt"), seed=3, max_train_iter=7)
    hint = "did you mean 'policy.model.max_timestep'?"
    assert run.warnings == (f"policy.max_timestep = 1000 is not read by dt; {hint}",)
    config: Any = run.policy_class(run.policy_config).config
    assert (config.context_len, config.rtg_scale, config.rtg_target, config.max_eval_ep_len) == (20, 1000.0, 10.0, 1000)
    model, learn = config.model, config.learn
    assert (model.obs_shape, model.action_shape, model.action_space) == (4, 2, "discrete")
    assert (model.n_blocks, model.embed_dim, model.n_heads, model.dropout_p) == (6, 128, 8, 0.1)
    assert (learn.batch_size, learn.learning_rate, learn.grad_clip_norm, learn.update_per_collect) == (
        64,
        0.001,
        1.0,
        1,
    )
    assert (learn.optimizer.type, learn.optimizer.weight_decay, config.eval.evaluator.eval_freq) == ("adamw", 1e-4, 100)
    factors = [learn.lr_scheduler.schedule().value(step) for step in range(6)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    expected = {"dataset": "demos.npz", "norm_obs": True, "seed": 3, "max_train_iter": 7, "stop_value": 195}
    assert expected.items() <= run.data.items()
    assert run.data["evaluator_env_num"] == run.data["n_evaluator_episode"] == 5


def test_config_of_the_decision_transformer_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = {**DT["policy"]["model"], "n_blocks": 1, "h_dim": 8}
    data = {"data_dir_prefix": write_expert(tmp_path, False)}
    main = {**DT, "dataset": data, "policy": {**DT["policy"], "model": model, "batch_size": 8}}
    policy: Any = serial_pipeline(pair(main, "dt"), seed=0, max_train_iter=3)
    assert (policy.progress.train_iter, policy.progress.env_step) == (3, 0)
    assert (tmp_path / "cartpole_dt_seed0" / "ckpt" / "best.ckpt").is_file()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (
            {"data_dir_prefix": "a.pkl"},
            r"main_config\.dataset\.data_dir_prefix = 'a\.pkl' is a pickled file.*t\['rewards'\]",
        ),
        ({"data_dir_prefix": "a.npz", "rtg_scale": 10}, r"dataset\.rtg_scale must be that of the policy, 1000, got 10"),
        ({"data_dir_prefix": "a.npz", "env_type": "atari"}, r"dataset\.env_type must be 'mujoco' or 'classic'"),
    ],
)
def test_data_set_that_cannot_be_read_is_refused(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate(pair({**DT, "dataset": dataset}, "dt"))


def test_link_around_the_core_of_r2d2_is_residual() -> None:
    model = {**R2D2["policy"]["model"], "res_link": True, "encoder_hidden_size_list": [32, 16]}
    run = translate(pair({**R2D2, "policy": {**R2D2["policy"], "model": model}}, "r2d2"))
    core = run.policy_class(run.policy_config).config.model.core
    assert (core.residual, core.hidden_size) == (True, 16)


def test_keys_and_limits_of_another_policy_are_named() -> None:
    with pytest.raises(ValueError, match=r"main_config\.dataset must be left out with r2d2, which collects"):
        translate(pair({**R2D2, "dataset": {}}, "r2d2"))
    with pytest.raises(ValueError, match=r"max_env_step must be left out with dt, which takes no steps, got 5"):
        translate(pair(DT, "dt"), max_env_step=5)
    with pytest.raises(ValueError, match="reward_model must be left out with dt, whose loss has no rewards"):
        translate(pair({**DT, "reward_model": {"type": "rnd"}}, "dt"))
    run = translate(pair({**DT, "policy": {**DT["policy"], "learnin_rate": 1, "warmup_steps": 1}}, "dt"))
    assert "policy.learnin_rate = 1 is not read by dt; did you mean 'policy.learning_rate'?" in run.warnings
    assert run.policy_config["learn"]["lr_scheduler"]["type"] == "constant"


@POLICY_REGISTRY.register("zoo_own_cql")
class OwnCQL(CQLPolicy):
    """CQL of a user."""


def with_data(main: dict[str, Any], path: str, **learn: Any) -> dict[str, Any]:
    """Return a config that learns from a data set of 40 transitions."""
    policy = main["policy"]
    collect = {**policy["collect"], "data_path": path}
    return {**main, "policy": {**policy, "collect": collect, "learn": {**policy["learn"], **learn}}}


@pytest.mark.parametrize("kind", OFFLINE)
def test_offline_config_without_its_data_set_ends_in_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = r"dataset must be the path of a file, got '\./expert_demos\.hdf5'"
    with pytest.raises(ValueError, match=message):
        serial_pipeline(pair(OFFLINE[kind], kind), seed=0, max_train_iter=1)
    with pytest.raises(ValueError, match=r"dataset must be the path of a file, got 'gone\.npz'"):
        serial_pipeline(pair(with_data(OFFLINE[kind], "gone.npz"), kind), seed=0, max_train_iter=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "train_iter", "eval_freq"),
    [("cql", 3 * 3, 9), ("discrete_cql", 2 * 3, 102), ("td3_bc", 3, 102)],  # 40 transitions are 3 minibatches of 16
)
def test_offline_config_trains_on_its_data_set_and_evaluates_after_whole_passes(
    kind: str, train_iter: int, eval_freq: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = with_data(OFFLINE[kind], write_expert(tmp_path, kind != "discrete_cql"))
    run = translate(pair(main, kind))
    assert (run.datamodule_class, run.policy_class) == (OfflineDataModule, POLICY_REGISTRY.get(kind))
    assert (run.data["max_train_iter"], run.policy_config["eval"]["evaluator"]["eval_freq"]) == (train_iter, eval_freq)
    policy: Any = serial_pipeline_offline(pair(main, kind), seed=0, max_train_iter=2)
    assert (policy.progress.train_iter, policy.progress.env_step) == (2, 0)  # no step of an env was learned from
    assert (tmp_path / main["exp_name"] / "ckpt" / "best.ckpt").is_file()


def test_keys_of_offline_configs_become_ours(tmp_path: Path) -> None:
    configs: dict[str, Any] = {}
    for kind, main in OFFLINE.items():
        run = translate(pair(with_data(main, write_expert(tmp_path, kind != "discrete_cql")), kind))
        configs[kind] = run.policy_class(run.policy_config).config
        unread = {line.partition(" = ")[0].removeprefix("policy.") for line in run.warnings}
        assert (
            unread
            == {
                "cql": {"learn.lagrange_thresh"},
                "discrete_cql": {"learn.kappa"},
                "td3_bc": {"random_collect_size", "collect.noise_sigma", "other.replay_buffer.replay_buffer_size"},
            }[kind]
        )
    cql, discrete, td3_bc = configs.values()
    assert (cql.learn.min_q_weight, cql.learn.num_actions, cql.learn.learning_rate_policy) == (4.0, 10, 1e-3)
    assert (cql.learn.ignore_done, cql.discount_factor, cql.model.actor_head_hidden_size) == (True, 0.98, 128)
    assert (discrete.learn.min_q_weight, discrete.nstep, discrete.model.num_quantiles) == (4.0, 3, 64)
    assert (td3_bc.learn.alpha, td3_bc.learn.learning_rate_actor, td3_bc.learn.grad_clip_norm) == (2.0, 1e-4, 1.0)


def test_subclass_of_an_offline_policy_learns_from_its_data_set(tmp_path: Path) -> None:
    run = translate(pair(with_data(CQL, write_expert(tmp_path, True)), "zoo_own_cql"))
    assert (run.datamodule_class, run.policy_class, run.family) == (OfflineDataModule, OwnCQL, "cql")


def test_offline_entry_and_its_limits_are_named() -> None:
    with pytest.raises(ValueError, match=r"policy\.type must be one that learns from a data set \(serial_pipeline and"):
        serial_pipeline_offline(pair(R2D2, "r2d2"))
    with pytest.raises(ValueError, match=r"max_env_step must be left out with cql, which takes no steps, got 5"):
        translate(pair(with_data(CQL, "a.npz"), "cql"), max_env_step=5)
    with pytest.raises(
        ValueError, match="reward_model must be left out with cql, which learns from the rewards of its"
    ):
        translate(pair({**with_data(CQL, "a.npz"), "reward_model": {"type": "rnd"}}, "cql"))
    with pytest.raises(ValueError, match="awac has no table of DI-engine's keys here: describe the run for lightning"):
        translate(pair(CQL, "awac"))


# ---------------------------------------------------------------------------------------------------- the long tail

_EPS = {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000}
PENDULUM_BDQ: dict[str, Any] = {
    "exp_name": "pendulum_bdq_seed0",
    "env": {
        **{"collector_env_num": 10, "evaluator_env_num": 5, "act_scale": True, "n_evaluator_episode": 5},
        **{"stop_value": -250, "continuous": False},
    },
    "policy": {
        **{"cuda": False, "nstep": 1, "discount_factor": 0.97},
        "model": {
            **{"obs_shape": 3, "num_branches": 1, "action_bins_per_branch": 11},
            "encoder_hidden_size_list": [128, 128, 64],
        },
        "learn": {"batch_size": 64, "learning_rate": 0.001},
        "collect": {"n_sample": 8},
        "eval": {"evaluator": {"eval_freq": 40}},
        "other": {"eps": _EPS, "replay_buffer": {"replay_buffer_size": 20_000}},
    },
}
CARTPOLE_SQN: dict[str, Any] = {
    "exp_name": "cartpole_sqn_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "model": {**MODEL, "encoder_hidden_size_list": [64, 64], "dueling": True}},
        "learn": {
            **{"update_per_collect": 8, "batch_size": 64, "learning_rate_q": 0.001, "learning_rate_alpha": 0.001},
            **{"alpha": 0.2, "target_entropy": 0.2},
        },
        "collect": {"n_sample": 16},
        "other": {"eps": {"decay": 2000}, "replay_buffer": {"replay_buffer_size": 10_000}},
    },
}
CARTPOLE_ACER: dict[str, Any] = {
    "exp_name": "cartpole_acer_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "unroll_len": 32, "model": {**MODEL, "encoder_hidden_size_list": [64, 64]}},
        "learn": {
            **{"update_per_collect": 4, "batch_size": 16, "learning_rate_actor": 0.0005, "entropy_weight": 0.0},
            **{"learning_rate_critic": 0.0005, "discount_factor": 0.9, "trust_region": True, "c_clip_ratio": 10},
        },
        "collect": {"n_sample": 16},
        "eval": {"evaluator": {"eval_freq": 200}},
        "other": {"replay_buffer": {"replay_buffer_size": 10_000}},
    },
}
CARTPOLE_PPG: dict[str, Any] = {  # that of coinrun in another env
    "exp_name": "cartpole_ppg_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "model": {**MODEL, "actor_head_hidden_size": 256, "critic_head_hidden_size": 256}},
        "learn": {
            **{"learning_rate": 0.0005, "actor_epoch_per_collect": 1, "critic_epoch_per_collect": 1, "aux_freq": 1},
            **{"value_norm": False, "batch_size": 64, "value_weight": 0.5, "entropy_weight": 0.0, "clip_ratio": 0.2},
        },
        "collect": {"n_sample": 128},
        "eval": {"evaluator": {"eval_freq": 96}},
    },
}
CARTPOLE_PPG_OFFPOLICY: dict[str, Any] = {
    "exp_name": "cartpole_ppg_seed0",
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195},
    "policy": {
        **{"cuda": False, "model": {**MODEL, "critic_head_hidden_size": 128, "actor_head_hidden_size": 128}},
        "learn": {
            **{"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.001, "value_weight": 0.5},
            **{"entropy_weight": 0.01, "clip_ratio": 0.2},
        },
        "collect": {"n_sample": 128, "unroll_len": 1, "discount_factor": 0.9, "gae_lambda": 0.95},
        "eval": {"evaluator": {"eval_freq": 40}},
        "other": {
            "replay_buffer": {
                "multi_buffer": True,
                "policy": {"replay_buffer_size": 100, "max_use": 10, "type": "advanced"},
                "value": {"replay_buffer_size": 1000, "max_use": 100, "type": "advanced"},
            }
        },
    },
}
MOVING_PDQN: dict[str, Any] = {  # dizoo/gym_hybrid, the multi-pass form
    "exp_name": "gym_hybrid_mpdqn_seed0",
    "env": {
        **{"collector_env_num": 8, "evaluator_env_num": 5, "act_scale": True, "n_evaluator_episode": 5},
        **{"env_id": "Moving-v0", "stop_value": 1.8},
    },
    "policy": {
        **{"cuda": False, "nstep": 1, "discount_factor": 0.99},
        "model": {
            **{"obs_shape": 10, "action_shape": {"action_type_shape": 3, "action_args_shape": 2}},
            **{"multi_pass": True, "action_mask": [[1, 0], [0, 1], [0, 0]]},
        },
        "learn": {
            **{"update_per_collect": 10, "batch_size": 320, "learning_rate_dis": 3e-4, "learning_rate_cont": 3e-4},
            **{"target_theta": 0.001, "update_circle": 10},
        },
        "collect": {"n_sample": 320, "unroll_len": 1, "noise_sigma": 0.1, "collector": {"collect_print_freq": 1000}},
        "eval": {"evaluator": {"eval_freq": 1000}},
        "other": {
            "eps": {"type": "exp", "start": 1, "end": 0.1, "decay": 100_000},
            "replay_buffer": {"replay_buffer_size": 1_000_000},
        },
    },
}
LONG_TAIL = {"bdq": PENDULUM_BDQ, "sqn": CARTPOLE_SQN, "acer": CARTPOLE_ACER, "ppg": CARTPOLE_PPG}


@pytest.mark.parametrize(("kind", "updates"), [("bdq", 3), ("sqn", 8), ("acer", 4), ("ppg", 14)])
def test_config_of_the_long_tail_trains(
    kind: str, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert translate(pair(LONG_TAIL[kind], kind)).warnings == ()
    entry = serial_pipeline_onpolicy if kind == "ppg" else serial_pipeline
    policy: Any = entry(pair(LONG_TAIL[kind], kind), seed=0, max_env_step=1)
    assert type(policy) is POLICY_REGISTRY.get(kind)
    assert policy.progress.train_iter == updates  # of one round; of ppg, 2 minibatches in 1 pass and 6 others


def test_values_of_the_long_tail_are_those_of_the_config() -> None:
    bdq, sqn, acer, ppg = (
        (run := translate(pair(main, kind))).policy_class(run.policy_config).config for kind, main in LONG_TAIL.items()
    )
    assert (bdq.model.action_shape, bdq.model.head_layer_num, bdq.learn.mean_target) == (11, 3, False)
    assert (sqn.other.eps.end, sqn.other.eps.decay, sqn.learn.target_theta) == (0.001, 2000.0, 0.005)
    assert (acer.unroll_len, acer.other.replay_buffer.replay_buffer_size, acer.discount_factor) == (32, 320_000, 0.9)
    assert (acer.model.actor_head_layer_num, acer.learn.grad_clip_norm) == (0, None)
    assert (ppg.learn.epoch_per_collect, ppg.learn.aux_freq, ppg.learn.aux_train_epoch) == (1, 1, 6)
    assert (ppg.learn.grad_clip_norm, ppg.recompute_adv, ppg.model.share_encoder) == (None, False, False)


NOVELTY: dict[str, Any] = {
    **{"intrinsic_reward_type": "add", "learning_rate": 5e-4, "obs_shape": 4, "action_shape": 2, "batch_size": 128},
    **{"update_per_collect": 10, "only_use_last_five_frames_for_icm_rnd": False, "clear_buffer_per_iters": 10},
    **{"nstep": 5, "hidden_size_list": [128, 128, 64]},
}
CARTPOLE_NGU: dict[str, Any] = {
    "exp_name": "cartpole_ngu_seed0",
    "env": {
        **{"collector_env_num": 8, "evaluator_env_num": 8, "n_evaluator_episode": 8, "stop_value": 195},
        "obs_plus_prev_action_reward": True,
    },
    "rnd_reward_model": {**NOVELTY, "type": "rnd-ngu"},
    "episodic_reward_model": {
        **NOVELTY,
        **{"type": "episodic", "last_nonzero_reward_rescale": False, "last_nonzero_reward_weight": 1},
    },
    "policy": {
        **{"cuda": False, "priority": True, "priority_IS_weight": True, "discount_factor": 0.997, "nstep": 5},
        **{"burnin_step": 2, "learn_unroll_len": 40},
        "model": {
            **{"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128, 64]},
            "collector_env_num": 8,
        },
        "learn": {
            **{"update_per_collect": 8, "batch_size": 32, "learning_rate": 1e-4, "target_update_theta": 0.001},
        },
        "collect": {"n_sample": 32, "traj_len_inf": True, "env_num": 8},
        "eval": {"env_num": 8},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "end": 0.05, "decay": 1e4},
            "replay_buffer": {"replay_buffer_size": 10_000, "alpha": 0.6, "beta": 0.4},
        },
    },
}


def test_config_of_ngu_on_cartpole_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main, create = pair(CARTPOLE_NGU, "ngu")
    create |= {"rnd_reward_model": {"type": "rnd-ngu"}, "episodic_reward_model": {"type": "episodic"}}
    run = translate((main, create))
    assert run.warnings == ()
    assert run.data["wrappers"] == ["previous_step"]
    policy: Any = serial_pipeline_ngu((main, create), seed=0, max_env_step=1)
    config = policy.config
    assert policy.progress.train_iter == 8
    assert (config.model.num_policies, config.cross_mixture_ratio) == (8, 0.0)
    assert (config.model.novelty_hidden_size_list, config.learn.learning_rate_novelty) == ((128, 128, 64), 5e-4)
    assert set(policy.config.model.obs_shape) == {"observation", "previous_action", "previous_reward"}
    with pytest.raises(ValueError, match=r"rnd_reward_model.*only ngu has them"):
        translate(({**main, "policy": R2D2["policy"]}, {"env": {"type": "cartpole"}, "policy": {"type": "r2d2"}}))


def test_config_of_r2d3_on_cartpole_trains_on_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_expert(tmp_path, False)
    learn = {**R2D2["policy"]["learn"], "lambda1": 1.0, "lambda2": 2.0, "lambda3": 1e-5, "lambda_one_step_td": 1}
    learn |= {"margin_function": 0.8, "per_train_iter_k": 0, "batch_size": 16}
    section = {**R2D2["policy"], "learn": learn}
    given = {**section, "collect": {**section["collect"], "pho": 0.25, "data_path": path}}
    run = translate(pair({**R2D2, "policy": given}, "r2d3"))
    assert (run.data["demonstrations"], run.data["demonstration_share"], run.warnings) == (path, 0.25, ())
    policy: Any = serial_pipeline(pair({**R2D2, "policy": given}, "r2d3"), seed=0, max_env_step=1)
    used = policy.config.learn
    assert (used.lambda2, used.lambda3, used.optimizer.weight_decay, used.optimizer.type) == (2.0, 0.0, 1e-5, "adamw")
    assert policy.progress.train_iter == learn["update_per_collect"]


def test_config_of_pdqn_trains_and_keeps_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = pair(MOVING_PDQN, "pdqn")
    given[1]["env"] = {"type": "gym_hybrid"}
    assert translate(given).warnings == ()
    policy: Any = serial_pipeline(given, seed=0, max_env_step=1)
    assert policy.progress.train_iter == 10
    model, learn, other = policy.config.model, policy.config.learn, policy.config.other
    assert (learn.turn, learn.double_q, learn.learning_rate_actor, learn.target_theta) == (5, True, 3e-4, 0.001)
    assert (model.argument_mask, model.share_encoder) == (((1, 0), (0, 1), (0, 0)), True)
    assert (model.actor_head_hidden_size, model.actor_head_layer_num, other.eps.decay) == (64, 0, 100_000.0)


def test_values_of_bcq_are_those_of_the_config(tmp_path: Path) -> None:
    """The policy of dizoo/d4rl/config/hopper_medium_bcq_config.py on another data set."""
    sizes = {"actor_head_hidden_size": [400, 300], "critic_head_hidden_size": [400, 300], "phi": 0.05}
    learn = {"train_epoch": 3, "batch_size": 100, "learning_rate_q": 3e-3, "learning_rate_policy": 3e-3, "lmbda": 0.75}
    main = {
        **{"exp_name": "bcq", "env": {"collector_env_num": 1, "evaluator_env_num": 8, "n_evaluator_episode": 8}},
        "policy": {"cuda": False, "model": {"obs_shape": 3, "action_shape": 1, **sizes}, "learn": learn, "collect": {}},
    }
    run = translate(pair(with_data(main, write_expert(tmp_path, True)), "bcq"))
    config: Any = run.policy_class(run.policy_config).config
    assert run.warnings == ()
    assert (config.model.actor_hidden_size_list, config.model.vae_hidden_size_list) == ((400, 300), (750, 750))
    assert (config.learn.learning_rate_critic, config.learn.learning_rate_vae, config.learn.kl_weight) == (
        3e-3,
        3e-4,
        0.5,
    )
