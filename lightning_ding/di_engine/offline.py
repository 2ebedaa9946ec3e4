"""Translating DI-engine's configs of policies that learn from a data set; their envs are those of evaluations.

The Decision Transformer learns from ``main_config.dataset``, and its keys have no sections ``learn`` and ``other``. The
other policies have the keys of :mod:`keys`, learn from ``policy.collect.data_path``, and count passes over it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_ding.config import deep_merge, require, resolve
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine.configs import Config, flat, given_keys, merge, nested
from lightning_ding.di_engine.data_sets import TRAJECTORIES, check_there, data_of_d4rl, find_data_set
from lightning_ding.di_engine.defaults import ALWAYS_WITHOUT_KEY
from lightning_ding.di_engine.env_types import TranslatedEnvs
from lightning_ding.di_engine.run import READ_BY_RUN, Run, Times, is_consumed, limit, make_run, with_frames
from lightning_ding.di_engine.shared_keys import (
    COMMON,
    EVAL_FREQ,
    Cfg,
    Key,
    Notes,
    Ours,
    misspelt,
    only,
    replaced,
    same,
    squeezed,
    to,
    translate_key,
)
from lightning_ding.policy import DTPolicy

TRANSFORMER = "dt"
_SPACES = "the section env"
_STATISTICS = "norm_obs of the datamodule, with the statistics of the data set"
_DATA = "dataset of the datamodule"


def _warmup(steps: Any, cfg: Cfg) -> Ours:
    """Return a schedule with DI-engine's factor min((u + 1) / steps, 1) of update u, counted from 0."""
    points = [[0, 1 / steps], [steps - 1, 1.0]] if steps > 1 else None
    kind = {"type": "piecewise", "unit": "env_step", "points": points}
    constant = {"type": "constant", "unit": "budget", "points": None}
    return {f"learn.lr_scheduler.{name}": value for name, value in (kind if points else constant).items()}


KEYS: dict[str, Key] = {
    **COMMON,
    EVAL_FREQ: to(EVAL_FREQ),
    "priority": only(False, why="sub-sequences are drawn uniformly"),
    "rtg_scale": to("rtg_scale", convert=float),
    "rtg_target": to("rtg_target", convert=float),
    **same("max_eval_ep_len"),
    "batch_size": to("learn.batch_size"),
    "learning_rate": to("learn.learning_rate"),
    "wt_decay": to("learn.optimizer.weight_decay", convert=float),
    "warmup_steps": Key(_warmup),
    "clip_grad_norm_p": to("learn.grad_clip_norm", convert=float),
    "model.state_dim": to("model.obs_shape", convert=squeezed),
    "model.act_dim": to("model.action_shape"),
    **same("model.n_blocks", "model.n_heads"),
    "model.h_dim": to("model.embed_dim"),
    "model.drop_p": to("model.dropout_p"),
    "model.context_len": to("context_len"),
    "model.continuous": to("model.action_space", convert=lambda value: "continuous" if value else "discrete"),
    "model.max_timestep": replaced("max_eval_ep_len is the number of steps with different embeddings"),
    "state_mean": replaced(_STATISTICS),
    "state_std": replaced(_STATISTICS),
    **dict.fromkeys(("evaluator_env_num", "stop_value", "env_name"), replaced(_SPACES)),
    **dict.fromkeys(("collect.data_path", "collect.data_type"), replaced(_DATA)),
}
"""Keys of the policy."""
DEFAULTS: Config = {"warmup_steps": 10_000}
WITHOUT_KEY: Config = {"learn.update_per_collect": 1}
HINT = "lightning-ding collect and save_dataset write such a file"


def transformer_run(main: Config, create: Config, envs: TranslatedEnvs, seed: int, max_train_iter: int) -> Run:
    """Return the run of a pair whose envs are translated already.

    Args:
        main: ``main_config``.
        create: ``create_config``.
        envs: The envs of the pair.
        seed: Seed of the run.
        max_train_iter: DI-engine's limit of updates.

    Raises:
        ValueError: If a value has no counterpart, or no data set is named.
    """
    notes = Notes()
    cfg = merge(main, create, DEFAULTS)
    keys, given = dict(flat(cfg["policy"])), given_keys(main, create)
    config = nested(_policy_config(keys, given, notes))
    config = deep_merge(nested({**WITHOUT_KEY, **ALWAYS_WITHOUT_KEY}), config)
    eval_freq = config["eval"]["evaluator"]["eval_freq"]
    path = _data_set(main.get("dataset", {}), keys, notes)
    envs = with_frames(envs, config["eval"]["evaluator"])
    described = {
        "family": TRANSFORMER,
        "policy": TRANSFORMER,
        "policy_class": DTPolicy,
        "on_policy": False,
        "policy_config": config,
    }
    data = {"max_train_iter": limit(max_train_iter), "seed": seed}
    run = make_run(
        described, {**cfg, "seed": main.get("seed", seed)}, given, envs, data, Times.of(keys, eval_freq, 1), notes
    )
    return dataclasses.replace(run, data=_of_evaluations({**run.data, "norm_obs": True}, path))


def data_set_run(
    described: Config, cfg: Config, given: set[str], envs: TranslatedEnvs, seed: int, max_train_iter: int, notes: Notes
) -> Run:
    """Return the run of another policy that learns from a data set, whose keys and envs are translated already.

    Args:
        described: The policy of the run; see :func:`make_run`.
        cfg: The merged pair.
        given: Dotted keys of the policy that the pair sets.
        envs: The envs of the pair.
        seed: Seed of the run.
        max_train_iter: DI-engine's limit of updates.
        notes: Lines to which more are added.

    Raises:
        ValueError: If the data set has a form that is not read.
        Missing: If no data set is named, or it is not on this machine.
    """
    keys = dict(flat(cfg["policy"]))
    config = resolve(described["policy_class"].config_class, described["policy_config"])
    path = keys.get("collect.data_path")
    if path or not envs.dataset:
        path = find_data_set("policy.collect.data_path", path, HINT)
    else:
        path = data_of_d4rl(envs.dataset)
        notes.translated.append(f"env.env_id {envs.dataset!r} -> the data set {path!r}")
    envs = envs.for_data(path)
    eval_freq, passes = config.eval.evaluator.eval_freq, keys.get("learn.train_epoch")
    if passes is not None or envs.reward_norm:
        check_there(path)
    if passes is not None:  # evaluations of DI-engine are at the ends of passes
        updates = math.ceil(len(load_dataset(path)) / config.learn.batch_size)
        max_train_iter = min(max_train_iter, passes * updates)
        eval_freq = math.ceil(eval_freq / updates) * updates
        described["policy_config"] = deep_merge(described["policy_config"], nested({EVAL_FREQ: eval_freq}))
    data = {"max_train_iter": limit(max_train_iter), "seed": seed}
    more = reward_scale(envs.reward_norm, path, notes) if envs.reward_norm else {}
    if envs.norm_by_data:
        notes.translated.append("env.norm_obs -> norm_obs, with the statistics of the data set, also in evaluations")
        more["norm_obs"] = True
    run = make_run(described, cfg, given, envs, data, Times.of(keys, eval_freq, 1), notes)
    return dataclasses.replace(run, data=_of_evaluations(run.data, path) | more)


def reward_scale(kind: Any, path: str, notes: Notes) -> Config:
    """Return the arguments of the datamodule for D4RL's ways to scale the rewards of a data set.

    Args:
        kind: ``env.reward_norm`` of the pair.
        path: The data set.
        notes: Lines to which one is added.

    Raises:
        ValueError: If there is no such way.
    """
    shifts = {"iql_antmaze": (1.0, -1.0), "cql_antmaze": (4.0, -0.5), "antmaze": (2.0, -0.25)}
    allowed = ("normalize", "iql_locomotion", *shifts)
    require(kind in allowed, "env.reward_norm", f"one of {', '.join(allowed)}", kind)
    if kind in shifts:
        scale, shift = shifts[str(kind)]
    elif kind == "normalize":
        reward = load_dataset(path).columns["reward"].astype(np.float64)
        scale, shift = 1 / float(reward.std()), -float(reward.mean())
    else:  # 1000 over the range of returns
        found = load_dataset(path).statistics()
        spread = found.return_max - found.return_min
        require(spread > 0, "env.reward_norm", f"left out with {path}, all of whose returns are equal", kind)
        scale, shift = 1000 / spread, 0.0
    notes.translated.append(f"env.reward_norm {kind!r} -> reward_scale = {scale:g}, reward_shift = {shift:g}")
    return {"reward_scale": scale} | ({"reward_shift": shift} if shift else {})


def _policy_config(keys: Config, given: set[str], notes: Notes) -> Ours:
    ours: Ours = {EVAL_FREQ: 1000}
    for name, value in keys.items():
        if is_consumed(name):
            continue
        if name in KEYS:
            ours |= translate_key(name, value, keys, KEYS[name], TRANSFORMER, name in given, notes)
        elif name in given:
            hint = misspelt(name, [*KEYS, *READ_BY_RUN])
            notes.warnings.append(f"policy.{name} = {value!r} is not read by {TRANSFORMER}{hint}")
    return ours


def _data_set(section: Mapping[str, Any], keys: Cfg, notes: Notes) -> str:
    """Return the path of the data set, and check what the section says twice."""
    kind = section.get("env_type", "mujoco")
    require(kind in ("mujoco", "classic"), "main_config.dataset.env_type", "'mujoco' or 'classic'", kind)
    pairs = {"rtg_scale": keys.get("rtg_scale", 1000), "context_len": keys.get("model.context_len", 20)}
    for name, value in pairs.items():
        found = section.get(name)
        is_length = name == "context_len"
        if is_length and found not in (None, value):
            notes.warnings.append(
                f"dataset.{name} = {found!r} has no effect: the policy's network takes {value!r} steps"
            )
        require(
            is_length or found in (None, value), f"main_config.dataset.{name}", f"that of the policy, {value!r}", found
        )
    unread = [name for name in section if name not in (*pairs, "env_type", "data_dir_prefix")]
    notes.warnings += [f"dataset.{name} = {section[name]!r} is not read by {TRANSFORMER}" for name in unread]
    path = section.get("data_dir_prefix", keys.get("collect.data_path", ""))
    return find_data_set("main_config.dataset.data_dir_prefix", path, HINT, TRAJECTORIES)


def _of_evaluations(data: Config, path: str) -> Config:
    """Return the arguments of an ``OfflineDataModule``, whose envs are those of evaluations."""
    own = ("env_id", "mode", "wrappers", "env_kwargs", "seed", "max_train_iter", "stop_value", "evaluator_env_num")
    further = ("n_evaluator_episode", "norm_obs", "norm_reward", "env_timeout", "import_names")
    found = {name: data[name] for name in (*own, *further) if name in data}
    for name in ("env_id", "env_kwargs"):
        found |= {name: data[f"eval_{name}"]} if f"eval_{name}" in data else {}
    wrappers = [*data.get("wrappers", ()), *data.get("eval_wrappers", ())]
    return {"dataset": path, **found, **({"wrappers": wrappers} if wrappers else {})}
