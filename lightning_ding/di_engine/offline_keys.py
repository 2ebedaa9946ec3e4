"""Where each key of DI-engine's policies that learn from a data set goes in the config of the same policy here.

See :mod:`keys`, which has the tables of all policies. The Decision Transformer is in :mod:`offline`.
"""

from __future__ import annotations

from typing import Any

from lightning_ding.di_engine.shared_keys import (
    COMMON,
    EVAL_FREQ,
    NETWORK,
    REPLAY,
    Cfg,
    Key,
    Ours,
    encoder_widths,
    only,
    replaced,
    same,
    to,
)

_COLLECTED = ("random_collect_size", "learn.update_per_collect", "collect.n_sample", "collect.n_episode")
_UNREAD = ("collect.noise_sigma", *_COLLECTED)
_FROM_DATA = "the policy learns from uniformly drawn minibatches of a data set, and collects nothing"
_PASSES = "max_train_iter of the datamodule, as many passes over its data set"
_OF_DATA: dict[str, Key] = {
    "learn.train_epoch": replaced(_PASSES),
    **dict.fromkeys(("collect.data_path", "collect.data_type"), replaced("dataset of the datamodule")),
}


def _never(why: str) -> Key:
    """Return a key that has no effect."""
    return Key(needs=lambda _: False, why=why)


def _without(name: str) -> Key:
    """Return a switch that has no effect when it is on."""
    return Key(needs=lambda cfg: not cfg[name], why=_FROM_DATA)


def from_data(table: dict[str, Key]) -> dict[str, Key]:
    """Return the keys of a policy that learns from a data set, of those of the policy that collects."""
    unread = [name for name in table if name in _UNREAD or name.startswith(("other.eps.", "other.replay_buffer."))]
    return {
        **table,
        **dict.fromkeys(unread, _never(_FROM_DATA)),
        **{name: _without(name) for name in ("priority", "priority_IS_weight")},
        **_OF_DATA,
    }


def cql_keys(sac: dict[str, Key]) -> dict[str, Key]:
    """Return the keys of CQL, from those of SAC."""
    return {
        **from_data(sac),
        **same("learn.min_q_weight", "learn.num_actions", "learn.with_q_entropy", "learn.with_lagrange"),
        "learn.lagrange_thresh": to(
            "learn.lagrange_thresh",
            needs=lambda cfg: cfg.get("learn.with_lagrange", False),
            why="learn.with_lagrange is False",
        ),
    }


def edac_keys(sac: dict[str, Key]) -> dict[str, Key]:
    """Return the keys of EDAC, from those of SAC."""
    of_ensemble = _never("there are model.ensemble_num critics, and no encoder")
    return {
        **from_data(sac),
        **dict.fromkeys(("model.twin_critic", "model.share_encoder", "model.encoder_hidden_size_list"), of_ensemble),
        **same("model.ensemble_num", "learn.eta", "learn.with_q_entropy"),
        "model.critic_head_layer_num": to("model.critic_head_layer_num", convert=lambda layers: layers - 1),
        **dict.fromkeys(
            ("learn.min_q_weight", "learn.learning_rate_value"), _never("DI-engine's EDAC does not read it")
        ),
    }


BCQ: dict[str, Key] = {
    **from_data({**REPLAY, **NETWORK}),
    "model.actor_head_hidden_size": to("model.actor_hidden_size_list", convert=list),
    "model.critic_head_hidden_size": to("model.critic_hidden_size_list", convert=list),
    "model.vae_hidden_dims": to("model.vae_hidden_size_list", convert=list),
    **same("model.phi", "learn.lmbda", "learn.target_theta", "learn.learning_rate_vae"),
    "learn.discount_factor": to("discount_factor"),
    "learn.learning_rate_q": to("learn.learning_rate_critic"),
    "learn.learning_rate_policy": to("learn.learning_rate_actor"),
    "nstep": _never("DI-engine's BCQ learns from single steps"),
    **dict.fromkeys(("learn.init_w", "learn.learning_rate_alpha"), _never("DI-engine's BCQ does not read it")),
    "learn.data_path": _never("no policy reads it"),
}
"""Keys of BCQ."""

# ---------------------------------------------------------------------------------------------------- IQL

_OF_CQL = ("num_actions", "with_lagrange", "lagrange_thresh", "min_q_weight", "with_q_entropy")
_OF_SAC = ("alpha", "auto_alpha", "log_space", "learning_rate_alpha", "target_entropy")


def _temperature(value: Any, _: Cfg) -> Ours:
    """Return the inverse temperature; DI-engine divides advantages by its ``beta``."""
    return {"learn.beta": 1 / value}


def iql_keys(sac: dict[str, Key]) -> dict[str, Key]:
    """Return the keys of IQL, from those of SAC, whose section ``learn`` DI-engine copied."""
    return {
        **from_data(sac),
        **{f"learn.{name}": _never("IQL has no such term") for name in (*_OF_CQL, *_OF_SAC)},
        "learn.data_path": _never("no policy reads it"),
        "learn.learning_rate_q": to("learn.learning_rate_q", "learn.learning_rate_value"),
        "learn.target_theta": _never("DI-engine's IQL has no target network"),
        **same("learn.tau"),
        "learn.beta": Key(_temperature),
    }


# ---------------------------------------------------------------------------------------------------- BC


def _is_continuous(cfg: Cfg) -> bool:
    return bool(cfg.get("continuous", False))


_DISCRETE: dict[str, Any] = {"needs": lambda cfg: not _is_continuous(cfg), "why": "the actions are continuous"}
_CONTINUOUS: dict[str, Any] = {"needs": _is_continuous, "why": "the actions are discrete"}


def _actions(value: Any, cfg: Cfg) -> Ours:
    """Return the kind of actions, and the actor of continuous ones: a layer, those of its head, and tanh."""
    if not value:
        return {"model.action_space": "discrete"}
    layers = 1 + cfg.get("model.actor_head_layer_num", 1)
    widths = [cfg.get("model.actor_head_hidden_size", 64)] * layers
    return {"model.action_space": "continuous", "model.bound_type": "tanh", "model.actor_hidden_size_list": widths}


def _optimizer(value: Any, cfg: Cfg) -> Ours:
    """Return the optimizer; DI-engine takes Adam's variant with decoupled decay where there is a decay."""
    decay = cfg.get("learn.weight_decay")
    kind = "sgd" if value == "SGD" else "adam" if decay is None else "adamw"
    momentum = {"learn.optimizer.momentum": cfg.get("learn.momentum", 0.0)} if kind == "sgd" else {}
    return {"learn.optimizer.type": kind, "learn.optimizer.weight_decay": decay or 0.0, **momentum}


_LR_DECAY = ("decay_epoch", "decay_rate", "warmup_lr", "warmup_epoch")
BC: dict[str, Key] = {
    **COMMON,
    **_OF_DATA,
    EVAL_FREQ: Key(lambda value, _: {EVAL_FREQ: max(1, value)}),  # -1 means after each pass
    **NETWORK,
    "continuous": Key(_actions),
    "action_shape": _never("model.action_shape is the key"),
    **{name: _without(name) for name in ("priority", "priority_IS_weight")},
    "loss_type": Key(lambda value, _: {"learn.loss_type": value}, **_CONTINUOUS, allowed=("l1_loss", "mse_loss")),
    "model.encoder_hidden_size_list": Key(encoder_widths, **_DISCRETE),
    "model.head_hidden_size": Key(
        lambda value, _: {} if value is None else {"model.actor_head_hidden_size": value}, **_DISCRETE
    ),
    "model.head_layer_num": to("model.actor_head_layer_num", **_DISCRETE),
    "model.dueling": replaced("a value that is added to all logits does not change their distribution"),
    "model.action_space": Key(why="continuous", allowed=("regression",)),
    **{
        f"model.actor_head_{name}": Key(needs=_is_continuous, why="the actor's layers")
        for name in ("hidden_size", "layer_num")
    },
    **same("learn.batch_size", "learn.learning_rate"),
    "learn.optimizer": Key(_optimizer, why="DI-engine has two", allowed=("SGD", "Adam")),
    "learn.weight_decay": replaced("learn.optimizer.weight_decay"),
    "learn.momentum": Key(why="learn.optimizer.momentum", needs=lambda cfg: cfg.get("learn.optimizer", "SGD") == "SGD"),
    "learn.lr_decay": only(False, why="set learn.lr_scheduler of our config"),
    **{f"learn.{name}": _never("learn.lr_decay is False") for name in _LR_DECAY},
    "learn.ce_label_smooth": Key(lambda value, _: {"learn.ce_label_smooth": 0.1 if value else 0.0}, **_DISCRETE),
    "learn.show_accuracy": only(False, why="no accuracy of each action is reported"),
    "learn.tanh_mask": only(False, why="all actions are learned from"),
    "model.strides": only(None, why="set model.encoder_kwargs.stride of our config"),
    "learn.update_per_collect": _never(_FROM_DATA),
    **dict.fromkeys(("collect.noise", "collect.noise_sigma"), _never(_FROM_DATA)),
    **dict.fromkeys(("collect.noise_range.min", "collect.noise_range.max"), _never(_FROM_DATA)),
    **{f"{home}discount_factor": _never("no return is computed") for home in ("", "learn.", "collect.")},
}
"""Keys of behaviour cloning."""
