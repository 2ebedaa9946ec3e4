"""Speed of PPO on workload W2: this project through ``Trainer.fit``, a bare loop, Stable-Baselines3, SBX.

    python -m benchmarks.ppo      # writes docs/results/ppo_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Envs, networks,
rollouts, minibatches and losses are the same, except that the value losses are scaled and clipped in slightly different
ways. This project and the bare loop have a fused Adam; Stable-Baselines3 runs once with its default Adam, which is not
fused, and once with a fused one. The seconds of the compiled contestant exclude compilation, whose seconds the JSON
file lists separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import bare_ppo, contest, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W2, PPOWorkload


def run_ours(w: PPOWorkload, default_logging: bool = False, compile: bool = False) -> Result:
    """Train through ``Trainer.fit``; with ``default_logging``, logger and progress bar are on."""
    return contest.fit(*make_ours(w, compile), default_logging)


def make_ours(w: PPOWorkload, compile: bool = False, mode: Any = "sync", seed: int = 0) -> tuple[Any, Any]:
    """Return the policy and the datamodule of this project."""
    from lightning import seed_everything

    from lightning_ding.datamodules import RolloutDataModule
    from lightning_ding.policy import PPOPolicy

    seed_everything(seed)
    loss = {"clip_ratio": w.clip_ratio, "value_clip": w.clip_ratio, "value_weight": w.value_weight, "value_norm": False}
    optimizer = {"learning_rate": w.learning_rate, "optimizer": {"eps": w.adam_epsilon}, "grad_clip_norm": w.grad_norm}
    config = {
        "compile": compile,
        "discount_factor": w.gamma,
        "recompute_adv": False,
        "model": {"encoder_hidden_size_list": w.hidden, "activation": "tanh", "share_encoder": False},
        "learn": {
            "epoch_per_collect": w.epochs,
            "batch_size": w.batch_size,
            "lr_scheduler": {"type": "linear"},
            "entropy_weight": w.entropy_weight,
            **loss,
            **optimizer,
        },
        "collect": {"n_sample": w.rollout, "gae_lambda": w.gae_lambda},
    }
    policy = PPOPolicy(config)
    datamodule = RolloutDataModule(w.env_id, num_envs=w.num_envs, mode=mode, max_env_step=w.env_steps, seed=seed)
    return policy, datamodule


def run_sb3(w: PPOWorkload, fused: bool = False) -> Result:
    """Train with Stable-Baselines3 as it comes, or with the fused Adam."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO(
        "MlpPolicy",
        make_vec_env(w.env_id, w.num_envs, seed=0),
        learning_rate=lambda left: left * w.learning_rate,
        n_steps=w.num_steps,
        batch_size=w.batch_size,
        n_epochs=w.epochs,
        gamma=w.gamma,
        gae_lambda=w.gae_lambda,
        clip_range=w.clip_ratio,
        clip_range_vf=w.clip_ratio,
        ent_coef=w.entropy_weight,
        vf_coef=w.value_weight,
        max_grad_norm=w.grad_norm,
        policy_kwargs={"net_arch": list(w.hidden), "optimizer_kwargs": {"fused": fused or None, "eps": w.adam_epsilon}},
        device="cpu",
        seed=0,
    )
    start = time.perf_counter()
    model.learn(w.env_steps)
    seconds = time.perf_counter() - start
    updates = model._n_updates * w.rollout // w.batch_size  # SB3 counts passes over the rollout
    return {"seconds": seconds, "env_steps": model.num_timesteps, "updates": updates}


CONTESTANTS: dict[str, Callable[[PPOWorkload], Result]] = {
    "bare loop": bare_ppo.run,
    "ours": run_ours,
    "ours, logging": lambda w: run_ours(w, default_logging=True),
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SB3": run_sb3,
    "SB3, fused": lambda w: run_sb3(w, fused=True),
    "SBX": sbx_models.run_ppo,
}

if __name__ == "__main__":
    contest.main("ppo", __doc__, CONTESTANTS, W2)
