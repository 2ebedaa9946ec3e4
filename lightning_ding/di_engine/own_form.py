"""Pairs of configs whose policy is a class of the user in DI-engine's form.

The class declares its keys in a dict ``config`` and reads them itself, so they keep their names and values. Only the
sections of the workers are translated, and the keys that the run itself reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.configs import Config, differing, flat, given_keys, merge, nested, plain
from lightning_ding.di_engine.defaults import ALWAYS_WITHOUT_KEY
from lightning_ding.di_engine.env_types import TranslatedEnvs
from lightning_ding.di_engine.policies.policy import adopt, read_by_workers
from lightning_ding.di_engine.run import DEVICE_KEYS, NEVER, READ_BY_RUN, Run, Times, is_consumed, make_run, with_frames
from lightning_ding.di_engine.shared_keys import (
    BUFFER,
    COMMON,
    EVAL_FREQ,
    HOOK,
    Key,
    Notes,
    misspelt,
    same,
    translate_key,
)
from lightning_ding.policy import Policy, ReferencePolicy
from lightning_ding.worker import get_serial_collector_cls

WORKERS = ("collect.collector.", "eval.evaluator.", "other.replay_buffer.")
"""Sections of the workers, whose keys are translated."""
TABLE: dict[str, Key] = {
    **{name: key for name, key in (COMMON | BUFFER).items() if name.startswith(WORKERS)},
    **same("collect.collector.type", "collect.collector.get_train_sample", EVAL_FREQ),
}
LEARNER, BUFFER_TYPE = "learn.learner.", "other.replay_buffer.type"
READ_BY_BOTH = (*DEVICE_KEYS, "on_policy")
"""Keys that the run reads and the class too."""
NOT_LISTED = (
    *("batch_size", "learn.batch_size", "learn.update_per_collect", "collect.n_sample", "collect.n_episode"),
    *("collect.unroll_len", "discount_factor", "priority", "priority_IS_weight", "random_collect_size"),
)
"""Keys that have an effect even if a class does not list them."""


def is_own_form(policy_class: Any) -> bool:
    """Return whether a registered class is a policy in DI-engine's form."""
    if not (isinstance(policy_class, type) and issubclass(policy_class, Policy)):
        return False
    if not hasattr(policy_class, "config_class"):  # that has no config
        adopt(policy_class)
    return issubclass(policy_class, ReferencePolicy)


def own_run(main: Config, create: Config, envs: TranslatedEnvs, data: Config, policy_class: Any) -> Run:
    """Return the run of a pair whose policy is in DI-engine's form.

    Args:
        main: The ``main_config``.
        create: The ``create_config``.
        envs: The envs of the pair.
        data: Further arguments of the datamodule: the limits of the run and ``seed``.
        policy_class: The policy's class.

    Raises:
        ValueError: If a value cannot be translated, or a key that is needed is missing.
    """
    cfg, given, notes = merge(main, create, {}), given_keys(main, create), Notes(home="self._cfg.")
    if "unroll_len" in given:
        given.add("collect.unroll_len")
    defaults = {key: value for key, value in plain(policy_class.default_config()).items() if key != "cfg_type"}
    config = _policy_config(cfg["policy"], given, defaults, policy_class.__name__, notes)
    stop_value = None if envs.stop_value >= NEVER else envs.stop_value
    evaluator = {"n_episode": envs.n_evaluator_episode, "stop_value": stop_value}
    implied = nested(ALWAYS_WITHOUT_KEY | {f"eval.evaluator.{name}": value for name, value in evaluator.items()})
    config = deep_merge(config, deep_merge({"collect": {"collector": envs.collector}}, implied))
    whole = deep_merge(defaults, config)
    read = read_by_workers(whole)
    _check(read, whole, policy_class.__name__)
    on_policy, eval_freq = bool(whole["on_policy"]), read.eval.evaluator.eval_freq
    updates = None if on_policy else int(whole["learn"].get("update_per_collect", 1))
    described = {
        "family": "",
        "policy": f"{policy_class.__module__}.{policy_class.__qualname__}",
        "policy_class": policy_class,
        "on_policy": on_policy,
        "policy_config": differing(config, defaults),
    }
    times = Times.of(dict(flat(cfg["policy"])), eval_freq, updates)
    rounds = times.rounds_per_epoch if updates is None else math.ceil(eval_freq / updates)
    envs = with_frames(envs, whole["eval"]["evaluator"])
    data = {"rounds_per_epoch": rounds, **data}
    cfg = {**cfg, "policy": deep_merge(whole, cfg["policy"]), "seed": main.get("seed", data["seed"])}
    return make_run(described, cfg, given, envs, data, times, notes)


def _policy_config(pair: Config, given: set[str], defaults: Config, policy: str, notes: Notes) -> Config:
    """Return the keys of a pair, whose merged section ``policy`` is without the defaults, for the config of a class."""
    listed, merged = dict(flat(defaults)), dict(flat(pair))
    keys = {"priority": False, **merged, **listed, **{name: merged[name] for name in merged if name in given}}
    ours: Config = {}
    for name in (name for name in merged if name in given or name == BUFFER_TYPE):
        value = keys[name]
        if is_consumed(name) and name not in READ_BY_BOTH:
            continue
        if name.startswith(LEARNER):
            notes.warnings.append(_unread(name, value))
        elif name in TABLE:
            ours |= translate_key(name, value, keys, TABLE[name], policy, name in given, notes)
        else:
            ours[name] = value
            _note(name, value, listed, policy, notes)
    return nested(ours)


def _note(name: str, value: Any, listed: Mapping[str, Any], policy: str, notes: Notes) -> None:
    """Note a key that the class reads, and one that it does not list and that may be misspelt."""
    if name in DEVICE_KEYS:  # the run notes them
        return
    notes.translated.append(f"policy.{name} -> {notes.home}{name}")
    if name not in listed and name not in NOT_LISTED and not name.startswith(("model.", *WORKERS)):
        hint = misspelt(name, [*listed, *NOT_LISTED, *READ_BY_RUN])
        notes.warnings.append(f"policy.{name} = {value!r} is not in {policy}.config{hint}")


def _unread(name: str, value: Any) -> str:
    """Return the warning about a key of the learner that nothing reads.

    Raises:
        ValueError: For a key of the hooks.
    """
    if name.startswith(HOOK):
        raise ValueError(f"policy.{name} is no hook of a learner: give a mapping with a 'type' and a 'position'")
    return f"policy.{name} = {value!r} is not read{misspelt(name, READ_BY_RUN)}"


def _check(read: Any, whole: Mapping[str, Any], policy: str) -> None:
    """Check that the config has what the datamodule needs."""
    kind, on_policy = read.collect.collector.type, bool(whole["on_policy"])
    is_whole = bool(get_serial_collector_cls(read.collect.collector).collects_whole_episodes)
    allowed = f"'sample' for {policy}, because learning from replay collects single transitions"
    require(on_policy or not is_whole, "create_config.collector.type", allowed, kind)
    name = "n_episode" if is_whole else "n_sample"
    require(getattr(read.collect, name) is not None, f"policy.collect.{name}", f"set for {policy}", None)
    size = whole.get("batch_size", whole["learn"].get("batch_size"))
    require(on_policy or size is not None, "policy.learn.batch_size", f"set for {policy}", size)
