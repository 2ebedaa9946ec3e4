"""Where each key of a policy's config in DI-engine goes in the config of the same policy here.

``KEYS`` has a table for each policy: DI-engine's dotted key, and a :class:`Key`. A key that is not in the table is one
that DI-engine's policy never reads.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.di_engine.shared_keys import (
    BUFFER,
    COMMON,
    EVAL_FREQ,
    NETWORK,
    REPLAY,
    Cfg,
    Key,
    Ours,
    encoder_widths,
    eval_freq_key,
    is_image,
    is_prioritised,
    only,
    qac_encoder,
    replaced,
    same,
    squeezed,
    to,
    with_layers,
)

# ---------------------------------------------------------------------------------------------------- Q-learning

RAINBOW_EPS = 0.05  # DI-engine's Rainbow has a constant epsilon by default


def _has_eps(cfg: Cfg) -> bool:
    return bool(cfg.get("other.eps.start", RAINBOW_EPS) != cfg.get("other.eps.end", RAINBOW_EPS))


_FLAT = "epsilon is constant"
_EPS_SCHEDULE: dict[str, Key] = {
    **same("other.eps.start", "other.eps.end"),
    "other.eps.type": to("other.eps.type", needs=_has_eps, why=_FLAT),
    "other.eps.decay": to("other.eps.decay", needs=_has_eps, why=_FLAT),
}
_Q_NETWORK: dict[str, Key] = {
    **NETWORK,
    "model.encoder_hidden_size_list": Key(encoder_widths),
    "model.head_hidden_size": to("model.head_hidden_size", **with_layers("head")),
    "model.head_layer_num": to("model.head_layer_num"),
}
_THETA = "target_update_freq, which is always set, takes precedence"
Q_LEARNING: dict[str, Key] = {
    **REPLAY,
    **_EPS_SCHEDULE,
    **_Q_NETWORK,
    **same("discount_factor", "nstep", "learn.learning_rate", "learn.target_update_freq"),
    "learn.target_theta": Key(needs=lambda _: False, why=_THETA),
}
"""Keys of DQN and its relatives."""

_CATEGORICAL = same("model.v_min", "model.v_max", "model.n_atom")
_DQN: dict[str, Key] = {
    **Q_LEARNING,
    **same("model.dueling"),
    "model.dropout": only(None, why="there is no dropout in our Q-networks"),
    "model.init_bias": only(None, why="the head is initialised like all other layers"),
    "model.noise": only(False, why="noisy layers are those of rainbow"),
}
_KAPPA = Key(needs=lambda _: False, why="DI-engine's QR-DQN always uses 1")
_EMBEDDING = same("model.num_quantiles", "model.quantile_embedding_size")
_IQN: dict[str, Key] = {
    **Q_LEARNING,
    **_EMBEDDING,
    **same("learn.kappa"),
    "model.beta_function_type": only("uniform", why="quantile levels are uniform in [0, 1]"),
    "model.num_quantiles": to("model.num_quantiles", "learn.num_quantiles", "learn.num_target_quantiles"),
}
_FQF: dict[str, Key] = {
    **{path: key for path, key in Q_LEARNING.items() if path != "learn.learning_rate"},
    **_EMBEDDING,
    **same("learn.kappa", "learn.learning_rate_fraction", "learn.ent_coef"),
    "learn.learning_rate_quantile": to("learn.learning_rate"),
}

_SEQUENCES = "the buffer gives sequences"


def _sequence(cfg: Cfg) -> int:
    """Return the steps of a sequence of DI-engine's R2D2."""
    return int(cfg.get("burnin_step", 20) + cfg.get("learn_unroll_len", 80))


def _in_steps(path: str) -> Key:
    """Return a key of an amount of sequences, which is one of transitions here."""
    return Key(lambda value, cfg: {path: value * _sequence(cfg)})


def _recurrent_widths(value: Any, cfg: Cfg) -> Ours:
    width = cfg.get("model.head_hidden_size") or value[-1]
    return encoder_widths(value, cfg) | {"model.core.hidden_size": width}


_BUFFER = "other.replay_buffer."
_NOT_OF_R2D2 = ("learn.target_theta", "learn.target_update_freq")
_PRIORITIES = ("alpha", "beta", "anneal_step", "priority_power_factor", "IS_weight_power_factor")
_R2D2: dict[str, Key] = {
    **{path: key for path, key in Q_LEARNING.items() if path not in _NOT_OF_R2D2},
    **{path: replaced(_SEQUENCES) for path in BUFFER},
    **{path: BUFFER[path] for path in (f"{_BUFFER}{name}" for name in _PRIORITIES)},
    f"{_BUFFER}IS_weight_anneal_train_iter": BUFFER[f"{_BUFFER}IS_weight_anneal_train_iter"],
    f"{_BUFFER}type": Key(
        lambda _, cfg: {f"{_BUFFER}type": "prioritised_sequence" if is_prioritised(cfg) else "sequence"},
        why=_SEQUENCES,
    ),
    f"{_BUFFER}replay_buffer_size": _in_steps(f"{_BUFFER}replay_buffer_size"),
    "priority": Key(
        lambda _, cfg: {"priority": True} if is_prioritised(cfg) else {"priority": False, "priority_IS_weight": False}
    ),
    "priority_IS_weight": Key(lambda value, cfg: {"priority_IS_weight": bool(value) and is_prioritised(cfg)}),
    **same("burnin_step", "learn.value_rescale", "model.dueling"),
    # its sequences have as many more steps as ours, of which nothing is learned
    "learn_unroll_len": Key(lambda value, cfg: {"learn_unroll_len": value - cfg.get("nstep", 5)}),
    "learn.target_update_theta": to("learn.target_theta"),
    "collect.n_sample": _in_steps("collect.n_sample"),
    "collect.unroll_len": replaced("a sequence has burnin_step + learn_unroll_len steps"),
    "collect.traj_len_inf": replaced("the buffer draws sequences from whole episodes"),
    "collect.env_num": replaced("the state of each env is kept for as many envs as there are"),
    "eval.env_num": replaced("the state of each env is kept for as many envs as there are"),
    "model.encoder_hidden_size_list": Key(_recurrent_widths),
    "model.head_hidden_size": Key(lambda value, _: {} if value is None else {"model.core.hidden_size": value}),
    "model.lstm_type": Key(
        lambda value, _: {"model.core.type": "gru" if value == "gru" else "lstm"},
        why="there is no other core",
        allowed=("normal", "pytorch", "gru"),
    ),
    "model.res_link": only(False, why="there is no connection around the core"),
}

# ---------------------------------------------------------------------------------------------------- actor-critic


_NO_ALPHA: dict[str, Any] = {"needs": lambda cfg: cfg.get("learn.auto_alpha", True), "why": "learn.auto_alpha is False"}
QAC: dict[str, Key] = {
    **REPLAY,
    **NETWORK,
    "model.norm_type": only(None, why="set model.layer_norm of our config, which normalises the encoder too"),
    "learn.discount_factor": to("discount_factor"),
    "reward_batch_norm": only(False, why="set norm_reward of the datamodule"),
    **same("model.twin_critic", "model.share_encoder"),
    **same("model.actor_head_hidden_size", "model.critic_head_hidden_size"),
    **same("model.actor_head_layer_num", "model.critic_head_layer_num"),
    "model.encoder_hidden_size_list": Key(qac_encoder, needs=is_image, why="there are no images"),
}
"""Keys of DDPG, TD3 and SAC."""

HYBRID_SHAPE = ("model.action_shape.action_type_shape", "model.action_shape.action_args_shape")


def _is_hybrid(cfg: Cfg) -> bool:
    return cfg.get("action_space") == "hybrid"


_CHOICE = "only hybrid actions have a choice"


def _ddpg(noise: bool, actor_update_freq: int) -> dict[str, Key]:
    """Return the keys of DDPG and TD3, which have these defaults."""

    def theta(value: Any, cfg: Cfg) -> Ours:
        """Return the step with which a target that moves with the actor gets as far as one that always moves."""
        freq = cfg.get("learn.actor_update_freq", actor_update_freq)
        return {"learn.target_theta": value if freq == 1 else 1 - (1 - value) ** freq}

    noisy: dict[str, Any] = {"needs": lambda cfg: cfg.get("learn.noise", noise), "why": "learn.noise is False"}
    sizes = ("learn.noise_sigma", "learn.noise_range.min", "learn.noise_range.max")
    epsilon = [f"other.eps.{name}" for name in ("type", "start", "end", "decay")]
    return {
        **QAC,
        "action_space": only("continuous", "hybrid", why="DDPG has no other action space"),
        "model.action_space": only("regression", "hybrid", why="the type of the policy decides"),
        **{path: to(path, convert=squeezed) for path in HYBRID_SHAPE},
        **same("learn.learning_rate_actor", "learn.learning_rate_critic", "learn.actor_update_freq", "learn.noise"),
        "learn.target_theta": Key(theta),
        **{path: to(path, **noisy) for path in sizes},
        **same("collect.noise_sigma"),
        **{path: to(path, needs=_is_hybrid, why=_CHOICE) for path in epsilon},
    }


_NOT_IN_D4PG = ("model.twin_critic", "model.share_encoder", "model.encoder_hidden_size_list")
_D4PG: dict[str, Key] = {
    **{path: key for path, key in _ddpg(noise=False, actor_update_freq=1).items() if path not in _NOT_IN_D4PG},
    **same("nstep"),
    **_CATEGORICAL,
    "model.critic_head_type": only("categorical", why="D4PG's critic has no other head"),
}
_SAC: dict[str, Key] = {
    **QAC,
    "model.action_space": only("reparameterization", why="the type of the policy decides"),
    **same("learn.learning_rate_q", "learn.learning_rate_policy", "learn.alpha", "learn.auto_alpha"),
    **same("learn.target_theta"),
    "learn.learning_rate_alpha": to("learn.learning_rate_alpha", **_NO_ALPHA),
    "learn.log_space": to("learn.log_space", **_NO_ALPHA),
    "learn.target_entropy": to("learn.target_entropy", **_NO_ALPHA),
    "learn.init_w": to("model.last_layer_init"),
}

_DISCRETE_SAC: dict[str, Key] = {
    **{path: key for path, key in _SAC.items() if path not in ("model.action_space", "reward_batch_norm")},
    **_EPS_SCHEDULE,
    "learn.init_w": Key(needs=lambda _: False, why="DI-engine's discrete SAC does not read it"),
    "multi_agent": only(False, why="there is one agent"),
}

# ---------------------------------------------------------------------------------------------------- on-policy

_NO_REPLAY = "there is no replay"
_UNIFORM = "minibatches are drawn uniformly"
_WHOLE_EPISODES = "the collector takes collect.n_episode"
ON_POLICY: dict[str, Key] = {
    **COMMON,
    "collect.n_sample": to(
        "collect.n_sample", needs=lambda cfg: cfg["collect.collector.type"] == "sample", why=_WHOLE_EPISODES
    ),
    "collect.n_episode": to(
        "collect.n_episode",
        needs=lambda cfg: cfg["collect.collector.type"] == "episode",
        why="the collector takes collect.n_sample",
    ),
    "collect.discount_factor": to("discount_factor"),
    "action_space": to("model.action_space"),
    "priority": only(False, why=_NO_REPLAY),
    "priority_IS_weight": only(False, why=_NO_REPLAY),
    **same("learn.batch_size", "learn.learning_rate", "learn.entropy_weight"),
    **NETWORK,
    "model.action_space": to("model.action_space"),
    **{path: to(path, convert=squeezed) for path in HYBRID_SHAPE},
    "model.encoder_hidden_size_list": Key(encoder_widths),
}
"""Keys of the policies that learn from rollouts."""


def _fixed_sigma(value: Any, cfg: Cfg) -> Ours:
    """Return the standard deviation of actions; DI-engine reads the key for hybrid ones, and uses 1 for others."""
    return {"model.fixed_sigma_value": value if _is_hybrid(cfg) else 1.0}


_ACTOR_CRITIC: dict[str, Key] = {
    **ON_POLICY,
    **same("learn.adv_norm", "learn.ignore_done", "collect.gae_lambda", "model.share_encoder"),
    **same("model.sigma_type", "model.bound_type"),
    **same("model.actor_head_layer_num", "model.critic_head_layer_num"),
    "model.actor_head_hidden_size": to("model.actor_head_hidden_size", **with_layers("actor_head")),
    "model.critic_head_hidden_size": to("model.critic_head_hidden_size", **with_layers("critic_head")),
    "model.fixed_sigma_value": Key(
        _fixed_sigma,
        lambda cfg: cfg.get("model.sigma_type") == "fixed",
        "model.sigma_type is not 'fixed'",
    ),
    "model.encoder": only(None, why="register the encoder here, and name it in model.encoder of our config"),
    "model.impala_cnn_encoder": to("model.encoder", convert=lambda value: "impala" if value else None),
}
_A2C: dict[str, Key] = {
    **_ACTOR_CRITIC,
    "learn.update_per_collect": only(1, why="A2C makes one pass over a rollout"),
    **same("learn.value_weight"),
    "learn.grad_norm": to("learn.grad_clip_norm"),
    "learn.eps": to("learn.optimizer.eps"),
    "learn.betas": to("learn.optimizer.betas", convert=list),
    EVAL_FREQ: eval_freq_key("a2c"),
}


def _clip(value: Any, cfg: Cfg) -> Ours:
    kind = cfg.get("learn.grad_clip_type", "clip_norm")
    norm, entry = (value, None) if kind == "clip_norm" else (None, value)
    return {"learn.grad_clip_norm": norm, "learn.grad_clip_value": entry}


def _decay(value: Any, cfg: Cfg) -> Ours:
    """Return a schedule that ends after ``value`` rollouts."""
    rows = cfg.get("collect.n_sample")
    if rows is None:
        raise ValueError("policy.learn.lr_scheduler needs collect.n_sample: a schedule here counts env steps")
    path = "learn.lr_scheduler."
    return {f"{path}type": "linear", f"{path}unit": "env_step", f"{path}decay": value * rows}


_PPO: dict[str, Key] = {
    **_ACTOR_CRITIC,
    **same("recompute_adv", "learn.epoch_per_collect", "learn.value_weight", "learn.value_norm"),
    **same("learn.ppo_param_init"),
    "learn.clip_ratio": to("learn.clip_ratio", "learn.value_clip"),  # DI-engine clips values by the same distance
    "learn.grad_clip_type": Key(
        lambda _, cfg: _clip(cfg.get("learn.grad_clip_value", 0.5), cfg),
        why="an optimizer here clips by the norm or by the value",
        allowed=("clip_norm", "clip_value"),
    ),
    "learn.grad_clip_value": Key(_clip),
    "learn.lr_scheduler": only(None, why="a schedule has epoch_num and min_lr_lambda"),
    "learn.lr_scheduler.epoch_num": Key(_decay),
    "learn.lr_scheduler.min_lr_lambda": to("learn.lr_scheduler.end"),
    "nstep_return": only(False, why="advantages are generalised advantages"),
    EVAL_FREQ: eval_freq_key("ppo"),
}
_REPLAYED: dict[str, Key] = {
    **_ACTOR_CRITIC,
    **{path: key for path, key in BUFFER.items() if "priority" not in path},
    **same("learn.update_per_collect", "learn.value_weight"),
    "collect.n_sample": to("collect.n_sample"),
    "collect.n_episode": only(None, why="learning from replay collects collect.n_sample transitions"),
    "priority": only(False, why=_UNIFORM),
    "priority_IS_weight": only(False, why=_UNIFORM),
    EVAL_FREQ: eval_freq_key("dqn"),
}
_PPO_OFFPOLICY: dict[str, Key] = {
    **_REPLAYED,
    **{path: _PPO[path] for path in ("learn.clip_ratio", "learn.grad_clip_type", "learn.grad_clip_value")},
    **same("learn.ppo_param_init", "learn.value_norm", "nstep_return"),
    "nstep": to("nstep", needs=lambda cfg: cfg.get("nstep_return", False), why="nstep_return is False"),
    "learn.weight_decay": to("learn.optimizer.weight_decay"),
}


def _unrolls(path: str) -> Key:
    """Return a key of an amount of unrolls, which is one of transitions here."""
    return Key(lambda value, cfg: {path: value * cfg.get("collect.unroll_len", 32)})


def _impala_clip(_: Any, cfg: Cfg) -> Ours:
    if cfg.get("learn.grad_clip_type") is None:
        return {"learn.grad_clip_norm": None}
    return _clip(cfg.get("learn.clip_value", 0.5), cfg)


_UNROLLS = "the buffer gives sequences, and its size says for how long an unroll is used"
_NOT_OF_IMPALA = ("learn.adv_norm", "learn.ignore_done", "collect.gae_lambda", "collect.discount_factor")
_IMPALA: dict[str, Key] = {
    **{path: key for path, key in _REPLAYED.items() if path not in _NOT_OF_IMPALA},
    **{path: replaced(_UNROLLS) for path in _REPLAYED if path in BUFFER},
    **same("learn.lambda_", "learn.rho_clip_ratio", "learn.c_clip_ratio", "learn.rho_pg_clip_ratio"),
    "learn.discount_factor": to("discount_factor"),
    "collect.unroll_len": to("unroll_len"),
    "collect.n_sample": _unrolls("collect.n_sample"),
    "other.replay_buffer.replay_buffer_size": _unrolls("other.replay_buffer.replay_buffer_size"),
    "learn.grad_clip_type": Key(
        _impala_clip,
        why="an optimizer here clips by the norm or by the value",
        allowed=(None, "clip_norm", "clip_value"),
    ),
    "learn.clip_value": Key(
        _impala_clip, lambda cfg: cfg.get("learn.grad_clip_type") is not None, "learn.grad_clip_type is None"
    ),
    "learn.optim": Key(
        lambda value, _: {"learn.optimizer.type": value}, why="DI-engine has two", allowed=("adam", "rmsprop")
    ),
}
_PG: dict[str, Key] = {
    **ON_POLICY,
    **same("deterministic_eval"),
    EVAL_FREQ: eval_freq_key("pg"),
    "learn.grad_norm": to("learn.grad_clip_norm"),
    "learn.ignore_done": only(False, why="there is no critic, so nothing is known about returns after an end"),
    "model.head_hidden_size": to("model.actor_head_hidden_size", **with_layers("head")),
    "model.head_layer_num": to("model.actor_head_layer_num"),
}

KEYS: dict[str, dict[str, Key]] = {
    "dqn": _DQN,
    "c51": {**Q_LEARNING, **_CATEGORICAL},
    "qrdqn": {**Q_LEARNING, **same("model.num_quantiles"), "learn.kappa": _KAPPA},
    "rainbow": {**Q_LEARNING, **_CATEGORICAL},
    "mdqn": {**_DQN, **same("entropy_tau", "m_alpha")},
    "sql": {**_DQN, **same("learn.alpha")},
    "iqn": _IQN,
    "fqf": _FQF,
    "r2d2": _R2D2,
    "ddpg": _ddpg(noise=False, actor_update_freq=1),
    "d4pg": _D4PG,
    "td3": _ddpg(noise=True, actor_update_freq=2),
    "sac": _SAC,
    "discrete_sac": _DISCRETE_SAC,
    "a2c": _A2C,
    "ppo": _PPO,
    "ppo_offpolicy": _PPO_OFFPOLICY,
    "impala": _IMPALA,
    "pg": _PG,
}
"""The keys that each policy of DI-engine reads."""

HOME_OF_GAMMA = {
    "dqn": "discount_factor",
    "c51": "discount_factor",
    "qrdqn": "discount_factor",
    "rainbow": "discount_factor",
    "mdqn": "discount_factor",
    "sql": "discount_factor",
    "iqn": "discount_factor",
    "fqf": "discount_factor",
    "r2d2": "discount_factor",
    "ddpg": "learn.discount_factor",
    "d4pg": "learn.discount_factor",
    "td3": "learn.discount_factor",
    "sac": "learn.discount_factor",
    "discrete_sac": "learn.discount_factor",
    "a2c": "collect.discount_factor",
    "ppo": "collect.discount_factor",
    "ppo_offpolicy": "collect.discount_factor",
    "impala": "learn.discount_factor",
    "pg": "collect.discount_factor",
}
"""The one of the three homes of the discount factor that each policy reads."""

READ_BY_NOBODY = {
    "learn.reparameterization": "no policy reads it",
    "learn.multi_gpu": "policy.multi_gpu is the key",
    "other.replay_buffer.max_reuse": "other.replay_buffer.max_use is the key",
    "eval.evaluator.evalu_freq": "eval.evaluator.eval_freq is the key",
    "eval.test_ret": "no policy reads it",
    "log_dir": "exp_name is the folder of a run",
    "learn.epochs_aux": "no policy reads it",
    "learn.beta_weight": "no policy reads it",
    "collect.each_iter_n_sample": "collect.n_sample is the key",
    "collect.env_num": "env.collector_env_num is the key",
    "eval.env_num": "env.evaluator_env_num is the key",
}
"""Keys that configs of DI-engine have and that none of these policies reads, with the reason."""
