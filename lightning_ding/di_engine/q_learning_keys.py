"""Where each key of DI-engine's policies that learn action values goes in the config of the same policy here.

See :mod:`keys`, which has the tables of all policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_ding.config import require
from lightning_ding.di_engine.data_sets import find_data_set
from lightning_ding.di_engine.shared_keys import (
    BUFFER,
    NETWORK,
    REPLAY,
    Cfg,
    Key,
    Ours,
    encoder_widths,
    is_image,
    is_prioritised,
    only,
    replaced,
    same,
    squeezed,
    to,
    with_layers,
)

RAINBOW_EPS = 0.05  # DI-engine's Rainbow has a constant epsilon by default


def _has_eps(cfg: Cfg) -> bool:
    return bool(cfg.get("other.eps.start", RAINBOW_EPS) != cfg.get("other.eps.end", RAINBOW_EPS))


_FLAT = "epsilon is constant"
EPS_SCHEDULE: dict[str, Key] = {
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
    **EPS_SCHEDULE,
    **_Q_NETWORK,
    **same("discount_factor", "nstep", "learn.learning_rate", "learn.target_update_freq"),
    "learn.target_theta": Key(needs=lambda _: False, why=_THETA),
}
"""Keys of DQN and its relatives."""

CATEGORICAL = same("model.v_min", "model.v_max", "model.n_atom")
DQN: dict[str, Key] = {
    **Q_LEARNING,
    **same("model.dueling"),
    "model.dropout": only(None, why="there is no dropout in our Q-networks"),
    "model.init_bias": only(None, why="the head is initialised like all other layers"),
    "model.noise": only(False, why="noisy layers are those of dqn and rainbow"),
}


def _noise(_: Any, cfg: Cfg) -> Ours:
    """Return whether there are noisy layers, which DI-engine has by one key and uses by another."""
    has_noise, uses_noise = bool(cfg.get("model.noise", False)), bool(cfg.get("noisy_net", False))
    require(has_noise <= uses_noise, "policy.noisy_net", "True with policy.model.noise, to use the noise", uses_noise)
    return {"model.noise": True, "model.noise_std": 0.4} if has_noise else {"model.noise": False}


NOISY_DQN: dict[str, Key] = {
    **DQN,
    "model.noise": Key(_noise),
    "noisy_net": Key(_noise, needs=lambda cfg: cfg.get("model.noise", False), why="model.noise is False"),
}
KAPPA = Key(needs=lambda _: False, why="DI-engine's QR-DQN always uses 1")
_EMBEDDING = same("model.num_quantiles", "model.quantile_embedding_size")
IQN: dict[str, Key] = {
    **Q_LEARNING,
    **_EMBEDDING,
    **same("learn.kappa"),
    "model.beta_function_type": only("uniform", why="quantile levels are uniform in [0, 1]"),
    "model.num_quantiles": to("model.num_quantiles", "learn.num_quantiles", "learn.num_target_quantiles"),
}
FQF: dict[str, Key] = {
    **{path: key for path, key in Q_LEARNING.items() if path != "learn.learning_rate"},
    **_EMBEDDING,
    **same("learn.kappa", "learn.learning_rate_fraction", "learn.ent_coef"),
    "learn.learning_rate_quantile": to("learn.learning_rate"),
}

_PRIORITY = Key(
    lambda _, cfg: {"priority": True} if is_prioritised(cfg) else {"priority": False, "priority_IS_weight": False}
)
_IS_WEIGHT = Key(lambda value, cfg: {"priority_IS_weight": bool(value) and is_prioritised(cfg)})
_SEQUENCES = "the buffer gives sequences"


def _sequence(cfg: Cfg) -> int:
    """Return the steps of a sequence of DI-engine's R2D2."""
    return int(cfg.get("burnin_step", 20) + cfg.get("learn_unroll_len", 80))


def _unroll(cfg: Cfg) -> int:
    """Return the steps of a sequence of DI-engine's R2D2 with a transformer."""
    return int(cfg.get("collect.unroll_len", 105))


def _in_steps(path: str, length: Callable[[Cfg], int] = _sequence) -> Key:
    """Return a key of an amount of sequences, which is one of transitions here."""
    return Key(lambda value, cfg: {path: value * length(cfg)})


def _recurrent_widths(value: Any, cfg: Cfg) -> Ours:
    width = cfg.get("model.head_hidden_size") or value[-1]
    return encoder_widths(value, cfg) | {"model.core.hidden_size": width}


_BUFFER = "other.replay_buffer."
_NOT_OF_R2D2 = ("learn.target_theta", "learn.target_update_freq")
_PRIORITIES = ("alpha", "beta", "anneal_step", "priority_power_factor", "IS_weight_power_factor")
R2D2: dict[str, Key] = {
    **{path: key for path, key in Q_LEARNING.items() if path not in _NOT_OF_R2D2},
    **{path: replaced(_SEQUENCES) for path in BUFFER},
    **{path: BUFFER[path] for path in (f"{_BUFFER}{name}" for name in _PRIORITIES)},
    f"{_BUFFER}IS_weight_anneal_train_iter": BUFFER[f"{_BUFFER}IS_weight_anneal_train_iter"],
    f"{_BUFFER}type": Key(
        lambda _, cfg: {f"{_BUFFER}type": "prioritised_sequence" if is_prioritised(cfg) else "sequence"},
        why=_SEQUENCES,
    ),
    f"{_BUFFER}replay_buffer_size": _in_steps(f"{_BUFFER}replay_buffer_size"),
    "priority": _PRIORITY,
    "priority_IS_weight": _IS_WEIGHT,
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
    "model.res_link": to("model.core.residual"),
}

# ---------------------------------------------------------------------------------------------------- a transformer


def _transformer_width(value: int, cfg: Cfg) -> Ours:
    """Return the width of the transformer; a vector has one layer before it, which is as wide."""
    return {"model.core.hidden_size": value} | ({} if is_image(cfg) else {"model.encoder_hidden_size_list": [value]})


def _memory(_: Any, cfg: Cfg) -> Ours:
    """Return the steps before its own that a step attends to: in its segment of a sequence, and in the memory."""
    return {"model.core.memory_length": max(1, cfg.get("seq_len", 33) - 1 + cfg.get("model.memory_len", 0))}


_WITHOUT = (
    "learn_unroll_len",
    *(f"model.{name}" for name in ("norm_type", "head_hidden_size", "lstm_type", "res_link")),
)
R2D2_GTRXL: dict[str, Key] = {
    **{path: key for path, key in R2D2.items() if path not in _WITHOUT},
    f"{_BUFFER}replay_buffer_size": _in_steps(f"{_BUFFER}replay_buffer_size", _unroll),
    "collect.n_sample": _in_steps("collect.n_sample", _unroll),
    "collect.unroll_len": Key(
        lambda value, cfg: {"learn_unroll_len": value - cfg.get("burnin_step", 0) - cfg.get("nstep", 5)},
        why="nothing is learned of the burn-in and the last nstep steps of a sequence",
    ),
    "learn.init_memory": Key(why="a sequence begins with the memory that acting had", allowed=("zero", "old")),
    "model.encoder_hidden_size_list": Key(encoder_widths, is_image, "a vector has one layer, of hidden_size"),
    "model.hidden_size": Key(_transformer_width),
    "model.memory_len": Key(_memory),
    "seq_len": Key(_memory),
    "model.att_layer_num": to("model.core.num_layers"),
    "model.att_head_num": to("model.core.num_heads"),
    "model.att_head_dim": to("model.core.head_size"),
    "model.gru_bias": to("model.core.gate_bias"),
    "model.att_mlp_num": only(2, why="the MLP of a layer has two layers"),
    "model.gru_gating": only(True, why="layers without gates are not stable"),
    "model.dropout": Key(needs=lambda cfg: not cfg.get("model.dropout"), why="the transformer has no dropout"),
    "model.head_norm_type": only(None, why="model.layer_norm would normalise the encoder too"),
    "model.encoder_norm_type": only(None, why="model.layer_norm would normalise the head too"),
}

# ---------------------------------------------------------------------------------------------------- branches


def _branches(_: Any, cfg: Cfg) -> Ours:
    """Return the number of actions of each dimension, of DI-engine's branches and bins; 0 leaves it to the env."""
    number, bins = squeezed(cfg.get("model.num_branches", 0)), cfg.get("model.action_bins_per_branch", 2)
    return {} if number == 0 else {"model.action_shape": bins if number == 1 else [bins] * number}


_ACTIONS_OF_ENV = "the env says how many actions each dimension has"
BDQ: dict[str, Key] = {
    **{path: key for path, key in Q_LEARNING.items() if path not in ("model.action_shape", "model.head_layer_num")},
    "model.num_branches": Key(_branches, why=_ACTIONS_OF_ENV),
    "model.action_bins_per_branch": Key(_branches, why=_ACTIONS_OF_ENV),
    "model.layer_num": to("model.head_layer_num"),
    **same("model.a_layer_num", "model.v_layer_num"),
}

# ---------------------------------------------------------------------------------------------------- SQN


def _random_updates(value: Any, cfg: Cfg) -> Ours:
    """Return a schedule that ends when DI-engine's random actions do, ``value`` - 1,000 updates after the start."""
    steps_of_update = (cfg.get("collect.n_sample") or 1) / cfg.get("learn.update_per_collect", 16)
    return {"other.eps.end": 0.001, "other.eps.decay": max(1, value - 1000) * steps_of_update}


_ONLY_DECAY = Key(needs=lambda _: False, why="DI-engine's SQN reads other.eps.decay alone")
_NOT_OF_SQN = ("nstep", "discount_factor", "learn.learning_rate", "learn.target_update_freq")
SQN: dict[str, Key] = {
    **{path: key for path, key in DQN.items() if path not in _NOT_OF_SQN},
    **dict.fromkeys(EPS_SCHEDULE, _ONLY_DECAY),
    "other.eps.decay": Key(_random_updates),
    "learn.learning_rate_q": to("learn.learning_rate"),
    "learn.discount_factor": to("discount_factor"),
    **same("learn.learning_rate_alpha", "learn.target_theta", "learn.alpha", "learn.target_entropy"),
}

# ---------------------------------------------------------------------------------------------------- DQfD


def _all_demonstrations(value: Any, cfg: Cfg) -> Ours:
    require(value > 0, "policy.learn.expert_replay_buffer_size", "> 0: dqfd here needs demonstrations", value)
    return {}


_WITH_EXPERT: dict[str, Key] = {
    **same("learn.margin_function", "learn.per_train_iter_k"),
    **{f"learn.lambda{number}": to(f"learn.lambda{number}", convert=float) for number in (1, 2)},
    "learn.lambda3": to("learn.optimizer.weight_decay", convert=float),  # of AdamW in DI-engine
    "learn.expert_replay_buffer_size": Key(_all_demonstrations, why="all transitions of the data set are used"),
    "collect.pho": replaced("demonstration_share of the datamodule"),
    "collect.data_path": replaced("demonstrations of the datamodule"),
    "collect.model_path": replaced("collect.data_path, a data set that a trained policy has collected"),
}
DQFD: dict[str, Key] = {**DQN, **_WITH_EXPERT, "priority": _PRIORITY, "priority_IS_weight": _IS_WEIGHT}
R2D3: dict[str, Key] = {
    **R2D2,
    **_WITH_EXPERT,
    "learn.lambda_one_step_td": to("learn.lambda_one_step_td", convert=float),
}

# ---------------------------------------------------------------------------------------------------- NGU

_OF_SPACES = "the env says which shapes there are, with the previous action and reward"
_SHARED = "the networks of the novelty learn from the minibatches of the policy"
_SCALE = "rewards of the env keep their scale; the wrapper scale_reward changes it"


def _widths_in_dict(value: Any, cfg: Cfg) -> Ours:
    """Return the widths of an encoder of observations with the previous action and reward."""
    found = _recurrent_widths(value, cfg)
    if not is_image(cfg):
        return found
    found["model.encoder_kwargs.channels"] = list(value[:-1])
    found["model.encoder_kwargs.feature_size"] = value[-1]
    return found | {"model.encoder_hidden_size_list": [value[-1]]}


def _novelty(section: str) -> dict[str, Key]:
    """Return the keys of one of the sections of NGU's novelty."""
    names = ("batch_size", "update_per_collect", "clear_buffer_per_iters", "only_use_last_five_frames_for_icm_rnd")
    found: dict[str, Key] = {name: replaced(_SHARED) for name in names}
    found |= dict.fromkeys(("obs_shape", "action_shape"), replaced(_OF_SPACES))
    found |= {"nstep": replaced("policy.nstep"), "type": replaced("the networks of the novelty are those of ngu")}
    found |= dict.fromkeys(("last_nonzero_reward_rescale", "last_nonzero_reward_weight"), replaced(_SCALE))
    found["intrinsic_reward_type"] = only("add", why="the intrinsic reward is added to that of the env")
    found["learning_rate"] = to("learn.learning_rate_novelty")
    found["hidden_size_list"] = Key(
        lambda value, cfg: {} if is_image(cfg) else {"model.novelty_hidden_size_list": list(value)}
    )
    return {f"{section}.{name}": key for name, key in found.items()}


NGU: dict[str, Key] = {
    **{path: key for path, key in R2D2.items() if path != "model.res_link"},
    **_novelty("rnd_reward_model"),
    **_novelty("episodic_reward_model"),
    "model.obs_shape": replaced(_OF_SPACES),
    "model.encoder_hidden_size_list": Key(_widths_in_dict),
    # with 1, its default, its policy divides by 0
    "model.collector_env_num": Key(lambda value, _: {} if value == 1 else {"model.num_policies": value}),
}

# ---------------------------------------------------------------------------------------------------- demonstrations


EXPERT = (
    "or give the config of an expert, which plays with the network in collect.model_path: expert_cfg of "
    "serial_pipeline_{name}, or lightning-ding serial -m {name} --expert-config FILE"
)


def demonstrations_of(cfg: Cfg, name: str = "dqfd") -> Ours:
    """Return the arguments of the datamodule for the demonstrations of DQfD or R2D3.

    Args:
        cfg: Keys and values of the policy.
        name: The policy.

    Raises:
        ValueError: If the data set has a form that is not read.
        Missing: If the config names no data set, or it is not on this machine.
    """
    path = find_data_set("policy.collect.data_path", cfg.get("collect.data_path"), EXPERT.format(name=name))
    return {"demonstrations": path, "demonstration_share": float(cfg.get("collect.pho", 0.5))}


RANDOM_OF_EXPERT = "expert_random_collect_size"
EXPERT_KEYS = ("collect.data_path", "collect.model_path", RANDOM_OF_EXPERT)
"""Keys that the entry of SQIL reads, whatever the policy."""


def demonstrations_of_sqil(path: Any) -> Ours:
    """Return the arguments of the datamodule for SQIL: half of a minibatch is the expert's, with a reward of 1.

    Args:
        path: The data set, ``policy.collect.data_path``.

    Raises:
        ValueError: If the data set has a form that is not read.
        Missing: If the config names no data set, or it is not on this machine.
    """
    found = find_data_set("policy.collect.data_path", path, EXPERT.format(name="sqil"))
    return {"demonstrations": found, "demonstration_share": 0.5, "imitation_reward": True}
