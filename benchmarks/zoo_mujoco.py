"""Hyper-parameters of RL Baselines3 Zoo for PPO on MuJoCo, of its versions 2 and 3.

Values are those of https://github.com/DLR-RM/rl-baselines3-zoo/blob/00128b5/hyperparams/ppo.yml.
"""

from __future__ import annotations

from typing import Any

NETWORK = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "ReLU",
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}


NAMES = (
    *("batch_size", "gamma", "learning_rate", "ent_coef", "clip_range"),
    *("n_epochs", "gae_lambda", "max_grad_norm", "vf_coef"),
)


def _tuned(*values: float, **more: Any) -> dict[str, Any]:
    return {"normalize": True, "n_steps": 512, **dict(zip(NAMES, values, strict=True)), **more}


PPO: dict[str, dict[str, Any]] = {
    "HalfCheetah-v5": _tuned(64, 0.98, 2.0633e-05, 0.000401762, 0.1, 20, 0.92, 0.8, 0.58096, policy_kwargs=NETWORK),
    "Hopper-v5": _tuned(32, 0.999, 9.80828e-05, 0.00229519, 0.2, 5, 0.99, 0.7, 0.835671, policy_kwargs=NETWORK),
    "Walker2d-v5": _tuned(32, 0.99, 5.05041e-05, 0.000585045, 0.1, 20, 0.95, 1.0, 0.871923),
    "InvertedDoublePendulum-v5": _tuned(512, 0.98, 0.000155454, 1.05057e-06, 0.4, 10, 0.8, 0.5, 0.695929, n_steps=128),
    "Reacher-v5": _tuned(32, 0.9, 0.000104019, 7.52585e-08, 0.3, 5, 1.0, 0.9, 0.950368),
    "Ant-v5": {"normalize": True},
    "Swimmer-v5": {"normalize": True, "gamma": 0.9999},
}
