"""Tianshou as a peer of the offline benchmarks, with the settings of Tianshou's examples: ``pip install tianshou``.

Values are those of https://github.com/thu-ml/tianshou/tree/v2.0.1: ``test/offline/test_td3_bc.py`` and ``test_cql.py``
on Pendulum-v1, ``test/offline/test_discrete_cql.py`` on CartPole-v1, and ``examples/offline/d4rl_il.py``, on other
envs, for behaviour cloning. The number of updates is that of our recipe. Continuous actions of the data are scaled to
[-1, 1], as the actions of the data sets of those examples are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tianshou_side import adam, greedy_return, make_envs

SETTINGS: dict[str, dict[str, Any]] = {
    "td3_bc": {
        "hidden_sizes": [64, 64],
        "learning_rate": 1e-3,
        "batch_size": 64,
        "algorithm": {
            "tau": 0.005,
            "gamma": 0.99,
            "policy_noise": 0.2,
            "update_actor_freq": 2,
            "noise_clip": 0.5,
            "alpha": 2.5,
            "n_step_return_horizon": 3,
        },
    },
    "cql": {
        "hidden_sizes": [64, 64],
        "learning_rate": 1e-3,
        "batch_size": 64,
        "algorithm": {
            "cql_alpha_lr": 1e-3,
            "cql_weight": 1.0,
            "tau": 0.005,
            "gamma": 0.99,
            "temperature": 1.0,
            "with_lagrange": True,
            "lagrange_threshold": 10.0,
        },
    },
    "bc": {"hidden_sizes": [256, 256], "learning_rate": 1e-4, "batch_size": 256, "algorithm": {}},
    "discrete_cql": {
        "hidden_sizes": [64],
        "learning_rate": 3e-3,
        "batch_size": 32,
        "algorithm": {
            "gamma": 0.99,
            "num_quantiles": 200,
            "n_step_return_horizon": 3,
            "target_update_freq": 500,
            "min_q_weight": 10.0,
        },
    },
}
"""Settings by algorithm; ``algorithm`` holds arguments of Tianshou's class."""
PARALLEL_EPISODES = 10


def train(name: str, file: Path, env_id: str, updates: int, n_episode: int, seed: int) -> dict[str, Any]:
    """Train with Tianshou's offline trainer, and return seconds of training and the mean return of the final policy.

    Args:
        name: A key of ``SETTINGS``.
        file: Data set, an ``.npz`` file of this project.
        env_id: Env of the evaluation.
        updates: Number of updates.
        n_episode: Greedy episodes of the evaluation.
        seed: Seed of the networks and of the minibatches.
    """
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from tianshou.trainer import OfflineTrainerParams

    given = SETTINGS[name]
    np.random.seed(seed)  # Tianshou's buffer draws from it
    torch.manual_seed(seed)
    envs = make_envs(env_id, PARALLEL_EPISODES, 20_000 + seed)
    space = envs.action_space[0]
    with np.load(file) as loaded:
        replay = buffer(dict(loaded), space)
    learner = BUILDERS[name](given, envs.observation_space[0].shape, space)
    options = {"max_epochs": 1, "epoch_num_steps": updates, "batch_size": given["batch_size"]}
    start = time.perf_counter()
    learner.run_training(OfflineTrainerParams(buffer=replay, verbose=False, show_progress=False, **options))
    seconds = time.perf_counter() - start
    return {"seed": seed, "seconds": seconds, "return": greedy_return(learner.policy, envs, n_episode)}


def buffer(columns: dict[str, Any], space: Any) -> Any:
    """Return Tianshou's buffer with transitions in chronological order, continuous actions scaled to [-1, 1].

    Args:
        columns: Arrays ``obs``, ``action``, ``reward``, ``next_obs``, ``terminated`` and ``truncated``.
        space: Action space of the env.
    """
    from tianshou.data import ReplayBuffer

    action = columns["action"]
    if hasattr(space, "low"):
        action = 2 * (action - space.low) / (space.high - space.low) - 1
    terminated, truncated = columns["terminated"].astype(bool), columns["truncated"].astype(bool)
    return ReplayBuffer.from_data(
        obs=columns["obs"],
        act=action,
        rew=columns["reward"],
        terminated=terminated,
        truncated=truncated,
        done=terminated | truncated,
        obs_next=columns["next_obs"],
    )


def _body(given: dict[str, Any], shape: Any, **options: Any) -> Any:
    from tianshou.utils.net.common import Net

    return Net(state_shape=shape, hidden_sizes=given["hidden_sizes"], **options)


def _critics(given: dict[str, Any], shape: Any, space: Any) -> dict[str, Any]:
    """Return the arguments with two critics and the factories of their optimizers."""
    from tianshou.utils.net.continuous import ContinuousCritic

    critics = [
        ContinuousCritic(preprocess_net=_body(given, shape, action_shape=space.shape, concat=True)) for _ in range(2)
    ]
    optim = adam(given["learning_rate"])
    return {"critic": critics[0], "critic_optim": optim, "critic2": critics[1], "critic2_optim": optim}


def _td3_bc(given: dict[str, Any], shape: Any, space: Any) -> Any:
    from tianshou.algorithm.imitation.td3_bc import TD3BC
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy

    policy = ContinuousDeterministicPolicy(actor=_deterministic_actor(given, shape, space), action_space=space)
    optim, critics = adam(given["learning_rate"]), _critics(given, shape, space)
    return TD3BC(policy=policy, policy_optim=optim, **critics, **given["algorithm"])


def _bc(given: dict[str, Any], shape: Any, space: Any) -> Any:
    from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning

    actor = _deterministic_actor(given, shape, space)
    policy = ImitationPolicy(actor=actor, action_space=space, action_scaling=True, action_bound_method="clip")
    return OfflineImitationLearning(policy=policy, optim=adam(given["learning_rate"]))


def _deterministic_actor(given: dict[str, Any], shape: Any, space: Any) -> Any:
    from tianshou.utils.net.continuous import ContinuousActorDeterministic

    body = _body(given, shape)
    return ContinuousActorDeterministic(preprocess_net=body, action_shape=space.shape, max_action=1.0)


def _cql(given: dict[str, Any], shape: Any, space: Any) -> Any:
    from tianshou.algorithm.imitation.cql import CQL
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic

    rate = given["learning_rate"]
    body = _body(given, shape, action_shape=space.shape)
    actor = ContinuousActorProbabilistic(
        preprocess_net=body, action_shape=space.shape, unbounded=True, conditioned_sigma=True
    )
    alpha = AutoAlpha(-float(np.prod(space.shape)), 0.0, adam(rate))
    policy, critics = SACPolicy(actor=actor, action_space=space), _critics(given, shape, space)
    bounds = {"min_action": -1.0, "max_action": 1.0}
    return CQL(policy=policy, policy_optim=adam(rate), alpha=alpha, **critics, **bounds, **given["algorithm"])


def _discrete_cql(given: dict[str, Any], shape: Any, space: Any) -> Any:
    from tianshou.algorithm.imitation.discrete_cql import DiscreteCQL
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy

    network = _body(given, shape, action_shape=space.n, softmax=False, num_atoms=given["algorithm"]["num_quantiles"])
    policy = QRDQNPolicy(model=network, action_space=space)
    return DiscreteCQL(policy=policy, optim=adam(given["learning_rate"]), **given["algorithm"])


BUILDERS: dict[str, Callable[[dict[str, Any], Any, Any], Any]] = {
    "td3_bc": _td3_bc,
    "cql": _cql,
    "bc": _bc,
    "discrete_cql": _discrete_cql,
}
"""Functions that build Tianshou's algorithm from settings, the shape of observations and the action space."""
