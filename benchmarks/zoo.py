"""Hyper-parameters of RL Baselines3 Zoo, and training Stable-Baselines3 and its contrib package with them.

Values are those of https://github.com/DLR-RM/rl-baselines3-zoo/tree/master/hyperparams; ``lin_x`` falls linearly to 0.
Entries of the zoo for A2C on Pendulum and Acrobot and for PPO on Acrobot are left out. Those of CartPole without
velocities are for the zoo's env of that kind, and normalise observations and rewards. Those of Hopper-v5,
HalfCheetah-v5 and Walker2d-v5 are the zoo's for the versions v4; those of PPO are in ``zoo_mujoco.py``. MiniGrid and
Atari need wrappers that are not here.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable
from typing import Any

from benchmarks import zoo_mujoco
from benchmarks.proofs import Plan, Run, start_seeds

WIDE = {"net_arch": [256, 256]}
Q_LEARNER = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": WIDE,
}
DETERMINISTIC = {
    "learning_rate": 1e-3,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "gamma": 0.98,
    "noise_std": 0.1,
    "train_freq": 1,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": [400, 300]},
}
RUNNERS = ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5")
MUJOCO_TD3 = {
    "learning_rate": 1e-3,
    "batch_size": 256,
    "learning_starts": 10_000,
    "noise_std": 0.1,
    "train_freq": 1,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": [400, 300]},
}
CONTINUOUS_LANDER = {
    "learning_rate": "lin_0.00073",
    "batch_size": 256,
    "buffer_size": 1_000_000,
    "learning_starts": 10_000,
    "ent_coef": "auto",
    "gamma": 0.99,
    "tau": 0.01,
    "train_freq": 1,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": [400, 300]},
}
WALKER = {
    "learning_rate": 7.3e-4,
    "batch_size": 256,
    "buffer_size": 300_000,
    "learning_starts": 10_000,
    "ent_coef": "auto",
    "gamma": 0.98,
    "tau": 0.02,
    "train_freq": 64,
    "gradient_steps": 64,
    "use_sde": True,
    "policy_kwargs": {"log_std_init": -3, "net_arch": [400, 300]},
}
CONTINUOUS_CAR = {
    "batch_size": 512,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "ent_coef": 0.1,
    "gamma": 0.9999,
    "tau": 0.01,
    "train_freq": 32,
    "gradient_steps": 32,
    "use_sde": True,
    "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
}
CARTPOLE_Q_LEARNER = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": WIDE,
}
CONTRIB = {"qrdqn": "QRDQN", "tqc": "TQC", "crossq": "CrossQ", "recurrent_ppo": "RecurrentPPO"}
"""Classes of sb3_contrib."""
ADAM: dict[str, dict[str, Any]] = {
    "ppo": {"eps": 1e-5},
    "recurrent_ppo": {"eps": 1e-5},
    "crossq": {"betas": (0.5, 0.999)},
    "qrdqn": {"eps": 0.01 / CARTPOLE_Q_LEARNER["batch_size"]},  # type: ignore[operator]
}
"""Adam options of the packages' optimizers, which the packages drop if ``optimizer_kwargs`` are passed."""
ZOO: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        "Pendulum-v1": {
            "n_envs": 4,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        "LunarLander-v3": {
            "n_envs": 16,
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
        **zoo_mujoco.PPO,
    },
    "a2c": {
        "CartPole-v1": {"n_envs": 8, "ent_coef": 0.0},
        "LunarLander-v3": {
            "n_envs": 8,
            "gamma": 0.995,
            "n_steps": 5,
            "learning_rate": "lin_0.00083",
            "ent_coef": 1e-5,
        },
    },
    "dqn": {
        "CartPole-v1": CARTPOLE_Q_LEARNER,
        "Acrobot-v1": Q_LEARNER,
        "LunarLander-v3": Q_LEARNER,
    },
    "sac": {
        "Pendulum-v1": {"learning_rate": 1e-3},
        "LunarLanderContinuous-v3": CONTINUOUS_LANDER,
        "BipedalWalker-v3": WALKER,
        "MountainCarContinuous-v0": CONTINUOUS_CAR,
        **{env_id: {"learning_starts": 10_000} for env_id in RUNNERS},
    },
    "td3": {"Pendulum-v1": DETERMINISTIC, **dict.fromkeys(RUNNERS, MUJOCO_TD3)},
    "ddpg": {"Pendulum-v1": DETERMINISTIC},
    "qrdqn": {"CartPole-v1": CARTPOLE_Q_LEARNER | {"policy_kwargs": {**WIDE, "n_quantiles": 10}}},
    "tqc": {
        "Pendulum-v1": {"learning_rate": 1e-3},
        "LunarLanderContinuous-v3": CONTINUOUS_LANDER,
        **{env_id: {"learning_starts": 10_000} for env_id in RUNNERS},
    },
    "crossq": {"Pendulum-v1": {"policy_delay": 2, "policy_kwargs": WIDE}},
    "recurrent_ppo": {
        "lightning_ding.envs.partly_observed:CartPoleNoVelocity-v1": {
            "policy": "MlpLstmPolicy",
            "normalize": True,
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
            "policy_kwargs": {
                "ortho_init": False,
                "activation_fn": "ReLU",
                "lstm_hidden_size": 64,
                "enable_critic_lstm": True,
                "net_arch": {"pi": [64], "vf": [64]},
            },
        },
    },
}


def has(algorithm: str, env_id: str) -> bool:
    """Return whether the zoo has values for an algorithm on an env."""
    return env_id in ZOO.get(algorithm, {})


def settings(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the zoo's values for an algorithm on an env."""
    return ZOO[algorithm][env_id]


def train(algorithm: str, env_id: str, plan: Plan, seed: int) -> Run:
    """Train with Stable-Baselines3, and return its curve and the score of its best policy.

    Args:
        algorithm: A key of ``ZOO``.
        env_id: A key below it.
        plan: Length of the run and its evaluations.
        seed: Seed of the policy, the envs and the replay.
    """

    def copy_weights(policy: Any) -> Any:
        return copy.deepcopy(policy.state_dict())

    def load_weights(policy: Any, weights: Any) -> None:
        policy.load_state_dict(weights)

    model = _make(algorithm, env_id, seed)
    return run(model, env_id, plan, seed, copy_weights, load_weights)


def run(
    model: Any,
    env_id: str,
    plan: Plan,
    seed: int,
    copy_weights: Callable[[Any], Any],
    load_weights: Callable[[Any, Any], None],
) -> Run:
    """Train a model with the interface of Stable-Baselines3, and return its curve and the score of its best policy.

    Args:
        model: The model, with its envs.
        env_id: Env of the evaluations.
        plan: Length of the run and its evaluations.
        seed: Seed of the run.
        copy_weights: Function that returns a copy of the weights of a policy.
        load_weights: Function that gives a policy such weights.
    """
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    eval_env = make_vec_env(env_id, plan.n_episode, seed=start_seeds("eval", seed))  # one episode in each
    curve: list[tuple[int, float, float]] = []
    best: dict[str, Any] = {"score": -float("inf")}

    def score_on(env: Any, normaliser: Any) -> float:
        env = _as_in_training(env, normaliser)
        return float(evaluate_policy(model, env, env.num_envs, deterministic=True)[0])  # type: ignore[arg-type, unused-ignore]

    class Curve(BaseCallback):  # type: ignore[misc, unused-ignore]  # Any where it is not installed
        """Evaluates at regular env steps, with the clock standing still."""

        def _on_training_start(self) -> None:
            self.seconds, self.began, self.due = 0.0, time.perf_counter(), plan.eval_every

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.due:
                self.due += plan.eval_every
                self.evaluate()
            return True

        def _on_training_end(self) -> None:
            if not curve or curve[-1][0] < self.num_timesteps:
                self.evaluate()

        def evaluate(self) -> None:
            self.seconds += time.perf_counter() - self.began
            normaliser = copy.deepcopy(getattr(model.get_env(), "obs_rms", None))
            score = score_on(eval_env, normaliser)
            curve.append((self.num_timesteps, self.seconds, score))
            if score > best["score"]:
                best.update(score=score, weights=copy_weights(model.policy), normaliser=normaliser)
            self.began = time.perf_counter()

    model.learn(plan.budget, Curve())
    load_weights(model.policy, best["weights"])
    test_env = make_vec_env(env_id, plan.n_test, seed=start_seeds("test", seed))
    score = score_on(test_env, best["normaliser"])
    return {"seed": seed, "seconds": curve[-1][1], "best": score, "n_test": plan.n_test, "curve": curve}


def _as_in_training(env: Any, normaliser: Any) -> Any:
    """Return an env whose observations are normalised by moments from training, or the env itself with None."""
    from stable_baselines3.common.vec_env import VecNormalize

    if normaliser is None:
        return env
    env = VecNormalize(env, training=False, norm_reward=False)
    env.obs_rms = normaliser
    return env


def arguments(algorithm: str, env_id: str, seed: int) -> dict[str, Any]:
    """Return the arguments of a model of Stable-Baselines3 or SBX: the zoo's values, the envs and the seed."""
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    options = copy.deepcopy(ZOO[algorithm][env_id])
    env = make_vec_env(env_id, options.pop("n_envs", 1), seed=seed)
    for name, value in options.items():
        if isinstance(value, str) and value.startswith("lin_"):
            options[name] = _falling(float(value.removeprefix("lin_")))
    if options.pop("normalize", False):
        env = VecNormalize(env, gamma=options.get("gamma", 0.99))
    if "noise_std" in options:
        (width,) = env.action_space.shape or (0,)
        options["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, options.pop("noise_std")))
    return {"policy": "MlpPolicy", **options, "env": env, "seed": seed}


def _make(algorithm: str, env_id: str, seed: int) -> Any:
    from torch import nn
    from torch.optim import Adam

    options = arguments(algorithm, env_id, seed)
    network = options.setdefault("policy_kwargs", {})
    if "activation_fn" in network:
        network["activation_fn"] = getattr(nn, network["activation_fn"])
    if algorithm != "a2c":  # which has RMSprop; the fused Adam gives the same numbers, faster, as this project's does
        network |= {"optimizer_class": Adam, "optimizer_kwargs": {"fused": True, **ADAM.get(algorithm, {})}}
    package, name = (
        ("sb3_contrib", CONTRIB[algorithm]) if algorithm in CONTRIB else ("stable_baselines3", algorithm.upper())
    )
    return getattr(importlib.import_module(package), name)(**options, device="cpu")


def _falling(start: float) -> Any:
    return lambda left: left * start
