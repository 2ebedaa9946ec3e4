"""Train the cases of ``benchmarks/same_weights.py`` with one source tree, and write digests of what comes out.

``same_weights`` runs this file as a script, with the tree to import on ``PYTHONPATH``. It imports package exports and
names gymnasium envs only, because it has to run unchanged with the sources of two commits. It writes, for each case,
step and rank, the file ``OUT/CASE/STEP_RANK.json`` with a digest of each tensor.

Steps of a case:

    start      train to the half, and write a checkpoint
    continue   train from a checkpoint to the end, in another process with other seeds
    load       read the weights of a checkpoint with ``load_from_checkpoint``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from lightning.pytorch import Callback, Trainer

import lightning_ding
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.envs import PettingZooVectorEnv, make_vector_env
from lightning_ding.policy import DQNPolicy, QLearningPolicy, create_policy, get_policy_cls
from lightning_ding.worker import (
    BattleEpisodeSerialCollector,
    BattleInteractionSerialEvaluator,
    BattleSampleSerialCollector,
    EpisodeSerialCollector,
    SampleSerialCollector,
    create_buffer,
)

Config = dict[str, Any]
Digests = dict[str, str]

HALF, EPOCHS, ROUNDS = 2, 4, 12  # epochs of the start, epochs in all, rounds of an epoch
ROLLOUTS_OF_TEAMS = ("mappo", "ippo", "recurrent_mappo", "happo", "coma", "mat")
ON_POLICY = ("pg", "pqn", "a2c", "ppo", "ppg", "trpo", "recurrent_ppo", *ROLLOUTS_OF_TEAMS)
STEPS = ("start", "continue", "load")
SIDE = 12  # pixels


class ToyEnv(gym.Env[Any, Any]):
    """Random observations, a reward that depends on observation and action, and episodes of 4 to 9 steps.

    Args:
        observes: ``"vector"``, ``"image"`` or ``"dict"``.
        acts: ``"discrete"``, ``"many"`` (multi-discrete), ``"box"`` or ``"hybrid"``.
    """

    def __init__(self, observes: str = "vector", acts: str = "discrete") -> None:
        vector = spaces.Box(-1, 1, (3,), np.float32)
        observations: dict[str, spaces.Space[Any]] = {
            "vector": vector,
            "image": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
            "dict": spaces.Dict({"at": vector, "kind": spaces.Discrete(4)}),
        }
        box = spaces.Box(-2, 3, (2,), np.float32)
        actions: dict[str, spaces.Space[Any]] = {
            "discrete": spaces.Discrete(3, start=1),
            "many": spaces.MultiDiscrete([3, 2]),
            "box": box,
            "hybrid": spaces.Dict({"action_type": spaces.Discrete(3), "action_args": box}),
        }
        self.observes = observes
        self.observation_space = observations[observes]
        self.action_space = actions[acts]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(4, 10))
        self.goal = 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward an action that is close to the last observation."""
        parts = action.values() if isinstance(action, dict) else [action]
        reward = -sum(float(np.abs(np.asarray(part, np.float64) - self.goal).sum()) for part in parts)
        self.left -= 1
        return self._observe(), reward, self.left == 0, self.left == 1 and self.goal > 1, {}

    def _observe(self) -> Any:
        draw = self.np_random
        self.goal = float(draw.integers(3))
        if self.observes == "image":
            return draw.integers(int(50 + 90 * self.goal), size=(SIDE, SIDE), dtype=np.uint8)
        vector = np.append(draw.uniform(-1, 1, 2), self.goal - 1).astype(np.float32)
        return vector if self.observes == "vector" else {"at": vector, "kind": np.int64(draw.integers(4))}


@dataclass(frozen=True)
class Case:
    """An algorithm, and the conditions under which it is trained.

    Attributes:
        about: Features that only this case covers.
        type: Registered name of the policy.
        policy: Overrides of the config of its family.
        env: Gymnasium id or callable.
        data: Arguments of the datamodule.
        ranks: Processes of the run.
    """

    about: str
    type: str
    policy: Config = field(default_factory=dict)
    env: Any = "CartPole-v1"
    data: Config = field(default_factory=dict)
    ranks: int = 1


REPLAY: Config = {
    "random_collect_size": 32,
    "learn": {"update_per_collect": 2, "batch_size": 16},
    "collect": {"n_sample": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 200}},
}
Q_LEARNING: Config = {"model": {"encoder_hidden_size_list": [32, 16]}, "learn": {"target_update_freq": 7}}
ACTOR_CRITIC: Config = {"model": {"actor_head_hidden_size": 16, "critic_head_hidden_size": 16}}
ROLLOUT: Config = {"model": {"encoder_hidden_size_list": [16]}, "collect": {"n_sample": 32}}
EPISODES: Config = {"model": {"encoder_hidden_size_list": [16]}, "collect": {"n_episode": 3}}
PASSES: Config = {"learn": {"epoch_per_collect": 2, "batch_size": 16}}
EVALUATION: Config = {"eval": {"evaluator": {"n_episode": 2, "max_episode_steps": 40}}}
ROLLOUTS: dict[str, tuple[Config, ...]] = {
    "pg": (EPISODES,),
    "a2c": (ROLLOUT,),
    "pqn": (ROLLOUT, PASSES),
    "ppo": (ROLLOUT, PASSES),
    "ppg": (ROLLOUT, PASSES),
    "trpo": (ROLLOUT, PASSES),
    "recurrent_ppo": (ROLLOUT, PASSES),
    **dict.fromkeys(ROLLOUTS_OF_TEAMS, (ROLLOUT, PASSES)),
}
PRIORITIES: Config = {"priority": True, "priority_IS_weight": True, "other": {"replay_buffer": {"type": "advanced"}}}
TEAM, LINE = "lightning_ding.envs.teams.games.TwoStepGame", "lightning_ding.envs.teams.line.CoverGame"
LINEAR: Config = {"type": "linear", "end": 0.1}


def family(kind: str) -> tuple[Config, ...]:
    """Return the configs that all cases of an algorithm start from."""
    if kind in ROLLOUTS:
        return ROLLOUTS[kind]
    if kind in ("bc", "impala", "acer", "ppo_offpolicy", "ppg_offpolicy"):  # take no random actions
        own = {name: section for name, section in REPLAY.items() if name != "random_collect_size"}
        return own, ACTOR_CRITIC if kind == "acer" else {"model": {"encoder_hidden_size_list": [16]}}
    if kind == "dreamerv3":
        return {name: section for name, section in REPLAY.items() if name != "random_collect_size"}, {}
    if kind == "tdmpc2":
        return REPLAY, {"model": {"encoder": 8, "hidden": 8, "latent": 8, "simplex": 4}}
    if kind in ("maddpg", "masac", "iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn"):
        return REPLAY, {"model": {"encoder_hidden_size_list": [16]}}
    return REPLAY, Q_LEARNING if issubclass(get_policy_cls({"type": kind}), QLearningPolicy) else ACTOR_CRITIC


def demonstrations(is_pendulum: bool = False) -> dict[str, Any]:
    """Return five episodes of the spaces of CartPole or Pendulum with random numbers."""
    rng, steps = np.random.default_rng(0), 40
    obs, next_obs = (rng.normal(size=(steps, 3 if is_pendulum else 4)).astype(np.float32) for _ in range(2))
    ends = np.arange(1, steps + 1) % 8 == 0
    found = {"obs": obs, "action": rng.integers(2, size=steps), "reward": np.ones(steps, np.float32)}
    if is_pendulum:
        found["action"] = rng.uniform(-2, 2, size=(steps, 1)).astype(np.float32)
    return {**found, "next_obs": next_obs, "terminated": ends, "truncated": np.zeros(steps, bool)}


def with_frames(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Stack the last three images."""
    return gym.wrappers.FrameStackObservation(env, 3)


CASES: dict[str, Case] = {
    "dqn": Case(
        "3 steps, norm_obs, norm_reward, learning-rate schedule, clipped norm, adamw",
        "dqn",
        {"nstep": 3, "learn": {"lr_scheduler": LINEAR, "grad_clip_norm": 0.5, "optimizer": {"type": "adamw"}}},
        data={"norm_obs": True, "norm_reward": True, "num_envs": 3},
    ),
    "dqn_images": Case(
        "stacked frames stored once, prioritised, clipped entries, rmsprop",
        "dqn",
        {
            **PRIORITIES,
            "other": {"replay_buffer": {"type": "advanced", "frame_stack": 3, "anneal_unit": "env_step"}},
            "model": {"encoder_hidden_size_list": None, "encoder_kwargs": {"channels": [4, 4], "feature_size": 8}},
            "learn": {"grad_clip_value": 0.1, "optimizer": {"type": "rmsprop"}},
        },
        partial(ToyEnv, "image"),
        {"wrappers": (with_frames,)},
    ),
    "dqn_dict": Case(
        "dict observations, multi-discrete actions, soft target updates",
        "dqn",
        {"learn": {"target_update_freq": None, "target_theta": 0.1, "loss": "mse"}},
        partial(ToyEnv, "dict", "many"),
    ),
    "dqn_compiled": Case("compiled updates", "dqn", {"compile": True}),
    "dqn_ranks": Case("two ranks, prioritised, norm_obs", "dqn", PRIORITIES, data={"norm_obs": True}, ranks=2),
    "c51": Case("2 steps, time limits", "c51", {"nstep": 2, "model": {"v_min": -20}}, "MountainCar-v0"),
    "qrdqn": Case("prioritised, env processes", "qrdqn", PRIORITIES, "Acrobot-v1", {"mode": "async"}),
    "rainbow": Case("prioritised, noisy layers", "rainbow"),
    "mdqn": Case("3 steps", "mdqn", {"nstep": 3}),
    "sql": Case("multi-discrete actions", "sql", {}, partial(ToyEnv, acts="many")),
    "sqn": Case("a learned temperature", "sqn", {"learn": {"target_update_freq": None}}),
    "bdq": Case("multi-discrete actions", "bdq", {}, partial(ToyEnv, acts="many")),
    "sqil": Case("demonstrations", "sqil", data={"demonstrations": demonstrations()}),
    "dqfd": Case(
        "demonstrations, pretraining",
        "dqfd",
        {"learn": {"per_train_iter_k": 3}},
        data={"demonstrations": demonstrations()},
    ),
    "iqn": Case("prioritised, random levels", "iqn", PRIORITIES),
    "fqf": Case("two optimizers", "fqf", {"learn": {"learning_rate_fraction": 1e-3, "ent_coef": 0.1}}),
    "discrete_sac": Case("norm_obs", "discrete_sac", data={"norm_obs": True}),
    "ddpg": Case(
        "noise that drifts, norm_obs", "ddpg", {"collect": {"noise_type": "ou"}}, "Pendulum-v1", {"norm_obs": True}
    ),
    "ddpg_hybrid": Case(
        "hybrid actions, faults drop episodes",
        "ddpg",
        {"collect": {"collector": {"env_fault": "drop"}}},
        partial(ToyEnv, acts="hybrid"),
    ),
    "d4pg": Case("a distribution of returns", "d4pg", {"model": {"v_min": -100.0}}, "Pendulum-v1"),
    "td3": Case("prioritised, 3 steps", "td3", {**PRIORITIES, "nstep": 3}, "Pendulum-v1"),
    "sac": Case(
        "dict observations, one encoder",
        "sac",
        {"model": {"encoder_hidden_size_list": [16], "share_encoder": True}},
        partial(ToyEnv, "dict", "box"),
    ),
    "tqc": Case("prioritised, several critics", "tqc", {**PRIORITIES, "model": {"ensemble_num": 3}}, "Pendulum-v1"),
    "droq": Case(
        "dropout, normalised critics",
        "redq",
        {
            "model": {"ensemble_num": 2, "critic_dropout": 0.1, "critic_layer_norm": True},
            "learn": {"actor_update_freq": 1},
        },
        "Pendulum-v1",
    ),
    "mbpo": Case(
        "a model of the env",
        "mbpo",
        {
            "dynamics": {"ensemble_num": 3, "elite_num": 2, "hidden_size_list": [8], "fit_freq": 16, "max_epochs": 3},
            "rollout": {"batch_size": 20, "length": [[0, 2]]},
        },
        "Pendulum-v1",
    ),
    "tdmpc2": Case(
        "plans in a latent model",
        "tdmpc2",
        {"plan": {"iterations": 2, "num_samples": 16, "num_elites": 4, "num_policy_samples": 4}},
        "Pendulum-v1",
    ),
    "crossq": Case("batch renormalisation", "crossq", {"learn": {"actor_update_freq": 1}}, "Pendulum-v1", ranks=2),
    "xqc": Case(
        "unit weights, a reset", "xqc", {"model": {"n_atom": 11}, "learn": {"reset_freq": 9}}, "Pendulum-v1", ranks=2
    ),
    "bro": Case(
        "two actors, a reset",
        "bro",
        {"model": {"num_quantiles": 7}, "learn": {"reset_at": [9]}},
        "Pendulum-v1",
        ranks=2,
    ),
    "td7": Case(
        "embeddings, prioritised",
        "td7",
        {"model": {"embedding_size": 8}, "learn": {"target_update_freq": 4}},
        "Pendulum-v1",
        ranks=2,
    ),
    "simba": Case(
        "layers of SimBa and SimBa v2",
        "sac",
        {"model": {"last_layer_init": None, "actor_layers": {"type": "simba_v2"}, "critic_layers": {"type": "simba"}}},
        "Pendulum-v1",
    ),
    "sac_ranks": Case("two ranks, norm_reward", "sac", {}, "Pendulum-v1", {"norm_reward": True}, ranks=2),
    "td3_bc": Case("delayed actor, norm_obs", "td3_bc", {}, "Pendulum-v1", {"norm_obs": True}),
    "iql": Case("a value network, prioritised", "iql", PRIORITIES, "Pendulum-v1"),
    "awac": Case("several sampled actions", "awac", {"learn": {"num_actions": 2}}, "Pendulum-v1"),
    "cql": Case("a learned factor", "cql", {"learn": {"num_actions": 2, "with_lagrange": True}}, "Pendulum-v1"),
    "calql": Case("a bound of the values", "calql", {"learn": {"num_actions": 2}}, "Pendulum-v1"),
    "bcq": Case("an auto-encoder of actions", "bcq", {"model": {"vae_hidden_size_list": [16]}}, "Pendulum-v1"),
    "pdqn": Case("arguments of choices, in turns", "pdqn", {"learn": {"turn": 2}}, partial(ToyEnv, acts="hybrid")),
    "edac": Case("critics whose gradients differ", "edac", {"model": {"ensemble_num": 3}}, "Pendulum-v1"),
    "rlpd": Case(
        "half of a minibatch from a data set",
        "rlpd",
        {"model": {"ensemble_num": 2}, "learn": {"actor_update_freq": 1}},
        "Pendulum-v1",
        {"demonstrations": demonstrations(is_pendulum=True)},
    ),
    "discrete_cql": Case("a conservative term", "discrete_cql"),
    "r2d2": Case(
        "sequences, a burn-in, an LSTM",
        "r2d2",
        {"burnin_step": 2, "learn_unroll_len": 4, "learn": {"target_theta": None}},
    ),
    "r2d3": Case(
        "sequences of demonstrations, a share rounded at random",
        "r2d3",
        {"burnin_step": 2, "learn_unroll_len": 4, "learn": {"target_theta": None, "per_train_iter_k": 3}},
        data={"demonstrations": demonstrations(), "demonstration_share": 0.1},
    ),
    "ngu": Case(
        "episodic and lifelong novelty",
        "ngu",
        {"burnin_step": 2, "learn_unroll_len": 4, "num_neighbours": 3, "learn": {"target_theta": None}},
        data={"wrappers": ["previous_step"]},
    ),
    "dreamerv3": Case(
        "a world model of continuous actions",
        "dreamerv3",
        {
            **{"learn_unroll_len": 4, "horizon": 2},
            "model": {"deter": 16, "hidden": 8, "units": 8, "groups": 3, "blocks": 2},
        },
        "Pendulum-v1",
    ),
    "recurrent_ppo": Case("sequences, a GRU", "recurrent_ppo", {"model": {"core": {"type": "gru"}}}),
    "mappo": Case("a team", "mappo", env=TEAM),
    "iql_ma": Case("a team of independent agents", "iql_ma", env=TEAM),
    "vdn": Case("a sum of a team's values", "vdn", {"model": {"parameter_sharing": False}}, TEAM),
    "qmix": Case("a monotonic mixer", "qmix", env=TEAM),
    "wqmix": Case("a team with a memory and a central value", "wqmix", {"model": {"core": {"type": "gru"}}}, TEAM),
    "qtran": Case("a joint value of a team", "qtran", env=TEAM),
    "madqn": Case("agents that learn from others with more knowledge", "madqn", env=TEAM),
    "ippo": Case("a team without common weights", "ippo", {"model": {"parameter_sharing": False}}, TEAM),
    "recurrent_mappo": Case("a team with a memory", "recurrent_mappo", {"learn_unroll_len": 4}, TEAM),
    "happo": Case("a team whose agents learn in turn", "happo", env=TEAM),
    "coma": Case("a critic of a team's other actions", "coma", env=TEAM),
    "mat": Case("a team whose agents act in turn", "mat", env=TEAM),
    "maddpg": Case("a team with continuous actions", "maddpg", env=LINE),
    "masac": Case("a team with temperatures", "masac", {"learn": {"alpha_per_agent": True}}, TEAM),
    "acer": Case("unrolls, a trust region", "acer", {"unroll_len": 4, "learn": {"target_theta": 0.1}}),
    "impala": Case("unrolls", "impala", {"unroll_len": 4}),
    "ppg": Case("two phases", "ppg", {"learn": {"aux_freq": 2, "aux_train_epoch": 2}}),
    "trpo": Case("steps within a trust region", "trpo", {"learn": {"entropy_weight": 0.01}}),
    "ppg_offpolicy": Case("two phases of replay", "ppg_offpolicy", {"learn": {"aux_freq": 3, "aux_train_epoch": 2}}),
    "ppo_offpolicy": Case("a replay buffer, PopArt", "ppo_offpolicy", {"learn": {"value_norm": "popart"}}),
    "bc": Case("a distribution over actions", "bc", {}, "Pendulum-v1"),
    "pg": Case("whole episodes", "pg", data={"num_envs": 3}),
    "pqn": Case("layer normalisation, dict observations", "pqn", {}, partial(ToyEnv, "dict")),
    "a2c": Case(
        "norm_obs, norm_reward, one encoder, entropy schedule",
        "a2c",
        {"model": {"share_encoder": True}, "learn": {"entropy_weight_scheduler": LINEAR}},
        data={"norm_obs": True, "norm_reward": True},
    ),
    "ppo": Case(
        "continuous actions, clipped values, schedules",
        "ppo",
        {"learn": {"value_clip": 0.5, "target_kl": 0.05, "lr_scheduler": LINEAR, "clip_ratio_scheduler": LINEAR}},
        "Pendulum-v1",
        {"norm_obs": True},
    ),
    "ppo_hybrid": Case("hybrid actions, dict observations", "ppo", {}, partial(ToyEnv, "dict", "hybrid")),
    "ppo_many": Case(
        "multi-discrete actions, env processes", "ppo", {}, partial(ToyEnv, acts="many"), {"mode": "async"}
    ),
    "ppo_ranks": Case(
        "two ranks, whole episodes, norm_reward",
        "ppo",
        {"collect": {"n_sample": None, "n_episode": 2, "collector": {"type": "episode"}}},
        data={"norm_reward": True},
        ranks=2,
    ),
}


def merged(*configs: Mapping[str, Any]) -> Config:
    """Return nested mappings as one; later ones win."""
    result: Config = {}
    for config in configs:
        for key, value in config.items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return result


# ---------------------------------------------------------------------- digests


def digest(value: Any) -> str:
    """Return dtype, shape and SHA-256 of the bytes of a tensor, or a number as it is.

    Example:
        >>> digest(torch.zeros(2))
        'float32[2] af5570f5a1810b7a'
        >>> digest(torch.tensor([0.0, -0.0])) == digest(torch.zeros(2))
        False
        >>> digest(3)
        '3'
    """
    if not isinstance(value, torch.Tensor):
        return repr(value)
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {hashlib.sha256(content).hexdigest()[:16]}"


def digests(name: str, value: Any) -> Digests:
    """Return the digest of each tensor and number in nested mappings and sequences, by its path."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    else:
        return {name: digest(torch.as_tensor(value) if isinstance(value, np.ndarray) else value)}
    return {path: one for key, below in parts for path, one in digests(f"{name}/{key}", below).items()}


class Digester(Callback):
    """Digests weights, optimizers, counters and the last evaluation at the end of a run."""

    def __init__(self) -> None:
        self.found: Digests = {}

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the digests (Lightning hook)."""
        self.found = digests("policy", pl_module.state_dict())
        for number, optimizer in enumerate(trainer.optimizers):
            state = optimizer.state_dict()
            self.found |= digests(f"optimizer {number}", state["state"])
            rates = [group["lr"] for group in state["param_groups"]]
            self.found |= digests(f"optimizer {number}/learning rate", rates)
        progress = pl_module.progress
        counters = {name: getattr(progress, name) for name in ("train_iter", "env_step", "episode")}
        self.found |= digests("progress", counters)


# ---------------------------------------------------------------------- steps of a case


def make_policy(case: Case) -> Any:
    """Return the policy of a case, with weights from torch's global generator."""
    return create_policy({"type": case.type, **merged(EVALUATION, *family(case.type), case.policy)})


def fit(case: Case, folder: Path, ckpt: Path | None) -> Digests:
    """Train to the half, or from a checkpoint to the end, and return the digests of this rank."""
    policy, digester = make_policy(case), Digester()
    datamodule_class = RolloutDataModule if case.type in ON_POLICY else ReplayDataModule
    arguments = {"num_envs": 2, "seed": 3, "max_env_step": 10_000, "rounds_per_epoch": ROUNDS, **case.data}
    flags: dict[str, Any] = {"strategy": "ddp", "devices": case.ranks} if case.ranks > 1 else {}
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[digester],
        default_root_dir=folder,
        enable_checkpointing=ckpt is None,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=HALF if ckpt is None else EPOCHS,
        **flags,
    )
    trainer.fit(policy, datamodule_class(case.env, **arguments), ckpt_path=None if ckpt is None else str(ckpt))
    if not digester.found or policy.progress.train_iter == 0:
        raise RuntimeError("the run ended without training")
    returns = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("eval/")}
    return digester.found | digests("metric", returns)


def train_in_a_loop() -> Digests:
    """Train DQN without a Trainer, and return digests of its weights and of samples of all buffers."""
    envs = make_vector_env("CartPole-v1", num_envs=3, seed=0)
    policy: Any = DQNPolicy(merged(*family("dqn"))).build(envs.single_observation_space, envs.single_action_space)
    policy.seed(0)
    settings: dict[str, Config] = {
        "naive": {},
        "advanced": {},
        "sequence": {"sequence_length": 4, "burn_in": 1},
        "episode": {"sequence_length": 3},
    }
    buffers: dict[str, Any] = {
        name: create_buffer({"type": name, "replay_buffer_size": 300, **more}, seed=0)
        for name, more in settings.items()
    }
    collector: Any = SampleSerialCollector(env=envs, policy=policy.collect_mode)
    for number in range(40):
        collected = collector.collect(16, policy.progress.train_iter, policy_kwargs={"eps": 0.3})
        for name in ("naive", "advanced", "sequence"):
            buffers[name].push(collected, 16 * number)
        policy.learn_mode.forward(buffers["naive"].sample(16, n_step=3, discount_factor=0.9))
    episodes: Any = EpisodeSerialCollector(env=envs, policy=policy.collect_mode)
    buffers["episode"].push(episodes.collect(6, policy.progress.train_iter, policy_kwargs={"eps": 0.3}), 640)
    samples = {name: buffer.sample(5, cur_learner_iter=policy.progress.train_iter) for name, buffer in buffers.items()}
    return digests("policy", policy.state_dict()) | digests("sample", samples)


def train_players() -> Digests:
    """Train DQN at a game that it plays against itself, and return digests of its weights and its results."""
    from pettingzoo.classic import tictactoe_v3

    games = [PettingZooVectorEnv(tictactoe_v3.raw_env, 3, rotate_seats=True, seed=seed) for seed in range(3)]
    policy: Any = DQNPolicy(merged(*family("dqn")))
    policy.build(games[0].single_observation_space, games[0].single_action_space)
    policy.seed(0)
    buffer: Any = create_buffer({"type": "naive", "replay_buffer_size": 300}, seed=0)
    players = (policy.collect_mode, policy.collect_mode)
    samples: Any = BattleSampleSerialCollector(env=games[0], policy=players)
    episodes: Any = BattleEpisodeSerialCollector(env=games[1], policy=players)
    for train_iter in range(20):
        collected, _ = samples.collect(8, train_iter, policy_kwargs={"eps": 0.3})
        for transitions in filter(None, collected):
            buffer.push(transitions)
        policy.learn_mode.forward(buffer.sample(8))
    whole, _ = episodes.collect(4, 20, policy_kwargs={"eps": 0.3})
    judges = (policy.eval_mode, policy.eval_mode)
    evaluator = BattleInteractionSerialEvaluator({"n_episode": 4}, env=games[2], policy=judges)
    returns = [float(value) for value in evaluator.eval()[1]["eval_episode_return"]]
    return digests("policy", policy.state_dict()) | digests("episode", whole) | digests("return", returns)


WITHOUT_TRAINER: dict[str, tuple[str, Callable[[], Digests]]] = {
    "loop": ("no Trainer, all kinds of buffers", train_in_a_loop),
    "players": ("no Trainer, a game of two players", train_players),
}


def take(name: str, step: str, out: Path, checkpoints: Path) -> Digests:
    """Take one step of a case on this rank, and return the digests.

    Args:
        name: Key of ``CASES`` or ``WITHOUT_TRAINER``.
        step: One of ``STEPS``.
        out: Folder of this run.
        checkpoints: ``out`` of the run whose checkpoints are read.
    """
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0 if step == "start" else 99)
    if name in WITHOUT_TRAINER:
        return WITHOUT_TRAINER[name][1]()
    case, ckpt = CASES[name], checkpoints / name / "start" / "checkpoints" / "last.ckpt"
    if step == "load":
        loaded = type(make_policy(case)).load_from_checkpoint(ckpt, weights_only=True)
        return digests("policy", loaded.state_dict())
    return fit(case, out / name / step, None if step == "start" else ckpt)


# ---------------------------------------------------------------------- processes


def check_tree(tree: Path) -> None:
    """Check that all of the package was imported from a tree.

    Raises:
        RuntimeError: If a module comes from elsewhere.
    """
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] != lightning_ding.__name__ or file is None:
            continue
        if not Path(file).resolve().is_relative_to(tree.resolve()):
            raise RuntimeError(f"{name} must be imported from {tree}, got {file}")


def fork(work: Callable[[], None], environment: Mapping[str, str]) -> int:
    """Do some work in a forked process, and return its id; it exits with 1 if the work raises."""
    process = os.fork()
    if process:
        return process
    os.environ.update(environment)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(name: str, step: str, out: Path, checkpoints: Path, tree: Path) -> None:
    """Take one step of a case, in one process for each rank, and write the digests."""

    def work(rank: int) -> None:
        found = take(name, step, out, checkpoints)
        check_tree(tree)
        (out / name / f"{step}_{rank}.json").write_text(json.dumps(found))

    (out / name).mkdir(parents=True, exist_ok=True)
    ranks = CASES[name].ranks if name in CASES and step != "load" else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "NODE_RANK": "0"}
    start = time.monotonic()
    print(f"== {name}, {step}", flush=True)
    processes = [
        fork(partial(work, rank), {**shared, "LOCAL_RANK": str(rank)} if ranks > 1 else {}) for rank in range(ranks)
    ]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    print(f"exit codes {codes} after {time.monotonic() - start:.1f} s", flush=True)


def main() -> None:
    """Take steps of cases, each in a forked process; what fails leaves no file and keeps no other case from running."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="source tree that must have been imported")
    parser.add_argument("--out", type=Path, required=True, help="folder for digests and checkpoints")
    parser.add_argument("--checkpoints", type=Path, help="continue from the checkpoints of this run, and start none")
    abouts = {name: case.about for name, case in CASES.items()}
    abouts |= {name: about for name, (about, _) in WITHOUT_TRAINER.items()}
    parser.add_argument("--cases", nargs="+", choices=abouts, default=list(abouts), help="run only these")
    options = parser.parse_args()
    check_tree(options.tree)
    (options.out / "cases.json").write_text(json.dumps({name: abouts[name] for name in options.cases}))
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    starts = options.checkpoints is None
    for name in options.cases:
        for step in STEPS:
            if starts if step == "start" else name in CASES:
                run(name, step, options.out, options.checkpoints or options.out, options.tree)


if __name__ == "__main__":
    main()
