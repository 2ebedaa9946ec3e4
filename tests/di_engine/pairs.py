"""Small pairs of configs in DI-engine's format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_ding.config import deep_merge

Pair = tuple[dict[str, Any], dict[str, Any]]
OFFLINE = ("cql", "edac", "bcq", "discrete_cql", "td3_bc", "iql", "bc")
CONTINUOUS = ("ddpg", "d4pg", "td3", "pdqn", "sac")
ON_POLICY = ("a2c", "ppg", "ppo", "pg")
VALUE_BASED = ("dqn", "c51", "qrdqn", "rainbow", "mdqn", "sql", "bdq", "iqn", "fqf")
REPLAYED = ("ppo_offpolicy", "ppg_offpolicy", "impala", "acer")
TYPES = (
    *VALUE_BASED,
    "sqn",
    "r2d2",
    "r2d2_gtrxl",
    "r2d3",
    "ngu",
    "dqfd",
    *CONTINUOUS,
    "discrete_sac",
    *REPLAYED,
    *ON_POLICY,
    *OFFLINE,
)


def env_of(kind: str) -> str:
    return "pendulum" if kind in (*CONTINUOUS, "cql", "edac", "bcq", "td3_bc", "iql") else "cartpole"


def pair_of(kind: str, policy: Mapping[str, Any] | None = None, **env: Any) -> Pair:
    """Return a pair that names an env and a policy, and sets no more than what has no default."""
    amount: dict[str, Any] = {"n_episode": 2} if kind == "pg" else {"n_sample": 16}
    amount = {} if kind in OFFLINE else amount
    amount |= {"data_path": "demonstrations.npz"} if kind in ("dqfd", "r2d3") or kind in OFFLINE else {}
    envs = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2, **env}
    main = {"exp_name": "run", "env": envs, "policy": deep_merge({"collect": amount}, policy or {})}
    create: dict[str, Any] = {"env": {"type": env_of(kind)}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    if kind == "pg":
        create["collector"] = {"type": "episode"}
    return main, create


def small_pair(kind: str, policy: Mapping[str, Any] | None = None, **env: Any) -> Pair:
    """Return a pair whose rounds take milliseconds."""
    small: dict[str, Any] = {"eval": {"evaluator": {"eval_freq": 4}}, "learn": {"batch_size": 8}}
    if kind not in (*ON_POLICY, *OFFLINE):
        small |= {"random_collect_size": 16, "other": {"replay_buffer": {"replay_buffer_size": 500}}}
    return pair_of(kind, deep_merge(small, policy or {}), **env)
