"""Where each key of a policy's config in DI-engine goes in the config of the same policy here.

``KEYS`` has a table for each policy: DI-engine's dotted key, and a :class:`Key`. A key that is not in the table is one
that DI-engine's policy never reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Cfg = Mapping[str, Any]
"""The merged config of a policy in DI-engine's format, with dotted keys."""
Ours = dict[str, Any]
"""Values by our dotted keys."""
Needs = Callable[[Cfg], bool]


@dataclass(frozen=True)
class Key:
    """What becomes of a key.

    Args:
        ours: Function that returns our values for the value of the key and the whole config.
        needs: Function that returns whether the key has an effect with the whole config; None means always.
        why: The reason for which the key has no effect when ``needs`` is false, the reason for which no other value is
            allowed, or what serves the purpose of a key that has no value here.
        allowed: The values that can be translated; None for all.
    """

    ours: Callable[[Any, Cfg], Ours] = lambda value, cfg: {}
    needs: Needs | None = None
    why: str = ""
    allowed: tuple[Any, ...] | None = None


def to(*names: str, convert: Callable[[Any], Any] | None = None, needs: Needs | None = None, why: str = "") -> Key:
    """Return a key whose value goes to our keys, converted by a function of the value alone."""
    return Key(lambda value, _: dict.fromkeys(names, value if convert is None else convert(value)), needs, why)


def only(*values: Any, why: str) -> Key:
    """Return a key that is translated for some values alone; the others are refused with the reason ``why``."""
    return Key(allowed=values, why=why)


def replaced(why: str) -> Key:
    """Return a key whose purpose is served in another way, which ``why`` names."""
    return Key(why=why)


FOREIGN = ("ding", "dizoo")
"""Packages whose modules are not imported, because the parts that they register have counterparts here."""


def own_modules(names: Any) -> list[str]:
    """Return the modules of ``import_names`` without those of DI-engine."""
    return [one for one in ([names] if isinstance(names, str) else names) if one.partition(".")[0] not in FOREIGN]


def modules(name: str) -> Key:
    """Return the key of modules to import."""
    why = "modules of DI-engine are not imported"
    return Key(lambda value, _: {name: own_modules(value)} if own_modules(value) else {}, why=why)


def same(*names: str) -> dict[str, Key]:
    """Return a table of keys that have the same names here."""
    return {name: to(name) for name in names}


# ---------------------------------------------------------------------------------------------------- conversions


EVAL_FREQ = "eval.evaluator.eval_freq"


def per_round(cfg: Cfg, family: str) -> tuple[int, int]:
    """Return what a round adds to ``train_iter`` in DI-engine, and here.

    With whole episodes, whose length is not known, a round counts as one pass over one minibatch.
    """
    if family not in ("a2c", "ppo", "pg"):
        updates = int(cfg.get("learn.update_per_collect", 1))
        return updates, updates
    rows, size = cfg.get("collect.n_sample") or 1, cfg.get("learn.batch_size", 64)
    passes = cfg.get("learn.epoch_per_collect", 10) if family == "ppo" else 1
    return 1 if family == "a2c" else passes * math.ceil(rows / size), passes * max(1, round(rows / size))


def _eval_freq(family: str) -> Key:
    """Return the key for the time between evaluations, which are whole rounds."""

    def ours(value: Any, cfg: Cfg) -> Ours:
        if cfg["collect.collector.type"] == "episode":
            return {EVAL_FREQ: value}
        theirs, here = per_round(cfg, family)
        return {EVAL_FREQ: math.ceil(value / theirs) * here}

    return Key(ours)


def _squeezed(value: Any) -> Any:
    """Return a shape of one number as that number."""
    if isinstance(value, (list, tuple)):
        return int(value[0]) if len(value) == 1 else [int(one) for one in value]
    return value


def _is_image(cfg: Cfg) -> bool:
    shape = _squeezed(cfg.get("model.obs_shape"))
    return isinstance(shape, list) and len(shape) == 3


ACTIVATIONS = {"ReLU": "relu", "Tanh": "tanh", "ELU": "elu", "GELU": "gelu", "SiLU": "silu"}


def _activation(value: Any) -> str:
    name = value if isinstance(value, str) else type(value).__name__
    found = ACTIVATIONS.get(name, name if name in ACTIVATIONS.values() else None)
    if found is None:
        raise ValueError(f"policy.model.activation must be one of {', '.join(ACTIVATIONS)}, got {value!r}")
    return found


def _limit(value: Any) -> Any:
    """Return None for no limit."""
    return None if value is None or math.isinf(value) else value


def _limit_to(name: str) -> Key:
    """Return a key whose value, if it is a limit, goes to ours."""
    return Key(lambda value, _: {} if _limit(value) is None else {name: value}, why="no limit")


_BUFFER = "other.replay_buffer."
_RATE = f"{_BUFFER}thruput_controller.push_sample_rate_limit."


def is_prioritised(cfg: Cfg) -> bool:
    """Return whether DI-engine's buffer of a config uses the priorities of the policy."""
    kind = cfg[f"{_BUFFER}type"]
    reads = kind == "advanced" or (kind == "deque" and cfg.get(f"{_BUFFER}priority", False))
    return bool(cfg.get("priority", False)) and reads


def _buffer_limits(cfg: Cfg) -> bool:
    """Return whether a buffer limits the use, the age or the rate of its transitions."""
    limits = [_limit(cfg.get(name)) for name in (f"{_BUFFER}max_use", f"{_BUFFER}max_staleness", f"{_RATE}max")]
    return any(one is not None for one in limits) or cfg.get(f"{_RATE}min", 0) > 0


def _buffer_type(value: Any, cfg: Cfg) -> Ours:
    """Return the fastest of our buffers that draws as DI-engine's: without priorities and limits, uniformly."""
    if value in ("naive", "advanced", "deque"):
        value = "advanced" if is_prioritised(cfg) or _buffer_limits(cfg) else "naive"
    return {f"{_BUFFER}type": value}


# ---------------------------------------------------------------------------------------------------- shared tables

_METRICS = "the callback MetricsLogger writes the metrics"
_RECURRENT = "none of these networks has a memory"
COMMON: dict[str, Key] = {
    "bp_update_sync": only(True, why="gradients are always averaged before a step"),
    "traj_len_inf": replaced("collecting in pieces never cuts an n-step return"),
    "transition_with_policy_data": replaced("the actions of random_collect_size are drawn from the action space"),
    "multi_agent": only(False, why="there are no multi-agent policies here"),
    "collect.unroll_len": only(1, why=_RECURRENT),
    "collect.collector.type": replaced("the collector of collect.n_sample or of collect.n_episode"),
    "collect.collector.import_names": modules("collect.collector.import_names"),
    "collect.collector.collect_print_freq": replaced(_METRICS),
    "collect.collector.deepcopy_obs": replaced("observations of an env that reuses its memory are always copied"),
    "collect.collector.transform_obs": replaced("observations always reach the policy as tensors"),
    "collect.collector.get_train_sample": replaced("a round always gives training samples"),
    "collect.collector.reward_shaping": only(False, why="put the reward into an env wrapper"),
    "collect.collector_logit": only(False, why="no reward model learns from them here"),
    "eval.evaluator.type": only("interaction", why="a Trainer evaluates in envs"),
    "eval.evaluator.n_episode": Key(needs=lambda _: False, why="env.n_evaluator_episode replaces it"),
    "eval.evaluator.stop_value": Key(needs=lambda _: False, why="env.stop_value replaces it"),
    **same("eval.evaluator.render.render_freq", "eval.evaluator.render.mode", "eval.evaluator.figure_path"),
}
"""Keys of every policy, apart from those of the device, the learner and its hooks, which :mod:`translate` reads."""

_PRIORITISED: dict[str, Any] = {"needs": is_prioritised, "why": "the buffer has no priorities"}
BUFFER: dict[str, Key] = {
    f"{_BUFFER}type": Key(_buffer_type, why="the fastest buffer that draws in the same way"),
    f"{_BUFFER}import_names": modules(f"{_BUFFER}import_names"),
    **same(f"{_BUFFER}replay_buffer_size", f"{_BUFFER}enable_track_used_data"),
    f"{_BUFFER}max_use": _limit_to(f"{_BUFFER}max_use"),
    f"{_BUFFER}max_staleness": _limit_to(f"{_BUFFER}max_staleness"),
    f"{_BUFFER}alpha": to(f"{_BUFFER}alpha", **_PRIORITISED),
    f"{_BUFFER}beta": to(f"{_BUFFER}beta", **_PRIORITISED),
    f"{_BUFFER}anneal_step": to(f"{_BUFFER}anneal_step", **_PRIORITISED),
    f"{_BUFFER}priority": Key(why="policy.priority"),
    f"{_BUFFER}priority_IS_weight": Key(why="policy.priority_IS_weight"),
    f"{_BUFFER}priority_power_factor": to(f"{_BUFFER}alpha", **_PRIORITISED),
    f"{_BUFFER}IS_weight_power_factor": to(f"{_BUFFER}beta", **_PRIORITISED),
    f"{_BUFFER}IS_weight_anneal_train_iter": to(f"{_BUFFER}anneal_step", **_PRIORITISED),
    f"{_BUFFER}deepcopy": replaced("a buffer always stores and returns copies"),
    f"{_BUFFER}train_iter_per_log": replaced(_METRICS),
    f"{_BUFFER}periodic_thruput_seconds": replaced(_METRICS),
    f"{_BUFFER}monitor.sampled_data_attr.average_range": replaced(_METRICS),
    f"{_BUFFER}monitor.sampled_data_attr.print_freq": replaced(_METRICS),
    f"{_BUFFER}monitor.periodic_thruput.seconds": replaced(_METRICS),
    f"{_RATE}max": _limit_to(f"{_RATE}max"),
    f"{_RATE}min": to(f"{_RATE}min", needs=_buffer_limits, why="there is no limit"),
    f"{_BUFFER}thruput_controller.window_seconds": to(
        f"{_BUFFER}thruput_controller.window_seconds", needs=_buffer_limits, why="there is no limit"
    ),
    f"{_BUFFER}thruput_controller.sample_min_limit_ratio": to(
        f"{_BUFFER}thruput_controller.sample_min_limit_ratio", needs=_buffer_limits, why="there is no limit"
    ),
    f"{_BUFFER}multi_buffer": only(False, why="a policy here has one buffer"),
}
"""Keys of the replay buffers naive, advanced and deque."""

_NAIVE = "the buffer of this config ignores priorities"
REPLAY: dict[str, Key] = {
    **COMMON,
    **BUFFER,
    **same("random_collect_size", "collect.n_sample", "learn.update_per_collect", "learn.batch_size"),
    **same("learn.ignore_done"),
    "priority": to("priority", needs=lambda cfg: not cfg["priority"] or is_prioritised(cfg), why=_NAIVE),
    "priority_IS_weight": to(
        "priority_IS_weight", needs=lambda cfg: not cfg["priority_IS_weight"] or is_prioritised(cfg), why=_NAIVE
    ),
    "collect.n_episode": only(None, why="learning from replay collects collect.n_sample transitions"),
    EVAL_FREQ: _eval_freq("dqn"),
}
"""Keys of the policies that learn from replay."""

_OBS = {"model.obs_shape": to("model.obs_shape", convert=_squeezed)}
_ACTION = {"model.action_shape": to("model.action_shape", convert=_squeezed)}
_NETWORK: dict[str, Key] = {
    **_OBS,
    **_ACTION,
    "model.activation": to("model.activation", convert=_activation),
    "model.norm_type": only(None, why="set model.layer_norm of our config"),
}


def _encoder(value: Any, cfg: Cfg) -> Ours:
    """Return the encoder of a config: for images, three convolutions and a linear layer as wide as the last number."""
    if not _is_image(cfg) or cfg.get("model.impala_cnn_encoder", False):
        return {"model.encoder_hidden_size_list": list(value)}
    if len(value) not in (3, 4):
        raise ValueError(f"policy.model.encoder_hidden_size_list must have 3 or 4 widths for images, got {value}")
    return {"model.encoder_kwargs": {"channels": list(value[:3]), "feature_size": value[-1]}}


def _qac_encoder(value: Any, cfg: Cfg) -> Ours:
    kernels, strides = [3] * len(value), [2, *[1] * (len(value) - 1)]
    sizes = {"channels": list(value), "feature_size": value[-1], "kernel_size": kernels, "stride": strides}
    return {"model.encoder_kwargs": sizes}


def _with_layers(head: str) -> dict[str, Any]:
    return {"needs": lambda cfg: cfg.get(f"model.{head}_layer_num", 1) > 0, "why": "the head has no hidden layers"}


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
    **_NETWORK,
    "model.encoder_hidden_size_list": Key(_encoder),
    "model.head_hidden_size": to("model.head_hidden_size", **_with_layers("head")),
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
}
_KAPPA = Key(needs=lambda _: False, why="DI-engine's QR-DQN always uses 1")

# ---------------------------------------------------------------------------------------------------- actor-critic


def _moved_layers(value: int) -> int:
    """Return our number of hidden layers, which includes the layer that DI-engine puts before its heads."""
    return value + 1


_NO_ALPHA: dict[str, Any] = {"needs": lambda cfg: cfg.get("learn.auto_alpha", True), "why": "learn.auto_alpha is False"}
QAC: dict[str, Key] = {
    **REPLAY,
    **_NETWORK,
    "learn.discount_factor": to("discount_factor"),
    "reward_batch_norm": only(False, why="set norm_reward of the datamodule"),
    **same("model.twin_critic", "model.share_encoder"),
    **same("model.actor_head_hidden_size", "model.critic_head_hidden_size"),
    "model.actor_head_layer_num": to("model.actor_head_layer_num", convert=_moved_layers),
    "model.critic_head_layer_num": to("model.critic_head_layer_num", convert=_moved_layers),
    "model.encoder_hidden_size_list": Key(_qac_encoder, needs=_is_image, why="there are no images"),
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
        **{path: to(path, convert=_squeezed) for path in HYBRID_SHAPE},
        **same("learn.learning_rate_actor", "learn.learning_rate_critic", "learn.actor_update_freq", "learn.noise"),
        "learn.target_theta": Key(theta),
        **{path: to(path, **noisy) for path in sizes},
        **same("collect.noise_sigma"),
        **{path: to(path, needs=_is_hybrid, why=_CHOICE) for path in epsilon},
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

# ---------------------------------------------------------------------------------------------------- on-policy

_NO_REPLAY = "there is no replay"
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
    **_NETWORK,
    "model.action_space": to("model.action_space"),
    **{path: to(path, convert=_squeezed) for path in HYBRID_SHAPE},
    "model.encoder_hidden_size_list": Key(_encoder),
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
    "model.actor_head_hidden_size": to("model.actor_head_hidden_size", **_with_layers("actor_head")),
    "model.critic_head_hidden_size": to("model.critic_head_hidden_size", **_with_layers("critic_head")),
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
    "learn.value_weight": to("learn.value_weight", convert=lambda value: 2 * value),  # our loss is half the square
    "learn.grad_norm": to("learn.grad_clip_norm"),
    "learn.eps": to("learn.optimizer.eps"),
    "learn.betas": to("learn.optimizer.betas", convert=list),
    EVAL_FREQ: _eval_freq("a2c"),
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
    EVAL_FREQ: _eval_freq("ppo"),
}
_PG: dict[str, Key] = {
    **ON_POLICY,
    **same("deterministic_eval"),
    EVAL_FREQ: _eval_freq("pg"),
    "learn.grad_norm": to("learn.grad_clip_norm"),
    "learn.ignore_done": only(False, why="there is no critic, so nothing is known about returns after an end"),
    "model.head_hidden_size": to("model.actor_head_hidden_size", **_with_layers("head")),
    "model.head_layer_num": to("model.actor_head_layer_num"),
}

KEYS: dict[str, dict[str, Key]] = {
    "dqn": _DQN,
    "c51": {**Q_LEARNING, **_CATEGORICAL},
    "qrdqn": {**Q_LEARNING, **same("model.num_quantiles"), "learn.kappa": _KAPPA},
    "rainbow": {**Q_LEARNING, **_CATEGORICAL},
    "ddpg": _ddpg(noise=False, actor_update_freq=1),
    "td3": _ddpg(noise=True, actor_update_freq=2),
    "sac": _SAC,
    "a2c": _A2C,
    "ppo": _PPO,
    "pg": _PG,
}
"""The keys that each policy of DI-engine reads."""

HOME_OF_GAMMA = {
    "dqn": "discount_factor",
    "c51": "discount_factor",
    "qrdqn": "discount_factor",
    "rainbow": "discount_factor",
    "ddpg": "learn.discount_factor",
    "td3": "learn.discount_factor",
    "sac": "learn.discount_factor",
    "a2c": "collect.discount_factor",
    "ppo": "collect.discount_factor",
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
