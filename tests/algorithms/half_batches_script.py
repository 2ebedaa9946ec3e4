"""Learns from fixed batches on each of several ranks: python -m tests.algorithms.half_batches_script FOLDER RANK RANKS.

Every rank takes its share of each batch and writes the gradients before every step of an optimizer, and what it ended
with, to FOLDER/rank_R.pt. Everything is in float64, so that sums in another order are equal to 1e-9.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.policy import Policy
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.utils.modes import IS_FIRST, STATE
from tests.algorithms.sequences import OF_SEQUENCES, to_sequences, with_memory
from tests.algorithms.table import (
    ALGORITHMS,
    CONTINUOUS_ONLY,
    TEAMS,
    WITHOUT_COLLECTING,
    make_policy,
    names_of,
    sample_of,
    with_actor,
    with_first_step,
)

BATCHES, BATCH_SIZE, ENVS, STEPS = 2, 16, 4, 6
CLIP = 0.05  # norm of a gradient that is clipped
DISCRETE: dict[str, Any] = {"obs_shape": 4, "action_shape": 2}
ACTOR = {**DISCRETE, "action_space": "discrete"}
CONTINUOUS = {"obs_shape": 3, "action_shape": 1, "action_low": [-2.0], "action_high": [2.0]}
BY_BATCH = ("crossq", "xqc", "ngu")  # statistics of the minibatch of a rank; a mean over the real steps of a rank
BY_SEQUENCE = ("last_obs", "is_expert", *OF_SEQUENCES, STATE, IS_FIRST)  # columns without an axis of steps
EVERY = (*(name for name in ALGORITHMS if name not in BY_BATCH), *TEAMS, *WITHOUT_COLLECTING)
TEAM: dict[str, Any] = {"agent_num": 2, "agent_obs_shape": 3, "global_obs_shape": 6, "action_shape": 2}
ROLLOUT_TEAMS, ACTOR_TEAMS = ("mappo", "ippo", "recurrent_mappo", "happo", "coma", "mat"), ("maddpg", "masac")
SHAPES: dict[str, Any] = {
    **dict.fromkeys(ALGORITHMS, DISCRETE),
    **dict.fromkeys(CONTINUOUS_ONLY, CONTINUOUS),
    **dict.fromkeys((*with_actor(), *WITHOUT_COLLECTING), ACTOR),
    **{
        name: {**TEAM, **({"action_space": "discrete"} if name in ROLLOUT_TEAMS + ACTOR_TEAMS else {})}
        for name in TEAMS
    },
}
WEIGHTED = {"priority": True, "priority_IS_weight": True, "other": {"replay_buffer": {"type": "advanced"}}}
CHANGES: dict[str, Any] = {  # so that an update depends on all of a batch
    **dict.fromkeys(names_of(ReplayPolicy), WEIGHTED),
    "mbpo": {},  # no priorities
    "dreamerv3": {},
    "tdmpc2": {},
    "bc": {},
    "dt": {},
    "ppo": {"learn": {"batch_size": ENVS * STEPS, "value_norm": True}, "recompute_adv": True},
    "ppg": {"learn": {"batch_size": ENVS * STEPS, "value_norm": True, "aux_freq": 1}},
    "trpo": {"learn": {"batch_size": ENVS * STEPS, "value_norm": True}},
    "ppo_offpolicy": {"learn": {"value_norm": False, "adv_norm": False}},  # over the whole batch, before the update
    "ppg_offpolicy": {"learn": {"value_norm": False, "adv_norm": False, "aux_freq": 1, "batch_size": ENVS * STEPS}},
    "impala": {"unroll_len": STEPS},
    "acer": {"unroll_len": STEPS},
    "recurrent_ppo": {"learn": {"batch_size": ENVS * STEPS, "value_norm": True}, "recompute_adv": True},
    "a2c": {"learn": {"adv_norm": True}},
    "pg": {"learn": {"return_norm": True}},
    "pqn": {"learn": {"batch_size": ENVS * STEPS}},
    **{name: {"learn": {"batch_size": ENVS * STEPS, "value_norm": True}} for name in ROLLOUT_TEAMS},
    **{name: {"priority": True, "priority_IS_weight": True} for name in TEAMS if name not in ROLLOUT_TEAMS},
    **dict.fromkeys(ACTOR_TEAMS, WEIGHTED),
}


def replay_batch(rng: np.random.Generator, name: str, envs: int = ENVS) -> dict[str, Any]:
    """Return a minibatch of random transitions, a fixed number for each env."""
    size, shape = BATCH_SIZE // ENVS * envs, SHAPES[name].get("obs_shape", 1)
    action = rng.integers(2, size=size) if SHAPES[name] is not CONTINUOUS else rng.uniform(-2, 2, (size, 1))
    batch = {
        "obs": rng.normal(size=(size, shape)),
        "action": action,
        "reward": rng.normal(size=size),
        "next_obs": rng.normal(size=(size, shape)),
        "terminated": rng.random(size) < 0.2,
        "discount": np.full(size, 0.9),
        "IS": rng.uniform(0.2, 1, size),
    }
    return with_first_step(POLICY_REGISTRY.get(name), batch)


def rollout(rng: np.random.Generator, name: str, envs: int = ENVS) -> dict[str, Any]:
    """Return whole episodes of some envs, the rows of a step side by side."""
    size = envs * STEPS
    step, env_id = np.repeat(np.arange(STEPS), envs), np.tile(np.arange(envs), STEPS)
    half = STEPS // 2
    return {
        "obs": rng.normal(size=(size, 4)),
        "action": rng.integers(2, size=size),
        "reward": rng.normal(size=size),
        "next_obs": rng.normal(size=(size, 4)),
        "terminated": (step == STEPS - 1) | ((step == half - 1) & (env_id % 2 == 0)),
        "truncated": np.zeros(size, dtype=bool),
        "log_prob": np.log(rng.uniform(0.3, 0.7, size)),
        "env_id": env_id,
        "episode_id": env_id + envs * (step >= half) * (env_id % 2 == 0),
    }


def of_team(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return transitions with the observations, actions and probabilities of two agents, each with its own reward."""
    size = len(batch["reward"])

    def seen() -> dict[str, Any]:
        rows = {"agent_state": rng.normal(size=(size, 2, 3)), "agent_reward": rng.normal(size=(size, 2))}
        return {**rows, "alive": np.ones((size, 2))}

    log_prob = {"log_prob": np.log(rng.uniform(0.3, 0.7, (size, 2)))} if "log_prob" in batch else {}
    return {**batch, "obs": seen(), "next_obs": seen(), "action": rng.integers(2, size=(size, 2)), **log_prob}


def make(name: str, **changes: Any) -> Any:
    """Return a policy whose updates depend on all of a batch."""
    torch.manual_seed(0)
    policy = make_policy(name, **deep_merge(deep_merge(CHANGES[name], {"model": SHAPES[name]}), changes))
    policy.seed(1)
    return policy


def learn(name: str, rank: int, ranks: int, clip: float | None) -> dict[str, Any]:
    """Return the gradients before each step of an optimizer, and what a rank ended with."""
    policy = make(name, learn={"grad_clip_norm": clip}).double()
    gradients = note_gradients(policy)
    reports = [update(policy, name, number, rank, ranks) for number in range(BATCHES)]
    end = {"weights": {key: x.clone() for key, x in policy.state_dict().items()}, "gradients": gradients}
    if name in ("ppo", "recurrent_ppo"):
        statistics: Any = policy.return_statistics
        end["return_statistics"] = {key: torch.as_tensor(x) for key, x in statistics.state_dict().items()}
    priorities = [report["priority"] for report in reports if "priority" in report]
    return {**end, "priority": torch.stack(priorities) if priorities else torch.empty(0)}


def note_gradients(policy: Policy[Any]) -> list[list[Tensor]]:
    """Return a list that grows by the gradients of an optimizer before each of its steps."""
    noted: list[list[Tensor]] = []

    def note(optimizer: Any, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        noted.append([parameter.grad.clone() for parameter in parameters if parameter.grad is not None])

    for optimizer in policy.configure_optimizers()[0]:
        optimizer.register_step_pre_hook(note)
    return noted


def whole_batch(policy: Any, name: str, number: int, envs: int = ENVS) -> dict[str, Any]:
    """Return a batch of random data of some envs, prepared, in the precision of the policy."""
    dtype = next(policy.parameters()).dtype

    def cast(batch: Any) -> Any:
        return nested.apply(lambda x: x.to(dtype) if x.is_floating_point() else x, batch)

    of_actor = isinstance(policy, OnPolicyPolicy)
    rng = np.random.default_rng(number)
    whole: Any = (rollout if of_actor else replay_batch)(rng, name, envs)
    whole = nested.to_tensor(of_team(whole, rng) if name in TEAMS else whole)
    if of_actor and not policy.on_policy:
        by_env = torch.arange(envs * STEPS).view(STEPS, envs).T.flatten()
        whole = sample_of(policy, cast(nested.index(whole, by_env)))
    whole = (with_memory if policy.on_policy else to_sequences)(policy, cast(whole))
    if hasattr(policy, "prepare"):
        whole = policy.prepare(whole)  # noise is drawn for each row
    return cast(whole)  # type: ignore[no-any-return]


def update(policy: Any, name: str, number: int, rank: int, ranks: int) -> dict[str, Any]:
    """Learn from this rank's share of a batch: every ``ranks``-th row, sequence or env."""
    whole = whole_batch(policy, name, number)
    place = (
        whole["env_id"] if "env_id" in whole else torch.arange(len(whole["mask"][0]) if "mask" in whole else BATCH_SIZE)
    )
    mine = place % ranks == rank
    if "mask" not in whole:
        return policy.learn_mode.forward(nested.index(whole, mine))  # type: ignore[no-any-return]
    share = {name: nested.index(x, mine if name in BY_SEQUENCE else (slice(None), mine)) for name, x in whole.items()}
    return policy.learn_mode.forward(share)  # type: ignore[no-any-return]


def report(rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Return what every algorithm does, with and without clipping."""
    clips = {"free": None, "clipped": CLIP}
    return {f"{name}, {how}": learn(name, rank, ranks, clips[how]) for name in EVERY for how in clips}


if __name__ == "__main__":
    torch.set_num_threads(1)
    target, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", f"file://{target / 'store'}", timedelta(seconds=60), world_size=ranks, rank=rank)
    torch.save(report(rank, ranks), target / f"rank_{rank}.pt")
    dist.destroy_process_group()
