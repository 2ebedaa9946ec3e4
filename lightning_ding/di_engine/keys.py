"""Where each key of a policy's config in DI-engine goes in the config of the same policy here.

``KEYS`` has a table for each policy: DI-engine's dotted key, and a :class:`Key`. A key that is not in the table is one
that DI-engine's policy never reads.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.di_engine.offline_keys import BC, BCQ, cql_keys, edac_keys, from_data, iql_keys
from lightning_ding.di_engine.ppg_keys import ppg_keys, ppg_offpolicy_keys
from lightning_ding.di_engine.q_learning_keys import (
    BDQ,
    CATEGORICAL,
    DQFD,
    DQN,
    EPS_SCHEDULE,
    FQF,
    IQN,
    KAPPA,
    NGU,
    NOISY_DQN,
    Q_LEARNING,
    R2D2,
    R2D2_GTRXL,
    R2D3,
    SQN,
)
from lightning_ding.di_engine.shared_keys import (
    BUFFER,
    COMMON,
    COUNTED,
    EVAL_FREQ,
    NETWORK,
    REPLAY,
    Cfg,
    Key,
    Ours,
    encoder_widths,
    eval_freq_key,
    is_image,
    only,
    qac_encoder,
    replaced,
    same,
    squeezed,
    to,
    with_layers,
)
from lightning_ding.di_engine.team_keys import coma_keys, happo_keys, mappo_keys
from lightning_ding.di_engine.team_q_keys import MADQN, QMIX, QTRAN, VDN, WQMIX
from lightning_ding.registry import POLICY_REGISTRY

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


_MULTI_PASS: dict[str, Any] = {"needs": lambda cfg: cfg.get("model.multi_pass", False), "why": "multi_pass is False"}


def _widths_of_heads(value: Any, _: Cfg) -> Ours:
    """Return the widths of the hidden layers of P-DQN's two heads; None means that of its encoder."""
    return {} if value is None else {f"model.{head}_head_hidden_size": value for head in ("actor", "critic")}


def _layers_of_heads(value: Any, _: Cfg) -> Ours:
    return {f"model.{head}_head_layer_num": value - 1 for head in ("actor", "critic")}


_PDQN: dict[str, Key] = {
    **REPLAY,
    **EPS_SCHEDULE,
    **NETWORK,
    **{path: to(path, convert=squeezed) for path in HYBRID_SHAPE},
    **same("discount_factor", "nstep", "learn.target_theta", "collect.noise_sigma"),
    "model.encoder_hidden_size_list": Key(encoder_widths),
    "model.head_hidden_size": Key(_widths_of_heads),
    "model.head_layer_num": Key(_layers_of_heads),
    "model.norm_type": only(None, why="set model.layer_norm of our config"),
    "model.dueling": Key(needs=lambda _: False, why="the values of the choices have one stream here"),
    "model.multi_pass": replaced("model.argument_mask"),
    "model.action_mask": to("model.argument_mask", **_MULTI_PASS),
    "learn.learning_rate_dis": to("learn.learning_rate_critic"),
    "learn.learning_rate_cont": to("learn.learning_rate_actor"),
    "learn.update_circle": Key(
        lambda value, _: {"learn.turn": 5}, why="the critic and the actor learn in turns of five updates", allowed=(10,)
    ),
}
_NOT_IN_D4PG = ("model.twin_critic", "model.share_encoder", "model.encoder_hidden_size_list")
_D4PG: dict[str, Key] = {
    **{path: key for path, key in _ddpg(noise=False, actor_update_freq=1).items() if path not in _NOT_IN_D4PG},
    **same("nstep"),
    **CATEGORICAL,
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
    **EPS_SCHEDULE,
    "learn.init_w": Key(needs=lambda _: False, why="DI-engine's discrete SAC does not read it"),
    "multi_agent": only(False, why="there is one agent"),
}

# ---------------------------------------------------------------------------------------------------- on-policy

_NO_REPLAY = "there is no replay"
_UNIFORM = "minibatches are drawn uniformly"
ON_POLICY: dict[str, Key] = {
    **COMMON,
    **COUNTED,
    "collect.discount_factor": to("discount_factor"),
    "action_space": to("model.action_space"),
    **dict.fromkeys(("priority", "priority_IS_weight"), Key(needs=lambda _: False, why=_NO_REPLAY)),
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
    **COUNTED,
    "priority": only(False, why=_UNIFORM),
    "priority_IS_weight": only(False, why=_UNIFORM),
    EVAL_FREQ: eval_freq_key("dqn"),
}


def _clip_ratio_of_replay(value: Any, cfg: Cfg) -> Ours:
    """Return the distances of clipping; DI-engine does not clip the values of n-step returns."""
    return {"learn.clip_ratio": value, "learn.value_clip": None if cfg.get("nstep_return", False) else value}


def _of_n_steps(_: Any, cfg: Cfg) -> Ours:
    """Return the kind of returns, and the weight of the critic's loss, which DI-engine halves only without n steps."""
    is_on, weight = bool(cfg.get("nstep_return", False)), cfg.get("learn.value_weight", 0.5)
    return {"nstep_return": is_on, "learn.value_weight": 2 * weight if is_on else weight}


_PPO_OFFPOLICY: dict[str, Key] = {
    **_REPLAYED,
    **{path: _PPO[path] for path in ("learn.grad_clip_type", "learn.grad_clip_value")},
    "learn.clip_ratio": Key(_clip_ratio_of_replay),
    "learn.value_weight": Key(_of_n_steps),
    "nstep_return": Key(_of_n_steps),
    **same("learn.ppo_param_init", "learn.value_norm"),
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
_NOT_OF_ACER = ("learn.lambda_", "learn.rho_clip_ratio", "learn.rho_pg_clip_ratio", "learn.optim", "learn.value_weight")
_OF_ACTOR_CRITIC = ("model.share_encoder", "model.sigma_type", "model.bound_type", "model.fixed_sigma_value")
_NO_VALUES = ("model.encoder", "model.impala_cnn_encoder", "model.action_space", "action_space", *HYBRID_SHAPE)
_ACER: dict[str, Key] = {
    **{
        path: key
        for path, key in _IMPALA.items()
        if path not in (*_NOT_OF_ACER, *_OF_ACTOR_CRITIC, *_NO_VALUES, "learn.learning_rate")
    },
    **same("learn.learning_rate_actor", "learn.learning_rate_critic", "learn.c_clip_ratio", "learn.target_theta"),
    **same("learn.trust_region", "learn.trust_region_value"),
    **same("model.actor_head_hidden_size", "model.critic_head_hidden_size"),
    **{
        f"model.{head}_head_layer_num": to(f"model.{head}_head_layer_num", convert=lambda layers: layers - 1)
        for head in ("actor", "critic")
    },
    **dict.fromkeys(
        ("learn.value_weight", "learn.lambda_", "learn.unroll_len", "collect.gae_lambda"),
        Key(needs=lambda _: False, why="DI-engine's ACER does not read it"),
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

_QRDQN: dict[str, Key] = {**Q_LEARNING, **same("model.num_quantiles"), "learn.kappa": KAPPA}

KEYS: dict[str, dict[str, Key]] = {
    "dqn": NOISY_DQN,
    "c51": {**Q_LEARNING, **CATEGORICAL},
    "qrdqn": _QRDQN,
    "rainbow": {**Q_LEARNING, **CATEGORICAL},
    "mdqn": {**DQN, **same("entropy_tau", "m_alpha")},
    "sql": {**DQN, **same("learn.alpha")},
    "sqn": SQN,
    "bdq": BDQ,
    "iqn": IQN,
    "fqf": FQF,
    "r2d2": R2D2,
    "r2d2_gtrxl": R2D2_GTRXL,
    "r2d3": R2D3,
    "ngu": NGU,
    "dqfd": DQFD,
    "ddpg": _ddpg(noise=False, actor_update_freq=1),
    "d4pg": _D4PG,
    "td3": _ddpg(noise=True, actor_update_freq=2),
    "pdqn": _PDQN,
    "sac": _SAC,
    "discrete_sac": _DISCRETE_SAC,
    "a2c": _A2C,
    "ppo": _PPO,
    "ppg": ppg_keys(_PPO),
    "ppo_offpolicy": _PPO_OFFPOLICY,
    "ppg_offpolicy": ppg_offpolicy_keys(_PPO, _PPO_OFFPOLICY),
    "impala": _IMPALA,
    "acer": _ACER,
    "pg": _PG,
    "mappo": mappo_keys(_PPO),
    "happo": happo_keys(_PPO),
    "coma": coma_keys(ON_POLICY, BUFFER),
    "cql": cql_keys(_SAC),
    "edac": edac_keys(_SAC),
    "bcq": BCQ,
    "discrete_cql": {**from_data(_QRDQN), **same("learn.min_q_weight")},
    "td3_bc": {**from_data(_ddpg(noise=True, actor_update_freq=2)), **same("learn.alpha")},
    "iql": iql_keys(_SAC),
    "bc": BC,
    "qmix": QMIX,
    "vdn": VDN,
    "wqmix": WQMIX,
    "qtran": QTRAN,
    "madqn": MADQN,
}
"""The keys that each policy of DI-engine reads."""
POLICIES = {"r2d2_gtrxl": "r2d2"}
"""The policy here of each of DI-engine's that is another one with an option."""


def policy_class_of(kind: str) -> Any:
    """Return the class of a registered policy, or of the one that serves for a policy of DI-engine."""
    return POLICY_REGISTRY.get(POLICIES.get(kind, kind))


HOME_OF_GAMMA = {
    "dqn": "discount_factor",
    "c51": "discount_factor",
    "qrdqn": "discount_factor",
    "rainbow": "discount_factor",
    "mdqn": "discount_factor",
    "sql": "discount_factor",
    "sqn": "learn.discount_factor",
    "bdq": "discount_factor",
    "iqn": "discount_factor",
    "fqf": "discount_factor",
    "r2d2": "discount_factor",
    "r2d2_gtrxl": "discount_factor",
    "r2d3": "discount_factor",
    "ngu": "discount_factor",
    "dqfd": "discount_factor",
    "ddpg": "learn.discount_factor",
    "d4pg": "learn.discount_factor",
    "td3": "learn.discount_factor",
    "pdqn": "discount_factor",
    "sac": "learn.discount_factor",
    "discrete_sac": "learn.discount_factor",
    "a2c": "collect.discount_factor",
    "ppo": "collect.discount_factor",
    "ppg": "collect.discount_factor",
    "ppo_offpolicy": "collect.discount_factor",
    "ppg_offpolicy": "collect.discount_factor",
    "acer": "learn.discount_factor",
    "impala": "learn.discount_factor",
    "pg": "collect.discount_factor",
    **dict.fromkeys(("mappo", "happo"), "collect.discount_factor"),
    "cql": "learn.discount_factor",
    "edac": "learn.discount_factor",
    "bcq": "learn.discount_factor",
    "discrete_cql": "discount_factor",
    "td3_bc": "learn.discount_factor",
    "iql": "learn.discount_factor",
    **dict.fromkeys(("qmix", "vdn", "wqmix", "qtran", "madqn", "coma"), "learn.discount_factor"),
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
