"""Speed of SAC on workload W3: this project through ``Trainer.fit``, a bare loop, Stable-Baselines3, SBX.

    python -m benchmarks.sac      # writes docs/results/sac_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, networks, batch
size, target and buffer are the same. This project and the bare loop have a fused Adam; Stable-Baselines3 runs once with
its default Adam, which is not fused, and once with a fused one; it has one learning rate, that of the critics, for the
actor too. The bare loop bounds log sigma as CleanRL does, by a tanh; only this project starts the last layers within
3e-3. The seconds of the compiled contestant exclude compilation, whose seconds the JSON file lists separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import bare_sac, contest, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W3, SACWorkload


def our_config(w: SACWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    width, layers = w.hidden[0], len(w.hidden) - 1  # after the first one
    actor = {"actor_head_hidden_size": width, "actor_head_layer_num": layers}
    critic = {"critic_head_hidden_size": width, "critic_head_layer_num": layers}
    rates = {"learning_rate_q": w.learning_rate, "learning_rate_alpha": w.learning_rate}
    return {
        "compile": compile,
        "discount_factor": w.gamma,
        "random_collect_size": w.warm_up,
        "model": {**actor, **critic},
        "learn": {
            "update_per_collect": 1,
            "batch_size": w.batch_size,
            "learning_rate_policy": w.actor_learning_rate,
            "auto_alpha": True,
            "alpha": 1.0,
            "target_theta": w.tau,
            **rates,
        },
        "collect": {"n_sample": 1},
        "other": {"replay_buffer": {"replay_buffer_size": w.buffer_size}},
    }


def run_ours(w: SACWorkload, default_logging: bool = False, compile: bool = False) -> Result:
    """Train through ``Trainer.fit``; with ``default_logging``, logger and progress bar are on."""
    return contest.fit(*make_ours(w, compile), default_logging)


def make_ours(w: SACWorkload, compile: bool = False) -> tuple[Any, Any]:
    """Return the policy and the datamodule of this project."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import SACPolicy

    seed_everything(0)
    policy = SACPolicy(our_config(w, compile))
    datamodule = ReplayDataModule(w.env_id, num_envs=1, max_env_step=w.env_steps, seed=0)
    return policy, datamodule


def run_sb3(w: SACWorkload, fused: bool = False) -> Result:
    """Train with Stable-Baselines3 as it comes, or with the fused Adam."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    model = SAC(
        "MlpPolicy",
        make_vec_env(w.env_id, 1, seed=0),
        learning_rate=w.learning_rate,
        buffer_size=w.buffer_size,
        learning_starts=w.warm_up,
        batch_size=w.batch_size,
        tau=w.tau,
        gamma=w.gamma,
        policy_kwargs={"net_arch": list(w.hidden), "optimizer_kwargs": {"fused": True} if fused else {}},
        device="cpu",
        seed=0,
    )
    start = time.perf_counter()
    model.learn(w.env_steps)
    return {"seconds": time.perf_counter() - start, "env_steps": model.num_timesteps, "updates": model._n_updates}


CONTESTANTS: dict[str, Callable[[SACWorkload], Result]] = {
    "bare loop": bare_sac.run,
    "ours": run_ours,
    "ours, logging": lambda w: run_ours(w, default_logging=True),
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SB3": run_sb3,
    "SB3, fused": lambda w: run_sb3(w, fused=True),
    "SBX": sbx_models.run_sac,
}

if __name__ == "__main__":
    contest.main("sac", __doc__, CONTESTANTS, W3)
