"""The translation of a key of DI-engine, and the tables of keys that several policies share."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_ding.config import closest
from lightning_ding.registry import import_modules
from lightning_ding.worker.learner.hooks import named_learner_hooks

Cfg = Mapping[str, Any]
"""The merged config of a policy in DI-engine's format, with dotted keys."""
Ours = dict[str, Any]
"""Values by our dotted keys."""
Needs = Callable[[Cfg], bool]


@dataclass(frozen=True)
class Key:
    """The translation of a key.

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


@dataclass
class Notes:
    """Lines about the keys of a pair.

    Args:
        home: The place of the policy's config, before a key.
    """

    home: str = "model.cfg."
    translated: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def translate_key(name: str, value: Any, cfg: Cfg, key: Key, policy: str, is_given: bool, notes: Notes) -> Ours:
    """Return our values for a key, and note what became of it.

    Args:
        name: The key.
        value: Its value.
        cfg: The whole config.
        key: The translation of the key.
        policy: Name of the policy, for errors.
        is_given: Whether the pair sets the key; there are no notes about defaults.
        notes: Lines to which those about the key are added.

    Raises:
        ValueError: If there is no translation of the value.
    """
    if key.allowed is not None and value not in key.allowed:
        allowed = " or ".join(map(repr, key.allowed))
        raise ValueError(f"policy.{name} must be {allowed} for {policy} here ({key.why}), got {value!r}")
    if key.needs is not None and not key.needs(cfg):
        if is_given:
            notes.warnings.append(f"policy.{name} = {value!r} has no effect: {key.why}")
        return {}
    ours = key.ours(value, cfg)
    if is_given:
        goals = [f"{notes.home}{path}{'' if to == value else f' = {to!r}'}" for path, to in ours.items()]
        notes.translated.append(f"policy.{name} -> {', '.join(goals) or key.why or 'implied'}")
    return ours


SIMILAR = 0.75  # share of equal letters from which on a key counts as misspelt


def misspelt(name: str, known: Iterable[str]) -> str:
    """Return a question that names the known key which a key may mean; empty if none is similar."""
    near = closest(name, known) or ""
    last, last_of_near = name.rpartition(".")[2], near.rpartition(".")[2]
    is_similar = difflib.SequenceMatcher(None, last, last_of_near).ratio() >= SIMILAR
    return f"; did you mean 'policy.{near}'?" if is_similar else ""


FOREIGN = ("ding", "dizoo")
"""Packages whose modules are not imported, because the parts that they register have counterparts here."""


def own_modules(names: Any) -> list[str]:
    """Return the modules of ``import_names`` without those of DI-engine."""
    return [one for one in ([names] if isinstance(names, str) else names) if one.partition(".")[0] not in FOREIGN]


HOOK = "learn.learner.hook."


def is_hook(name: str) -> bool:
    """Return whether a key belongs to a learner's hook in full form."""
    return name.startswith(HOOK) and "." in name.removeprefix(HOOK)


def hooks_of(learner: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the key, and the class and arguments of each hook that a section ``learn.learner`` has in full form."""
    import_modules(own_modules(learner.get("import_names", ())))
    return named_learner_hooks({key: one for key, one in learner.get("hook", {}).items() if isinstance(one, Mapping)})


def modules(name: str) -> Key:
    """Return the key of modules to import."""
    why = "modules of DI-engine are not imported"
    return Key(lambda value, _: {name: own_modules(value)} if own_modules(value) else {}, why=why)


def same(*names: str) -> dict[str, Key]:
    """Return a table of keys that have the same names here."""
    return {name: to(name) for name in names}


# ---------------------------------------------------------------------------------------------------- conversions


EVAL_FREQ = "eval.evaluator.eval_freq"
ON_POLICY = ("a2c", "ppg", "ppo", "pg", "mappo", "happo", "coma")
"""Policies that learn from rollouts."""


def per_round(cfg: Cfg, family: str) -> tuple[int, int]:
    """Return the increase of ``train_iter`` in one round: the one in DI-engine, and the one in this package.

    With whole episodes, whose length is not known, a round counts as one pass over one minibatch.
    """
    if family not in ON_POLICY:
        updates = int(cfg.get("learn.update_per_collect", 1))
        return updates, updates
    rows, size = cfg.get("collect.n_sample") or 1, cfg.get("learn.batch_size", 64)
    passes = cfg.get("learn.epoch_per_collect", 10) if family in ("ppo", "mappo", "happo") else 1
    if family == "coma":  # the critic's passes, and that of the actors after them
        updates = int(cfg.get("learn.update_per_collect", 20))
        return updates, (updates + 1) * max(1, round(rows / size))
    if family == "ppg":
        passes = cfg.get("learn.actor_epoch_per_collect", 1) + cfg.get("learn.aux_train_epoch", 6)
    if family == "happo":  # in DI-engine an agent's critic learns with its actor, here that of all after the actors
        agents = int(cfg.get("model.agent_num") or 1)
        return agents * passes * math.ceil(rows / size), (agents + 1) * passes * max(1, round(rows / size))
    return 1 if family in ("a2c", "ppg") else passes * math.ceil(rows / size), passes * max(1, round(rows / size))


def eval_freq_key(family: str) -> Key:
    """Return the key for the time between evaluations, which are whole rounds."""

    def ours(value: Any, cfg: Cfg) -> Ours:
        if cfg["collect.collector.type"] == "episode":
            return {EVAL_FREQ: value}
        theirs, here = per_round(cfg, family)
        return {EVAL_FREQ: math.ceil(value / theirs) * here}

    return Key(ours)


def squeezed(value: Any) -> Any:
    """Return a shape of one number as that number."""
    if isinstance(value, (list, tuple)):
        return int(value[0]) if len(value) == 1 else [int(one) for one in value]
    return value


def is_image(cfg: Cfg) -> bool:
    """Return whether the observations of a config are images."""
    shape = squeezed(cfg.get("model.obs_shape"))
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
_HER = "other.her."
_RATE = f"{_BUFFER}thruput_controller.push_sample_rate_limit."


def is_prioritised(cfg: Cfg) -> bool:
    """Return whether DI-engine's buffer of a config uses the priorities of the policy."""
    kind = cfg[f"{_BUFFER}type"]
    reads = kind == "advanced" or (kind == "deque" and cfg.get(f"{_BUFFER}priority", False))
    return bool(cfg.get("priority", False)) and reads


def _buffer_limits(cfg: Cfg) -> bool:
    """Return whether a buffer limits the use, the age or the rate of its transitions."""
    names = [f"{path}{name}" for path in (_BUFFER, f"{_BUFFER}policy.") for name in ("max_use", "max_staleness")]
    limits = [_limit(cfg.get(name)) for name in (*names, f"{_RATE}max")]
    return any(one is not None for one in limits) or cfg.get(f"{_RATE}min", 0) > 0


def _buffer_type(value: Any, cfg: Cfg) -> Ours:
    """Return the fastest of our buffers that draws as DI-engine's: without priorities and limits, uniformly."""
    if f"{_HER}her_strategy" in cfg:
        value = "her"
    if value in ("naive", "advanced", "deque", "episode"):
        value = "advanced" if is_prioritised(cfg) or _buffer_limits(cfg) else "naive"
    return {f"{_BUFFER}type": value}


# ---------------------------------------------------------------------------------------------------- shared tables

_METRICS = "the callback MetricsLogger writes the metrics"
_RECURRENT = "none of these networks has a memory"
COMMON: dict[str, Key] = {
    "bp_update_sync": only(True, why="gradients are always averaged before a step"),
    "traj_len_inf": replaced("collecting in pieces never cuts an n-step return"),
    "transition_with_policy_data": replaced("the actions of random_collect_size are drawn from the action space"),
    "multi_agent": only(False, why="this policy has one agent here"),
    "collect.unroll_len": only(1, why=_RECURRENT),
    "collect.collector.type": replaced("the collector of collect.n_sample or of collect.n_episode"),
    "collect.collector.import_names": modules("collect.collector.import_names"),
    "collect.collector.collect_print_freq": replaced(_METRICS),
    "collect.collector.deepcopy_obs": replaced("observations of an env that reuses its memory are always copied"),
    "collect.collector.transform_obs": replaced("observations always reach the policy as tensors"),
    "collect.collector.get_train_sample": replaced("a round always gives training samples"),
    "collect.collector.reward_shaping": only(False, why="put the reward into an env wrapper"),
    "collect.collector_logit": replaced("rollouts always have the probabilities of their actions"),
    "eval.evaluator.type": only("interaction", why="a Trainer evaluates in envs"),
    "eval.evaluator.n_episode": Key(needs=lambda _: False, why="env.n_evaluator_episode replaces it"),
    "eval.evaluator.stop_value": Key(needs=lambda _: False, why="env.stop_value replaces it"),
    **same("eval.evaluator.render.render_freq", "eval.evaluator.render.mode", "eval.evaluator.figure_path"),
}
"""Keys of every policy, apart from those of the device, the learner and its hooks, which :mod:`translate` reads."""

COUNTED: dict[str, Key] = {
    "collect.n_sample": to(
        "collect.n_sample",
        needs=lambda cfg: cfg["collect.collector.type"] == "sample",
        why="the collector takes collect.n_episode",
    ),
    "collect.n_episode": to(
        "collect.n_episode",
        needs=lambda cfg: cfg["collect.collector.type"] == "episode",
        why="the collector takes collect.n_sample",
    ),
}
"""Keys of the amount that is collected, in transitions or in episodes."""
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
"""Keys of the replay buffers naive, advanced, deque and episode."""
_BY_EPISODE = "a buffer draws from the transitions of all episodes"


def _of_hindsight(value: Any, cfg: Cfg) -> Ours:
    """Return the options of a buffer whose transitions all get new goals, as those of DI-engine's script."""
    rows = int(cfg.get(f"{_HER}episode_size") or 0) * int(cfg.get(f"{_HER}sample_per_episode") or 0)
    size = {"learn.batch_size": rows * int(cfg.get(f"{_HER}her_replay_k", 1))} if rows else {}
    return {f"{_BUFFER}her_strategy": value, f"{_BUFFER}her_replay_k": 1_000_000, **size}


_HINDSIGHT: dict[str, Key] = {
    f"{_HER}her_strategy": Key(_of_hindsight),
    **dict.fromkeys((f"{_HER}her_replay_k", f"{_HER}episode_size", f"{_HER}sample_per_episode"), replaced(_BY_EPISODE)),
}

_NAIVE = "the buffer of this config ignores priorities"
REPLAY: dict[str, Key] = {
    **COMMON,
    **BUFFER,
    **_HINDSIGHT,
    **COUNTED,
    **same("random_collect_size", "learn.update_per_collect", "learn.batch_size", "learn.ignore_done"),
    "priority": to("priority", needs=lambda cfg: not cfg["priority"] or is_prioritised(cfg), why=_NAIVE),
    "priority_IS_weight": to(
        "priority_IS_weight", needs=lambda cfg: not cfg["priority_IS_weight"] or is_prioritised(cfg), why=_NAIVE
    ),
    EVAL_FREQ: eval_freq_key("dqn"),
}
"""Keys of the policies that learn from replay."""

_OBS = {"model.obs_shape": to("model.obs_shape", convert=squeezed)}
_ACTION = {"model.action_shape": to("model.action_shape", convert=squeezed)}
KWARGS = "model.encoder_kwargs."


def encoder_widths(value: Any, cfg: Cfg) -> Ours:
    """Return the widths of an encoder; DI-engine does not activate the features of images."""
    is_plain = is_image(cfg) and not cfg.get("model.impala_cnn_encoder", False)
    widths = {"model.encoder_hidden_size_list": list(value)}
    return widths | ({f"{KWARGS}activate_features": False} | _kernels(cfg) if is_plain else {})


def _kernels(cfg: Cfg) -> Ours:
    """Return DI-engine's kernels for images of a size for which the default here differs, where they fit."""
    _, *sides = squeezed(cfg.get("model.obs_shape"))
    if min(sides) < 36 or all(64 <= side < 100 for side in sides):
        return {}
    return {f"{KWARGS}kernel_size": [8, 4, 3], f"{KWARGS}stride": [4, 2, 1]}


def qac_encoder(value: Any, cfg: Cfg) -> Ours:
    """Return the encoder of DDPG, TD3 and SAC for images: convolutions with kernels of 3, and a linear layer."""
    kernels, strides = [3] * len(value), [2, *[1] * (len(value) - 1)]
    sizes = {"channels": list(value), "feature_size": value[-1], "kernel_size": kernels, "stride": strides}
    return {f"{KWARGS}{name}": size for name, size in (sizes | {"activate_features": False}).items()}


def norm_type(value: Any, cfg: Cfg) -> Ours:
    """Return layer normalisation of the heads; DI-engine does not normalise the encoder."""
    return {} if value is None else {"model.layer_norm": True, f"{KWARGS}layer_norm": False}


NETWORK: dict[str, Key] = {
    **_OBS,
    **_ACTION,
    "model.activation": to("model.activation", convert=_activation),
    "model.norm_type": Key(norm_type, why="there is no other normalisation here", allowed=(None, "LN")),
}


def with_layers(head: str) -> dict[str, Any]:
    """Return the arguments of a key that has an effect if a head has hidden layers."""
    return {"needs": lambda cfg: cfg.get(f"model.{head}_layer_num", 1) > 0, "why": "the head has no hidden layers"}
