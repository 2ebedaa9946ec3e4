"""Tianshou as a peer of the learning benchmarks, with the settings of Tianshou's examples: ``pip install tianshou``.

Values are those of https://github.com/thu-ml/tianshou/tree/v2.0.1/test: ``discrete/test_iqn.py``, ``test_fqf.py``,
``test_discrete_sac.py`` and ``test_c51.py`` on CartPole-v1, which they train until a return of 195 or less, and
``continuous/test_redq.py`` on Pendulum-v1, until -250. Policies are greedy in evaluations, also where an example
explores there. Adam is fused, which gives the same numbers faster, as in this project and in ``benchmarks/zoo.py``.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.proofs import Plan, Run, start_seeds

QUANTILES = {
    "num_envs": 10,
    "warm_up": 640,
    "buffer_size": 20_000,
    "collect_steps": 10,
    "update_per_step": 0.1,
    "batch_size": 64,
    "hidden_sizes": [64, 64, 64],
    "learning_rate": 3e-3,
    "eps": [[10_000, 0.1], [50_000, 0.01]],
    "algorithm": {"gamma": 0.9, "n_step_return_horizon": 3, "target_update_freq": 320},
}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "iqn": {"CartPole-v1": {**QUANTILES, "num_cosines": 64, "samples": 32, "online_samples": 8, "target_samples": 8}},
    "fqf": {
        "CartPole-v1": {
            **QUANTILES,
            "num_cosines": 64,
            "fraction_learning_rate": 2.5e-9,
            "algorithm": {**QUANTILES["algorithm"], "num_fractions": 32, "ent_coef": 10.0},  # type: ignore[dict-item]
        }
    },
    "c51": {
        "CartPole-v1": {
            **QUANTILES,
            "collect_steps": 8,
            "num_envs": 8,
            "warm_up": 512,
            "update_per_step": 0.125,
            "hidden_sizes": [128, 128, 128, 128],
            "learning_rate": 1e-3,
            "num_atoms": 51,
            "v_min": -10.0,
            "v_max": 10.0,
        }
    },
    "discrete_sac": {
        "CartPole-v1": {
            "num_envs": 10,
            "warm_up": 0,
            "buffer_size": 20_000,
            "collect_steps": 10,
            "update_per_step": 0.1,
            "batch_size": 64,
            "hidden_sizes": [64, 64],
            "actor_learning_rate": 1e-4,
            "critic_learning_rate": 1e-3,
            "algorithm": {"gamma": 0.95, "tau": 0.005, "alpha": 0.05, "n_step_return_horizon": 3},
        }
    },
    "redq": {
        "Pendulum-v1": {
            "num_envs": 8,
            "warm_up": 1000,
            "random_warm_up": True,
            "buffer_size": 20_000,
            "collect_steps": 8,  # the example has 1, and its 8 envs make a step each
            "update_per_step": 3,
            "batch_size": 64,
            "hidden_sizes": [64, 64],
            "actor_learning_rate": 1e-4,
            "critic_learning_rate": 1e-3,
            "algorithm": {
                "ensemble_size": 4,
                "subset_size": 2,
                "gamma": 0.99,
                "tau": 0.005,
                "alpha": 0.2,
                "actor_delay": 3,
                "target_mode": "min",
            },
        }
    },
}
"""Settings by algorithm and env; ``warm_up`` counts env steps before the first update, ``eps`` has points over env
steps after it, and ``algorithm`` holds arguments of Tianshou's class."""


def has(algorithm: str, env_id: str) -> bool:
    """Return whether there are settings for an algorithm on an env."""
    return env_id in SETTINGS.get(algorithm, {})


def settings(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the settings of an algorithm on an env."""
    return SETTINGS[algorithm][env_id]


def train(algorithm: str, env_id: str, plan: Plan, seed: int) -> Run:
    """Train with Tianshou's trainer, and return the curve and the score of the best policy.

    Args:
        algorithm: A key of ``SETTINGS``.
        env_id: A key below it.
        plan: Length of the run, the warm-up included, and its evaluations.
        seed: Seed of the networks, the envs and the replay.
    """
    os.environ["TQDM_DISABLE"] = "1"  # Tianshou shows a progress bar of each update otherwise
    import torch
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.torch_utils import policy_within_training_step

    given = settings(algorithm, env_id)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = make_envs(env_id, given["num_envs"], seed)
    learner = BUILDERS[algorithm](given, envs)
    replay = VectorReplayBuffer(given["buffer_size"], given["num_envs"])
    collector: Any = Collector(learner, envs, replay, exploration_noise=True)
    curve = Curve(learner.policy, env_id, plan, seed)
    collector.reset()
    warm_up = min(given["warm_up"], plan.budget)
    if warm_up:
        with policy_within_training_step(learner.policy):
            collector.collect(n_step=warm_up, random=given.get("random_warm_up", False))

    def before_step(epoch: int, env_step: int) -> None:
        """Evaluate if it is time, and set epsilon."""
        curve.reach(warm_up + env_step)
        if "eps" in given:
            steps, values = zip(*given["eps"], strict=True)
            learner.policy.set_eps_training(float(np.interp(env_step, steps, values)))

    learner.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=plan.budget - warm_up,
            collection_step_num_env_steps=given["collect_steps"],
            batch_size=given["batch_size"],
            update_step_num_gradient_steps_per_sample=given["update_per_step"],
            training_fn=before_step,
            verbose=False,
            show_progress=False,
        )
    )
    return curve.finish(max(plan.budget, collector.collect_step))


class Curve:
    """Evaluates a policy at regular env steps, while the clock of training stands still, and keeps the best weights.

    Args:
        policy: A policy of Tianshou.
        env_id: Env of the evaluations.
        plan: Length of the run and its evaluations.
        seed: Seed of the run.
    """

    def __init__(self, policy: Any, env_id: str, plan: Plan, seed: int) -> None:
        self.policy, self.env_id, self.plan, self.seed = policy, env_id, plan, seed
        self.envs = make_envs(env_id, plan.n_episode, start_seeds("eval", seed))
        self.points: list[tuple[int, float, float]] = []
        self.due, self.best, self.weights = plan.eval_every, -float("inf"), copy.deepcopy(policy.state_dict())
        self.seconds, self.began = 0.0, time.perf_counter()

    def reach(self, env_step: int) -> None:
        """Evaluate if the next evaluation is due after so many env steps."""
        if env_step >= self.due:
            self.due += self.plan.eval_every * (1 + (env_step - self.due) // self.plan.eval_every)
            self.evaluate(env_step)

    def evaluate(self, env_step: int) -> None:
        """Add a point to the curve."""
        self.seconds += time.perf_counter() - self.began
        score = greedy_return(self.policy, self.envs, self.plan.n_episode)
        self.points.append((env_step, self.seconds, score))
        if score > self.best:
            self.best, self.weights = score, copy.deepcopy(self.policy.state_dict())
        self.began = time.perf_counter()

    def finish(self, env_step: int) -> Run:
        """Evaluate at the end, test the best policy on other episodes, and return the run."""
        if not self.points or self.points[-1][0] < env_step:
            self.evaluate(env_step)
        self.policy.load_state_dict(self.weights)
        n_test, seconds = self.plan.n_test, self.points[-1][1]
        test_envs = make_envs(self.env_id, n_test, start_seeds("test", self.seed))
        best = greedy_return(self.policy, test_envs, n_test)
        return {"seed": self.seed, "seconds": seconds, "best": best, "n_test": n_test, "curve": self.points}


def greedy_return(policy: Any, envs: Any, n_episode: int) -> float:
    """Return the mean return of greedy episodes, one of each env or more."""
    from tianshou.data import Collector
    from tianshou.utils.torch_utils import policy_within_training_step

    with policy_within_training_step(policy, enabled=False):
        found = Collector(policy, envs).collect(n_episode=n_episode, reset_before_collect=True)
    return float(found.returns.mean())


def make_envs(env_id: str, number: int, seed: int) -> Any:
    """Return Tianshou's vector env in this process."""
    import gymnasium as gym
    from tianshou.env import DummyVectorEnv

    envs = DummyVectorEnv([lambda: gym.make(env_id) for _ in range(number)])
    envs.seed(seed)
    return envs


def adam(learning_rate: float) -> Any:
    """Return a factory of the fused Adam."""
    import torch
    from tianshou.algorithm.optim import TorchOptimizerFactory

    return TorchOptimizerFactory(torch.optim.Adam, lr=learning_rate, fused=True)


def _body(given: dict[str, Any], envs: Any, **options: Any) -> Any:
    from tianshou.utils.net.common import Net

    return Net(state_shape=envs.observation_space[0].shape, **{"hidden_sizes": given["hidden_sizes"], **options})


def _features(given: dict[str, Any], envs: Any) -> Any:
    """Return the layers before the quantile network; the last of ``hidden_sizes`` is the number of features."""
    *hidden, features = given["hidden_sizes"]
    return _body(given, envs, hidden_sizes=hidden, action_shape=features)


def _iqn(given: dict[str, Any], envs: Any) -> Any:
    from tianshou.algorithm.modelfree.iqn import IQN, IQNPolicy
    from tianshou.utils.net.discrete import ImplicitQuantileNetwork

    network = ImplicitQuantileNetwork(
        preprocess_net=_features(given, envs),
        action_shape=envs.action_space[0].n,
        num_cosines=given["num_cosines"],
    )
    policy = IQNPolicy(
        model=network,
        action_space=envs.action_space[0],
        sample_size=given["samples"],
        online_sample_size=given["online_samples"],
        target_sample_size=given["target_samples"],
        eps_training=0.1,
    )
    return IQN(policy=policy, optim=adam(given["learning_rate"]), **given["algorithm"])


def _fqf(given: dict[str, Any], envs: Any) -> Any:
    from tianshou.algorithm.modelfree.fqf import FQF, FQFPolicy
    from tianshou.algorithm.optim import RMSpropOptimizerFactory
    from tianshou.utils.net.discrete import FractionProposalNetwork, FullQuantileFunction

    network = FullQuantileFunction(
        preprocess_net=_features(given, envs),
        action_shape=envs.action_space[0].n,
        hidden_sizes=given["hidden_sizes"],
        num_cosines=given["num_cosines"],
    )
    fractions = FractionProposalNetwork(given["algorithm"]["num_fractions"], network.input_dim)
    policy = FQFPolicy(
        model=network,
        fraction_model=fractions,
        action_space=envs.action_space[0],
        eps_training=0.1,
    )
    fraction_optim = RMSpropOptimizerFactory(lr=given["fraction_learning_rate"])
    optim = adam(given["learning_rate"])
    return FQF(policy=policy, optim=optim, fraction_optim=fraction_optim, **given["algorithm"])


def _c51(given: dict[str, Any], envs: Any) -> Any:
    from tianshou.algorithm.modelfree.c51 import C51, C51Policy

    actions, atoms = envs.action_space[0].n, given["num_atoms"]
    policy = C51Policy(
        model=_body(given, envs, action_shape=actions, softmax=True, num_atoms=atoms),
        action_space=envs.action_space[0],
        num_atoms=atoms,
        v_min=given["v_min"],
        v_max=given["v_max"],
        eps_training=0.1,
    )
    return C51(policy=policy, optim=adam(given["learning_rate"]), **given["algorithm"])


def _discrete_sac(given: dict[str, Any], envs: Any) -> Any:
    from tianshou.algorithm.modelfree.discrete_sac import DiscreteSAC, DiscreteSACPolicy
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    actions = envs.action_space[0].n
    actor = DiscreteActor(preprocess_net=_body(given, envs), action_shape=actions, softmax_output=False)
    critics = [DiscreteCritic(preprocess_net=_body(given, envs), last_size=actions) for _ in range(2)]
    optim = adam(given["critic_learning_rate"])
    return DiscreteSAC(
        policy=DiscreteSACPolicy(actor=actor, action_space=envs.action_space[0]),
        policy_optim=adam(given["actor_learning_rate"]),
        critic=critics[0],
        critic_optim=optim,
        critic2=critics[1],
        critic2_optim=optim,
        **given["algorithm"],
    )


def _redq(given: dict[str, Any], envs: Any) -> Any:
    from tianshou.algorithm.modelfree.redq import REDQ, REDQPolicy
    from tianshou.utils.net.common import EnsembleLinear
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    size, actions = given["algorithm"]["ensemble_size"], envs.action_space[0].shape

    def linear(width_in: int, width_out: int) -> Any:
        return EnsembleLinear(size, width_in, width_out)

    actor = ContinuousActorProbabilistic(
        preprocess_net=_body(given, envs), action_shape=actions, unbounded=True, conditioned_sigma=True
    )
    body = _body(given, envs, action_shape=actions, concat=True, linear_layer=linear)
    critic = ContinuousCritic(preprocess_net=body, linear_layer=linear, flatten_input=False)
    return REDQ(
        policy=REDQPolicy(actor=actor, action_space=envs.action_space[0]),
        policy_optim=adam(given["actor_learning_rate"]),
        critic=critic,
        critic_optim=adam(given["critic_learning_rate"]),
        **given["algorithm"],
    )


BUILDERS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "iqn": _iqn,
    "fqf": _fqf,
    "c51": _c51,
    "discrete_sac": _discrete_sac,
    "redq": _redq,
}
"""Functions that build Tianshou's algorithm from settings and envs."""
