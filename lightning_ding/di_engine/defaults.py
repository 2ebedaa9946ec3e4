"""The defaults of DI-engine 0.5.3 that differ from this package's.

They apply to configs in DI-engine's format only. ``DEFAULTS`` has DI-engine's keys; ``WITHOUT_KEY`` has ours, for
settings that DI-engine has no key for. A test holds both tables against DI-engine's own values.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.di_engine.team_keys import ROLLOUT_DEFAULTS, ROLLOUT_WITHOUT_KEY

_EPS = {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10_000}
_ENCODER = {"encoder_hidden_size_list": [128, 128, 64]}
_HEAD = {**_ENCODER, "head_layer_num": 1}
_HEADS = {
    **_ENCODER,
    "actor_head_hidden_size": 64,
    "actor_head_layer_num": 1,
    "critic_head_hidden_size": 64,
    "critic_head_layer_num": 1,
}
_SMALL_HEADS = {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64}


_COPIED = {"update_per_collect": 3, "target_update_freq": 100}
_STEPS = _COPIED | {"batch_size": 64, "learning_rate": 1e-3}
_REPLAY = {"eps": _EPS, "replay_buffer": {"replay_buffer_size": 10_000}}
_Q_LEARNING = {"discount_factor": 0.97, "random_collect_size": 0, "model": _HEAD, "other": _REPLAY}
_SEQUENCES = {
    "eps": {"type": "exp", "start": 0.95, "decay": 10_000},
    "replay_buffer": {"replay_buffer_size": 10_000},
}
_QUANTILES = {**_HEAD, "quantile_embedding_size": 128}

_TEAM: dict[str, Any] = {
    "random_collect_size": 0,
    "model": {"lstm_type": "gru"},
    "learn": {"update_per_collect": 20, "batch_size": 32, "target_update_theta": 0.008, "clip_value": 100},
    "collect": {"unroll_len": 10},
    "other": {
        "eps": {"type": "exp", "start": 1.0, "end": 0.05, "decay": 50_000},
        "replay_buffer": {"replay_buffer_size": 5000},
    },
}
TEAM_DEFAULTS: dict[str, dict[str, Any]] = {
    **ROLLOUT_DEFAULTS,
    "qmix": _TEAM | {"learn": {**_TEAM["learn"], "double_q": False}},
    "vdn": _TEAM | {"learn": {**_TEAM["learn"], "double_q": False}},
    "wqmix": _TEAM | {"learn": {**_TEAM["learn"], "wqmix_ow": True, "alpha": 0.1}},
    "madqn": _TEAM | {"learn": {**_TEAM["learn"], "double_q": False, "weight_decay": 1e-5}},
    "qtran": _TEAM | {"learn": {**_TEAM["learn"], "opt_weight": 0.01, "nopt_min_weight": 0.0001, "double_q": True}},
}
"""Those of the policies of teams."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "dqn": {**_Q_LEARNING, "nstep": 1, "learn": _STEPS},
    **{name: {**_Q_LEARNING, "learn": _STEPS} for name in ("mdqn", "sql")},
    "bdq": {**_Q_LEARNING, "model": {**_ENCODER, "layer_num": 3}, "learn": _STEPS},
    "sqn": {
        "random_collect_size": 0,
        "model": {**_HEAD, "dueling": True},
        "learn": {"update_per_collect": 16, "batch_size": 64},
        "other": {"eps": {"decay": 2000}, "replay_buffer": {"replay_buffer_size": 100_000}},
    },
    **{name: {**_Q_LEARNING, "learn": _COPIED} for name in ("c51", "qrdqn")},
    "iqn": {**_Q_LEARNING, "model": {**_QUANTILES, "num_quantiles": 32}, "learn": _COPIED},
    "fqf": {**_Q_LEARNING, "model": _QUANTILES, "learn": _COPIED},
    "r2d2": {
        "priority": True,
        "random_collect_size": 0,
        "learn_unroll_len": 80,
        "model": _HEAD,
        "other": _SEQUENCES,
    },
    "r2d3": {
        **{"priority": True, "burnin_step": 2, "learn_unroll_len": 80},
        "model": _HEAD,
        "other": _SEQUENCES,
    },
    "ngu": {
        **{"priority": True, "random_collect_size": 0, "learn_unroll_len": 80},
        "model": _HEAD,
        "other": _SEQUENCES,
    },
    "r2d2_gtrxl": {
        **{"priority": True, "random_collect_size": 0, "discount_factor": 0.99},
        **{"burnin_step": 1, "unroll_len": 25, "seq_len": 20},
        "model": {
            **{"hidden_size": 16, "head_layer_num": 1, "memory_len": 64, "gru_bias": 2.0},
            **{"att_layer_num": 3, "att_head_num": 2, "att_head_dim": 16},
        },
        "learn": {"value_rescale": False},
        "other": {
            "eps": {"type": "exp", "start": 0.95, "decay": 10_000},
            "replay_buffer": {"replay_buffer_size": 10_000},
        },
    },
    "dqfd": {
        "priority": True,
        "model": _HEAD,
        "learn": {**_STEPS, "lambda3": 1e-5},
        "other": _REPLAY,
    },
    "rainbow": {
        "priority": True,
        "random_collect_size": 0,
        "model": _HEAD,
        "learn": {"update_per_collect": 1, "batch_size": 32, "target_update_freq": 100},
        "other": {"eps": {"type": "exp", "decay": 100_000}, "replay_buffer": {"replay_buffer_size": 100_000}},
    },
    "ddpg": {
        "random_collect_size": 25_000,
        "model": _SMALL_HEADS,
        "other": {"replay_buffer": {"replay_buffer_size": 100_000}},
    },
    "d4pg": {"priority": True, "random_collect_size": 25_000, "model": _SMALL_HEADS},
    "td3": {
        "random_collect_size": 25_000,
        "model": _SMALL_HEADS,
        "learn": {"target_theta": 0.005},
        "other": {"replay_buffer": {"replay_buffer_size": 100_000}},
    },
    "pdqn": {
        **{"discount_factor": 0.97, "random_collect_size": 0, "model": _HEAD, "other": _REPLAY},
        "learn": {"update_per_collect": 3, "batch_size": 64},
    },
    "sac": {"random_collect_size": 10_000, "model": _SMALL_HEADS},
    "discrete_sac": {"random_collect_size": 10_000, "model": _SMALL_HEADS},
    "a2c": {
        "model": _HEADS | {"share_encoder": True},
        "learn": {"batch_size": 64, "eps": 1e-8, "value_weight": 0.5, "adv_norm": False},
        "collect": {"discount_factor": 0.9},
    },
    "ppo": {"model": _HEADS, "learn": {"clip_ratio": 0.2, "value_norm": True}},
    "ppg": {
        "model": _HEADS | {"actor_head_layer_num": 2},
        "learn": {
            **{"learning_rate": 0.001, "clip_ratio": 0.2, "value_norm": False, "adv_norm": False},
            **{"entropy_weight": 0.01, "aux_freq": 8},
        },
    },
    "ppo_offpolicy": {
        "model": _HEADS,
        "learn": {"clip_ratio": 0.2, "adv_norm": False, "value_norm": True},
        "other": {"replay_buffer": {"replay_buffer_size": 10_000}},
    },
    "ppg_offpolicy": {
        "model": _HEADS | {"actor_head_layer_num": 2},
        "learn": {"clip_ratio": 0.2, "adv_norm": False},
        "other": {"replay_buffer": {"policy": {"replay_buffer_size": 1000}}},
    },
    "impala": {
        "model": _HEADS,
        "learn": {"grad_clip_type": None},
        "other": {"replay_buffer": {"replay_buffer_size": 1000}},
    },
    "acer": {
        "model": _HEADS,
        "learn": {"discount_factor": 0.9, "grad_clip_type": None},
        "eval": {"evaluator": {"eval_freq": 200}},
        "other": {"replay_buffer": {"replay_buffer_size": 1000}},
    },
    "pg": {"model": _HEAD, "learn": {"batch_size": 64}},
    "cql": {"learn": {"learning_rate_policy": 3e-4, "min_q_weight": 1.0}},
    "edac": {
        "model": {"critic_head_layer_num": 1},
        "learn": {"alpha": 1, "init_w": 0.003, "eta": 0.1, "with_q_entropy": False},
    },
    "bcq": {
        "model": {"actor_head_hidden_size": [400, 300], "critic_head_hidden_size": [400, 300]},
        "learn": {"learning_rate_q": 3e-4, "learning_rate_policy": 3e-4, "learning_rate_vae": 3e-4},
    },
    "discrete_cql": {"discount_factor": 0.97, "model": _HEAD, "learn": {"target_update_freq": 100}},
    "td3_bc": {
        "learn": {"learning_rate_actor": 1e-3, "learning_rate_critic": 1e-3, "target_theta": 0.005},
        "eval": {"evaluator": {"eval_freq": 5000}},
    },
    "iql": {
        "model": {
            "actor_head_hidden_size": 512,
            "actor_head_layer_num": 3,
            "critic_head_hidden_size": 512,
            "critic_head_layer_num": 2,
        },
        "learn": {"init_w": 3e-3, "beta": 1.0},
    },
    "bc": {
        "model": _HEAD,
        "learn": {"batch_size": 32, "learning_rate": 1e-5, "optimizer": "SGD", "momentum": 0.9, "weight_decay": 1e-4},
    },
    **TEAM_DEFAULTS,
}
"""Values that apply where a pair of configs says nothing, in DI-engine's keys, for each type of policy."""

_RMSPROP = {"learn.optimizer.type": "rmsprop", "learn.optimizer.eps": 1e-5, "model.agent_id": False}
TEAM_WITHOUT_KEY: dict[str, dict[str, Any]] = {
    **ROLLOUT_WITHOUT_KEY,
    "qmix": {**_RMSPROP, "learn.optimizer.weight_decay": 1e-5},
    "vdn": {**_RMSPROP, "learn.optimizer.weight_decay": 1e-5},
    "wqmix": {**_RMSPROP, "learn.target_theta": 1.0},
    "qtran": _RMSPROP,
    "madqn": _RMSPROP,
}
"""Those of the policies of teams; the target of DI-engine's wqmix is its trained network."""
WITHOUT_KEY: dict[str, dict[str, Any]] = {
    "r2d2_gtrxl": {"model.core.type": "gtrxl"},
    "dqn": {"learn.loss": "mse"},
    "mdqn": {"learn.loss": "mse", "learn.optimizer.eps": 0.0003125},
    "sql": {"learn.loss": "mse"},
    "sqn": {"learn.loss": "mse"},
    "bdq": {"learn.loss": "mse", "learn.mean_target": False},
    "dqfd": {"learn.loss": "mse", "learn.lambda3": 0.0, "learn.optimizer.type": "adamw"},
    "r2d3": {"learn.lambda3": 0.0, "learn.optimizer.type": "adamw", "learn.optimizer.weight_decay": 1e-5},
    "ngu": {"cross_mixture_ratio": 0.0},
    **{name: {"learn.optimizer.eps": 1e-8} for name in ("c51", "qrdqn", "iqn")},
    "rainbow": {"model.noise_std": 0.4, "learn.optimizer.eps": 1e-8},
    "ddpg": {"model.last_layer_init": None},
    "d4pg": {"model.last_layer_init": None},
    "pdqn": {
        **{"model.last_layer_init": None, "model.share_encoder": True, "learn.double_q": True},
        **{"model.actor_head_hidden_size": 64, "model.critic_head_hidden_size": 64},
    },
    "a2c": {"learn.lr_scheduler.type": "constant"},
    "ppo": {"learn.optimizer.eps": 1e-8},
    "ppg": {
        **{"learn.optimizer.eps": 1e-8, "learn.grad_clip_norm": None, "learn.ppo_param_init": False},
        "recompute_adv": False,
    },
    "ppo_offpolicy": {"learn.optimizer.eps": 1e-8},
    "ppg_offpolicy": {
        **{"learn.optimizer.eps": 1e-8, "learn.grad_clip_norm": None, "learn.ppo_param_init": False},
        "learn.value_norm": False,
    },
    "impala": {"learn.optimizer.eps": 1e-8},
    "pg": {"learn.optimizer.eps": 1e-8, "learn.return_norm": False},
    "cql": {"learn.update_per_collect": 1},
    "edac": {"learn.update_per_collect": 1},
    "bcq": {"learn.update_per_collect": 1, "learn.kl_weight": 0.5},
    "discrete_cql": {"learn.update_per_collect": 1, "learn.optimizer.eps": 1e-8},
    "td3_bc": {"learn.update_per_collect": 1, "learn.grad_clip_norm": 1.0},
    "iql": {"learn.update_per_collect": 1, "learn.target_theta": 1.0},
    "bc": {"learn.update_per_collect": 1},
    **TEAM_WITHOUT_KEY,
}
"""Settings that DI-engine has no key for, in our keys, for each type of policy."""

ALWAYS_WITHOUT_KEY: dict[str, Any] = {"eval.evaluator.fixed_starts": True}
"""The same for all policies: every evaluation begins with the same seeds."""
