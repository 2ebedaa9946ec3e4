"""All algorithms with an env and a config in which each of them trains within a second."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.base import RunDataModule
from lightning_ding.datamodules.rank_state import rng_state
from lightning_ding.policy import ACERPolicy, CalQLPolicy, DQfDPolicy, NGUPolicy, Policy, R2D3Policy, create_policy
from lightning_ding.policy.on_policy import ActorPolicy
from lightning_ding.registry import POLICY_REGISTRY

Config = dict[str, Any]

REPLAY: Config = {
    "random_collect_size": 16,
    "learn": {"update_per_collect": 2, "batch_size": 8},
    "collect": {"n_sample": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
    "eval": {"evaluator": {"n_episode": 2}},
}
OFFLINE: Config = {name: section for name, section in REPLAY.items() if name != "random_collect_size"}
Q_LEARNING = deep_merge(REPLAY, {"model": {"encoder_hidden_size_list": [16]}, "learn": {"target_update_freq": 7}})
RECURRENT = deep_merge(
    Q_LEARNING,
    {
        **{"burnin_step": 2, "learn_unroll_len": 4, "nstep": 2, "model": {"core": {"hidden_size": 8}}},
        "learn": {"target_theta": None},
    },
)
TINY_DREAMER: Config = {"deter": 16, "hidden": 8, "units": 8, "groups": 3, "classes": 4, "blocks": 2, "bins": 31}
DREAMER: Config = {
    **deep_merge(
        {name: section for name, section in REPLAY.items() if name != "random_collect_size"},
        {"model": TINY_DREAMER, "learn": {"learning_rate": 1e-3, "warmup": 2}},
    ),
    **{"learn_unroll_len": 4, "horizon": 2},
}
TINY_TDMPC2: Config = {"encoder": 8, "hidden": 8, "latent": 8, "simplex": 4, "ensemble_num": 3, "bins": 11}
TDMPC2: Config = {
    **deep_merge(REPLAY, {"model": TINY_TDMPC2, "learn": {"learning_rate": 1e-3}}),
    "plan": {"iterations": 2, "num_samples": 8, "num_elites": 4, "num_policy_samples": 2},
}
ACTOR_CRITIC = deep_merge(REPLAY, {"model": {"actor_head_hidden_size": 16, "critic_head_hidden_size": 16}})
ACER: Config = {name: section for name, section in ACTOR_CRITIC.items() if name != "random_collect_size"}
ROLLOUT: Config = {
    "model": {"encoder_hidden_size_list": [16]},
    "learn": {"lr_scheduler": {"type": "linear", "unit": "env_step", "decay": 16_000}},
    "eval": {"evaluator": {"n_episode": 2}},
}
REPLAYED = deep_merge(ROLLOUT, {"learn": {"update_per_collect": 2, "batch_size": 8}, "collect": {"n_sample": 16}})
CONSTANT: Config = {"type": "constant", "points": None, "unit": "budget"}
XQC: Config = {"model": {"critic_head_layer_num": 1, "n_atom": 11}, "learn": {"reset_freq": 5}}
BRO: Config = {"model": {"critic_head_layer_num": 1, "num_quantiles": 5}, "learn": {"reset_at": [5]}}
TD7: Config = {"model": {"embedding_size": 8, "embedding_hidden_size": 16}, "learn": {"target_update_freq": 4}}
TWO_RATES: Config = {"learning_rate_actor": 3e-4, "learning_rate_critic": 1e-3}
PPO = deep_merge(ROLLOUT, {"learn": {"epoch_per_collect": 2, "batch_size": 8}, "collect": {"n_sample": 16}})

SHORT_MBPO: Config = {
    "dynamics": {
        **{"ensemble_num": 3, "elite_num": 2, "hidden_size_list": [8], "batch_size": 8, "fit_freq": 16},
        "max_epochs": 2,
    },
    "rollout": {"batch_size": 10, "length": [[0, 2]]},
}

TEAM, LINE = "lightning_ding.envs.teams.games.TwoStepGame", "lightning_ding.envs.teams.line.CoverGame"
TEAM_Q = deep_merge(REPLAY, {"model": {"encoder_hidden_size_list": [16]}, "learn": {"learning_rate": 1e-3}})
TEAM_ACTOR_CRITIC = deep_merge(REPLAY, {"model": {"encoder_hidden_size_list": [16]}})


@dataclass(frozen=True)
class Algorithm:
    """Where an algorithm trains, and how."""

    env_id: str = "CartPole-v1"
    config: Config = field(default_factory=dict)


ALGORITHMS = {
    "dqn": Algorithm(config=Q_LEARNING),
    "c51": Algorithm(config=Q_LEARNING),
    "qrdqn": Algorithm(config=Q_LEARNING),
    "rainbow": Algorithm(config=Q_LEARNING),
    "mdqn": Algorithm(config=Q_LEARNING),
    "sql": Algorithm(config=Q_LEARNING),
    "sqn": Algorithm(config=deep_merge(Q_LEARNING, {"learn": {"target_theta": None}})),
    "bdq": Algorithm(config=Q_LEARNING),
    "sqil": Algorithm(config=Q_LEARNING),
    "dqfd": Algorithm(config=deep_merge(Q_LEARNING, {"nstep": 3, "learn": {"per_train_iter_k": 3}})),
    "iqn": Algorithm(config=Q_LEARNING),
    "fqf": Algorithm(config=Q_LEARNING),
    "r2d2": Algorithm(config=RECURRENT),
    "r2d3": Algorithm(config=deep_merge(RECURRENT, {"random_collect_size": 16, "learn": {"per_train_iter_k": 3}})),
    "ngu": Algorithm(config=deep_merge(RECURRENT, {"num_neighbours": 3, "model": {"num_policies": 3}})),
    "dreamerv3": Algorithm(config=DREAMER),
    "ddpg": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"collect": {"noise_type": "ou"}})),
    "d4pg": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"model": {"v_min": -500.0, "n_atom": 11}})),
    "td3": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "pdqn": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "sac": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "discrete_sac": Algorithm(config=ACTOR_CRITIC),
    "discrete_cql": Algorithm(config=Q_LEARNING),
    "bc": Algorithm(config={**OFFLINE, "model": {"encoder_hidden_size_list": [16]}}),
    "td3_bc": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "iql": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "awac": Algorithm("Pendulum-v1", ACTOR_CRITIC),
    "cql": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"learn": {"num_actions": 2}})),
    "calql": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"learn": {"num_actions": 2}})),
    "edac": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"model": {"ensemble_num": 3}})),
    "bcq": Algorithm(
        "Pendulum-v1",
        deep_merge(
            ACTOR_CRITIC,
            {"model": {"vae_hidden_size_list": [16], "candidates": 5}, "learn": {"num_actions": 2}},
        ),
    ),
    "tqc": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"model": {"ensemble_num": 3, "num_quantiles": 5}})),
    "redq": Algorithm(
        "Pendulum-v1",
        deep_merge(ACTOR_CRITIC, {"model": {"ensemble_num": 3}, "learn": {"actor_update_freq": 1}}),
    ),
    "rlpd": Algorithm(
        "Pendulum-v1",
        deep_merge(ACTOR_CRITIC, {"model": {"ensemble_num": 3}, "learn": {"actor_update_freq": 1}}),
    ),
    "mbpo": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, SHORT_MBPO)),
    "tdmpc2": Algorithm("Pendulum-v1", TDMPC2),
    "crossq": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"learn": {"actor_update_freq": 1}})),
    "xqc": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, XQC)),
    "bro": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, BRO)),
    "td7": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, TD7)),
    "ppo": Algorithm(config=PPO),
    "ppg": Algorithm(config=deep_merge(PPO, {"learn": {"aux_freq": 3, "aux_train_epoch": 1}})),
    "trpo": Algorithm(
        config=deep_merge(ROLLOUT, {"collect": {"n_sample": 16}, "learn": {"epoch_per_collect": 2, "batch_size": 8}})
    ),
    "ppo_offpolicy": Algorithm(
        config=deep_merge(REPLAYED, {"model": {"share_encoder": False}, "learn": {"value_norm": "popart", **TWO_RATES}})
    ),
    "ppg_offpolicy": Algorithm(config=deep_merge(REPLAYED, {"learn": {"aux_freq": 4, "aux_train_epoch": 1}})),
    "impala": Algorithm(config=deep_merge(REPLAYED, {"unroll_len": 5})),
    "acer": Algorithm(config={**ACER, "unroll_len": 5}),
    "recurrent_ppo": Algorithm(
        config=deep_merge(PPO, {"learn_unroll_len": 4, "model": {"core": {"hidden_size": 8}}}),
    ),
    "a2c": Algorithm(config=deep_merge(ROLLOUT, {"collect": {"n_sample": 16}})),
    "pqn": Algorithm(config=PPO),
    "pg": Algorithm(config=deep_merge(ROLLOUT, {"collect": {"n_episode": 2}})),  # of unknown lengths
}
TEAMS = {
    "mappo": Algorithm(TEAM, PPO),
    "ippo": Algorithm(TEAM, PPO),
    "recurrent_mappo": Algorithm(TEAM, deep_merge(PPO, {"learn_unroll_len": 4, "model": {"core": {"hidden_size": 8}}})),
    "happo": Algorithm(TEAM, PPO),
    "coma": Algorithm(TEAM, PPO),
    "mat": Algorithm(TEAM, PPO),
    "iql_ma": Algorithm(TEAM, TEAM_Q),
    "vdn": Algorithm(TEAM, deep_merge(TEAM_Q, {"model": {"parameter_sharing": False}})),
    "qmix": Algorithm(TEAM, deep_merge(TEAM_Q, {"model": {"core": {"type": "lstm", "hidden_size": 8}}, "nstep": 2})),
    "wqmix": Algorithm(TEAM, deep_merge(TEAM_Q, {"model": {"core": {"hidden_size": 8, "type": "gru"}}})),
    "qtran": Algorithm(TEAM, TEAM_Q),
    "madqn": Algorithm(TEAM, deep_merge(TEAM_Q, {"model": {"core": {"type": "gru", "hidden_size": 8}}})),
    "maddpg": Algorithm(LINE, deep_merge(TEAM_ACTOR_CRITIC, {"collect": {"noise_type": "ou"}})),
    "masac": Algorithm(TEAM, deep_merge(TEAM_ACTOR_CRITIC, {"learn": {"alpha_per_agent": True}})),
}
"""Algorithms of teams, whose observations and actions have an axis of agents. Tests of what every algorithm can do go
over them too; those of kinds of spaces and networks do not."""
GTRXL: Config = {"type": "gtrxl", "hidden_size": 8, "num_heads": 2, "memory_length": 3}
VARIANTS = {
    f"{name}-gtrxl": Algorithm(config=deep_merge(ALGORITHMS[name].config, {"model": {"core": GTRXL}}))
    for name in ("r2d2", "recurrent_ppo")
}
"""Algorithms with a part that is not their default, by the name of the algorithm, a hyphen and the part."""
LAYERS = {
    f"sac-{name}": Algorithm("Pendulum-v1", deep_merge(ACTOR_CRITIC, {"model": model}))
    for name, model in {
        "simba": {"actor_layers": {"type": "simba_v2"}, "critic_layers": {"type": "simba"}, "last_layer_init": None},
        "bronet": {"actor_layers": {"weights": "unit"}, "critic_layers": {"type": "bronet"}},
    }.items()
}
"""Other kinds of layers, by the name of the algorithm, a hyphen and the kind."""
WITHOUT_COLLECTING = {
    "dt": Algorithm(
        config={
            **{"context_len": 4, "rtg_scale": 5.0, "max_eval_ep_len": 20},
            "model": {"embed_dim": 8, "n_blocks": 1, "dropout_p": 0.0, "encoder_hidden_size_list": [16]},
            "learn": {"update_per_collect": 2, "batch_size": 8, "lr_scheduler": CONSTANT},
        }
    )
}
"""Algorithms that learn from a data set and act in evaluations only, so that no datamodule with envs trains them."""

CONTINUOUS_ONLY = tuple(name for name, one in ALGORITHMS.items() if one.env_id == "Pendulum-v1")


DISCRETE_ONLY = ("pqn", "acer")
"""Algorithms with values of all actions, which act by a distribution nevertheless."""


def names_of(family: type[Policy[Any]]) -> tuple[str, ...]:
    """Return the algorithms whose class derives from ``family``."""
    return tuple(name for name in ALGORITHMS if issubclass(POLICY_REGISTRY.get(name), family))


def with_actor() -> tuple[str, ...]:
    """Return the algorithms that learn an actor which takes actions of every kind."""
    return tuple(name for name in names_of(ActorPolicy) if name not in DISCRETE_ONLY)


def make_policy(name: str, **changes: Any) -> Policy[Any]:
    """Return an algorithm's policy, with weights from torch's global generator."""
    config = (ALGORITHMS | TEAMS | VARIANTS | LAYERS | WITHOUT_COLLECTING)[name].config
    return create_policy({"type": name.partition("-")[0], **deep_merge(config, changes)})


def make_datamodule(name: str, **arguments: Any) -> RunDataModule:
    """Return the datamodule of an algorithm, with two envs."""
    name = name.partition("-")[0]
    datamodule_class = RolloutDataModule if POLICY_REGISTRY.get(name).on_policy else ReplayDataModule
    env = arguments.pop("env", (ALGORITHMS | TEAMS)[name].env_id)
    if needs_demonstrations(name) and "demonstrations" not in arguments:
        arguments = {"demonstrations": random_episodes(env), **arguments}
    return datamodule_class(env, **{"num_envs": 2, "seed": 3, **arguments})


def needs_demonstrations(name: str) -> bool:
    """Return whether an algorithm learns from demonstrations too."""
    return getattr(POLICY_REGISTRY.get(name), "demonstrations", "optional") not in ("optional", "refused")


def with_first_step(policy: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a minibatch with the first of its n steps, all different, or returns, if the policy's loss needs them."""
    policy_class = policy if isinstance(policy, type) else type(policy)
    if issubclass(policy_class, CalQLPolicy):
        return {**batch, "data_return": batch["reward"]}
    if issubclass(policy_class, R2D3Policy):
        return {**batch, "is_expert": batch["reward"] > 0}
    if not issubclass(policy_class, DQfDPolicy):
        return batch
    first = {"reward_1": -batch["reward"], "next_obs_1": batch["obs"], "terminated_1": batch["terminated"]}
    return {**batch, **first, "is_expert": batch["reward"] > 0}


@cache
def random_episodes(env_id: str) -> Any:
    """Return 40 steps of a random policy, as a data set."""
    return random_steps(gym.make(env_id))


def random_steps(env: gym.Env[Any, Any]) -> Any:
    """Return 40 random steps in an env, as a data set, and close the env."""
    env.action_space.seed(0)
    steps: list[dict[str, Any]] = []
    obs, _ = env.reset(seed=0)
    while len(steps) < 40:
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        step = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        steps.append({**step, "terminated": terminated, "truncated": truncated})
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    return nested.stack_arrays([nested.to_array(nested.as_dicts(step)) for step in steps])


def sample_of(policy: Any, transitions: Config) -> Config:
    """Return what a buffer gives of transitions that lie env by env, equally many of each and without a cut.

    Unrolls of every second env are one step shorter, so their last step is padding, which repeats the step before it.
    """
    if isinstance(policy, ACERPolicy) and "behaviour_log_p" not in transitions:  # a column of its transitions
        number = policy.config.model.action_shape or 2
        rows = len(transitions["reward"])
        transitions = {
            **transitions,
            "behaviour_log_p": torch.linspace(-2, 2, rows * number).view(rows, number).log_softmax(1),
        }
    if isinstance(policy, NGUPolicy):
        transitions = {"intrinsic_reward": torch.linspace(0, 9, len(transitions["reward"])), **transitions}
    data: Any = nested.to_tensor(policy.collect_mode.get_train_sample(transitions))
    if not policy.learns_from_sequences or hasattr(policy.model, "first_state"):
        return dict(data)
    envs = int(data["env_id"].max()) + 1
    unrolls: Any = nested.apply(lambda x: x.unflatten(0, (envs, -1)).transpose(0, 1), data)
    mask = real_steps(*unrolls["terminated"].shape)
    step = torch.arange(len(mask)).unsqueeze(1).minimum(mask.sum(0) - 1)
    return nested.apply(lambda x: x[step, torch.arange(envs)], unrolls) | {"mask": mask}  # type: ignore[no-any-return]


def real_steps(length: int, size: int) -> torch.Tensor:
    """Return a mask of sequences of which every second one is one step shorter, shape (T, B)."""
    return torch.arange(length).unsqueeze(1) < length - torch.arange(size) % 2


def state_of(policy: Any, datamodule: Any) -> dict[str, Any]:
    """Return the complete state that determines how a run continues, as plain values by part."""
    buffer = getattr(datamodule, "buffer", None)
    state = {
        "tensors": policy.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in policy.updater.optimizers],
        "schedules": [scheduler.state_dict() for scheduler in policy.updater.schedulers],
        "counters": policy.progress.state_dict(),
        "buffer": {} if buffer is None else buffer.state_dict(),
        "generators": rng_state(policy.rng),
    }
    return {part: copy.deepcopy(plain(value)) for part, value in state.items()}


def plain(value: Any) -> Any:
    """Return a state with the bytes of its tensors and arrays as text, so that two can be compared with ``==``."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return (value.shape, value.tobytes().decode("latin1")) if value.dtype != object else value.tolist()
    if isinstance(value, dict):
        return {key: plain(below) for key, below in value.items()}
    return [plain(below) for below in value] if isinstance(value, (list, tuple)) else value
