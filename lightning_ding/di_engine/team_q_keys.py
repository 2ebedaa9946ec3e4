"""Where each key of DI-engine's value-based policies of teams goes in the config of the same policy here.

A ``qmix`` of DI-engine without a mixer is ``vdn`` here. See :mod:`keys`, which has the tables of all policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.di_engine.q_learning_keys import EPS_SCHEDULE
from lightning_ding.di_engine.shared_keys import (
    BUFFER,
    KWARGS,
    NETWORK,
    REPLAY,
    Cfg,
    Key,
    Ours,
    is_image,
    only,
    replaced,
    same,
    squeezed,
    to,
)

_SEQUENCES = "the buffer gives sequences"
_OF_ENVS = replaced("the state of each env is kept for as many envs as there are")
_BUFFER = "other.replay_buffer."


def _in_steps(path: str) -> Key:
    """Return a key of an amount of sequences, which is one of transitions here."""
    return Key(lambda value, cfg: {path: value * cfg.get("collect.unroll_len", 10)})


def _seen(path: str) -> Key:
    """Return a key of the size of what is seen; of images, whose axes have another order here, the env gives it."""

    def ours(value: Any, _: Cfg) -> Ours:
        size = squeezed(value)
        if isinstance(size, list) and len(size) == 3:
            return {}
        if not isinstance(size, int):
            raise ValueError(f"policy.{path} must be the size of a vector or the shape of an image, got {value!r}")
        return {path.replace("model.obs", "model.agent_obs"): size}

    return Key(ours)


def _widths(value: Any, cfg: Cfg) -> Ours:
    """Return the widths of the agents' layers, whose last one is also that of their memory.

    For images they are the channels of convolutions and the number of their features. More than 8 pixels along an axis
    after the convolutions are averaged to 8; DI-engine's linear layer sees them all.
    """
    widths, memory = list(value), {"model.core.hidden_size": value[-1]}
    if not is_image(cfg):
        return {"model.encoder_hidden_size_list": widths, **memory}
    kwargs = {"channels": widths[:-1], "feature_size": widths[-1], "activate_features": False}
    return {"model.encoder_hidden_size_list": [], **{f"{KWARGS}{name}": one for name, one in kwargs.items()}, **memory}


def _widths_and_mixer(value: Any, cfg: Cfg) -> Ours:
    return {**_widths(value, cfg), "model.mixing_embed_dim": value[-1]}


_NO_PRIORITIES = only(False, why="DI-engine's policies of teams have no priorities")
VDN: dict[str, Key] = {
    **{path: key for path, key in REPLAY.items() if path != "random_collect_size"},
    **{path: replaced(_SEQUENCES) for path in BUFFER},
    **EPS_SCHEDULE,
    "random_collect_size": to("random_collect_size"),
    f"{_BUFFER}type": Key(lambda _, __: {f"{_BUFFER}type": "sequence"}, why=_SEQUENCES),
    f"{_BUFFER}replay_buffer_size": _in_steps(f"{_BUFFER}replay_buffer_size"),
    "priority": _NO_PRIORITIES,
    "priority_IS_weight": _NO_PRIORITIES,
    "multi_agent": replaced("it is a policy of teams"),
    "agent_num": replaced("model.agent_num"),
    "learn.agent_num": replaced("model.agent_num"),
    **same("learn.learning_rate", "learn.double_q"),
    "learn.discount_factor": to("discount_factor"),
    "learn.target_update_theta": to("learn.target_theta"),
    "learn.clip_value": to("learn.grad_clip_norm"),
    "collect.n_sample": _in_steps("collect.n_sample"),
    "collect.unroll_len": to("learn_unroll_len"),
    "collect.env_num": _OF_ENVS,
    "eval.env_num": _OF_ENVS,
    **same("model.agent_num"),
    "model.obs_shape": _seen("model.obs_shape"),
    "model.global_obs_shape": _seen("model.global_obs_shape"),
    "model.action_shape": to("model.action_shape", convert=squeezed),
    "model.hidden_size_list": Key(_widths),
    "model.lstm_type": Key(
        lambda value, _: {"model.core.type": "gru" if value == "gru" else "lstm"},
        why="there is no other core",
        allowed=("normal", "pytorch", "gru"),
    ),
    "model.activation": NETWORK["model.activation"],
    "model.dueling": only(False, why="the agents of a team have no dueling network here"),
    "model.mixer": only(False, why="qmix without a mixer is vdn"),
}
"""Keys of a ``qmix`` of DI-engine without a mixer."""
QMIX: dict[str, Key] = {
    **VDN,
    "model.hidden_size_list": Key(_widths_and_mixer),
    "model.mixer": only(True, why="qmix without a mixer is vdn"),
}
WQMIX: dict[str, Key] = {
    **{path: key for path, key in QMIX.items() if path not in ("model.mixer", "model.activation", "learn.double_q")},
    **same("learn.wqmix_ow", "learn.alpha"),
    "learn.target_update_theta": Key(needs=lambda _: False, why="DI-engine's wqmix has no target network"),
}
MADQN: dict[str, Key] = {
    **{path: key for path, key in VDN.items() if path not in ("model.mixer", "model.activation")},
    **same("nstep", "model.global_cooperation"),
    "learn.weight_decay": to("learn.optimizer.weight_decay"),
    "model.global_obs_shape": replaced("the env says how large the global state is that all agents share"),
    "model.mixer": only(False, why="the values of the agents are added up"),
}
"""DI-engine gives the second network a global state for each agent, which has what the agent sees."""
QTRAN: dict[str, Key] = {
    **{path: key for path, key in VDN.items() if path not in ("model.mixer", "model.activation")},
    **same("learn.td_weight", "learn.opt_weight", "learn.nopt_min_weight", "model.embedding_size"),
    "learn.clip_value": Key(needs=lambda _: False, why="DI-engine's qtran does not read it"),
}


def without_mixer(kind: str, main: Mapping[str, Any]) -> str:
    """Return the type of a policy here: that of a ``qmix`` without a mixer is vdn."""
    model = main.get("policy", {}).get("model", {})
    return "vdn" if kind == "qmix" and not model.get("mixer", True) else kind
