"""Hyper-parameters of RL Baselines3 Zoo, and training Stable-Baselines3 and its contrib package with them.

Values are those of https://github.com/DLR-RM/rl-baselines3-zoo/tree/master/hyperparams; ``lin_x`` falls linearly to 0.
Entries of the zoo that normalise observations (A2C on Pendulum and Acrobot, PPO on Acrobot) are left out. CrossQ has no
entry for Pendulum; it gets SAC's.
"""

from __future__ import annotations

import copy
import importlib
import time
from typing import Any

from benchmarks.proofs import Run

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
    "sac": {"Pendulum-v1": {"learning_rate": 1e-3}},
    "td3": {"Pendulum-v1": DETERMINISTIC},
    "ddpg": {"Pendulum-v1": DETERMINISTIC},
    "qrdqn": {"CartPole-v1": CARTPOLE_Q_LEARNER},
    "tqc": {"Pendulum-v1": {"learning_rate": 1e-3}},
    "crossq": {"Pendulum-v1": {"learning_rate": 1e-3}},
}


def has(algorithm: str, env_id: str) -> bool:
    """Return whether the zoo has values for an algorithm on an env."""
    return env_id in ZOO.get(algorithm, {})


def train(algorithm: str, env_id: str, budget: int, eval_every: int, n_episode: int, seed: int) -> Run:
    """Train with Stable-Baselines3, and return its curve and the score of its best policy.

    Args:
        algorithm: A key of ``ZOO``.
        env_id: A key below it.
        budget: Env steps.
        eval_every: Env steps between two evaluations.
        n_episode: Greedy episodes of an evaluation.
        seed: Seed of the policy, the envs and the replay.
    """
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    model = _make(algorithm, env_id, seed)
    eval_env = make_vec_env(env_id, n_episode, seed=10_000 + seed)  # one episode in each
    curve: list[tuple[int, float, float]] = []
    best: dict[str, Any] = {"score": -float("inf")}

    class Curve(BaseCallback):  # type: ignore[misc, unused-ignore]  # Any where it is not installed
        """Evaluates at regular env steps, with the clock standing still."""

        def _on_training_start(self) -> None:
            self.seconds, self.began, self.due = 0.0, time.perf_counter(), eval_every

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.due:
                self.due += eval_every
                self.evaluate()
            return True

        def _on_training_end(self) -> None:
            if not curve or curve[-1][0] < self.num_timesteps:
                self.evaluate()

        def evaluate(self) -> None:
            self.seconds += time.perf_counter() - self.began
            score = float(evaluate_policy(model, eval_env, n_episode, deterministic=True)[0])  # type: ignore[arg-type, unused-ignore]
            curve.append((self.num_timesteps, self.seconds, score))
            if score > best["score"]:
                best.update(score=score, weights=copy.deepcopy(model.policy.state_dict()))
            self.began = time.perf_counter()

    model.learn(budget, Curve())
    model.policy.load_state_dict(best["weights"])
    test_env = make_vec_env(env_id, n_episode, seed=20_000 + seed)
    final = float(evaluate_policy(model, test_env, n_episode, deterministic=True)[0])  # type: ignore[arg-type, unused-ignore]
    return {"seed": seed, "seconds": curve[-1][1], "final": final, "curve": curve}


def _make(algorithm: str, env_id: str, seed: int) -> Any:
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    options = copy.deepcopy(ZOO[algorithm][env_id])
    env = make_vec_env(env_id, options.pop("n_envs", 1), seed=seed)
    for name, value in options.items():
        if isinstance(value, str) and value.startswith("lin_"):
            options[name] = _falling(float(value.removeprefix("lin_")))
    if algorithm != "a2c":  # which has RMSprop; the fused Adam gives the same numbers, faster, as this project's does
        eps = 1e-5 if algorithm == "ppo" else 1e-8
        fused = {"optimizer_kwargs": {"fused": True, "eps": eps}}
        options["policy_kwargs"] = {**options.get("policy_kwargs", {}), **fused}
    if "noise_std" in options:
        (width,) = env.action_space.shape or (0,)
        options["action_noise"] = NormalActionNoise(np.zeros(width), np.full(width, options.pop("noise_std")))
    package, name = (
        ("sb3_contrib", CONTRIB[algorithm]) if algorithm in CONTRIB else ("stable_baselines3", algorithm.upper())
    )
    model_class = getattr(importlib.import_module(package), name)
    return model_class("MlpPolicy", env, **options, device="cpu", seed=seed)


def _falling(start: float) -> Any:
    return lambda left: left * start
