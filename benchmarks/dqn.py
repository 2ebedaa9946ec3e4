"""Speed of DQN on workload W1: this project through ``Trainer.fit``, a bare loop, Stable-Baselines3, SBX.

    python -m benchmarks.dqn      # writes docs/results/dqn_speed.json

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Envs, network,
optimizer, batch size, target and buffer are the same. This project and the bare loop use double Q-learning; Stable-
Baselines3 has none and so computes one forward pass less per update. The seconds of the compiled contestant exclude
compilation, whose seconds the JSON file lists separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import bare_dqn, contest, sbx_models
from benchmarks.compare import Result
from benchmarks.workload import W1, DQNWorkload


def our_config(w: DQNWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy."""
    learn = {"update_per_collect": w.updates_per_round, "batch_size": w.batch_size, "learning_rate": w.learning_rate}
    return {
        "compile": compile,
        "discount_factor": w.gamma,
        "nstep": 1,
        "random_collect_size": w.warm_up,
        "model": {"encoder_hidden_size_list": w.hidden, "dueling": False},
        "learn": {**learn, "target_update_freq": w.target_update_freq},
        "collect": {"n_sample": w.num_envs},
        "other": {
            "eps": {"type": "linear", "start": w.eps_start, "end": w.eps_end, "decay": w.eps_decay},
            "replay_buffer": {"replay_buffer_size": w.buffer_size},
        },
    }


def run_ours(w: DQNWorkload, default_logging: bool = False, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation; with ``default_logging``, logger and progress bar are on."""
    return contest.fit(*make_ours(w, compile), default_logging)


def make_ours(w: DQNWorkload, compile: bool = False, mode: Any = "sync") -> tuple[Any, Any]:
    """Return the policy and the datamodule of this project."""
    from lightning import seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DQNPolicy

    seed_everything(0)
    policy = DQNPolicy(our_config(w, compile))
    datamodule = ReplayDataModule(w.env_id, num_envs=w.num_envs, mode=mode, max_env_step=w.env_steps, seed=0)
    return policy, datamodule


def run_sb3(w: DQNWorkload) -> Result:
    """Train with Stable-Baselines3."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    model = DQN(
        "MlpPolicy",
        make_vec_env(w.env_id, w.num_envs, seed=0),
        learning_rate=w.learning_rate,
        buffer_size=w.buffer_size,
        learning_starts=w.warm_up,
        batch_size=w.batch_size,
        gamma=w.gamma,
        train_freq=1,
        gradient_steps=w.updates_per_round,
        target_update_interval=w.target_update_freq * w.num_envs // w.updates_per_round,
        exploration_fraction=w.eps_decay / w.env_steps,
        exploration_initial_eps=w.eps_start,
        exploration_final_eps=w.eps_end,
        policy_kwargs={"net_arch": list(w.hidden), "optimizer_kwargs": {"fused": True}},
        device="cpu",
        seed=0,
    )
    start = time.perf_counter()
    model.learn(w.env_steps)
    return {"seconds": time.perf_counter() - start, "env_steps": model.num_timesteps, "updates": model._n_updates}


CONTESTANTS: dict[str, Callable[[DQNWorkload], Result]] = {
    "bare loop": bare_dqn.run,
    "ours": run_ours,
    "ours, logging": lambda w: run_ours(w, default_logging=True),
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SB3": run_sb3,
    "SBX": sbx_models.run_dqn,
}


if __name__ == "__main__":
    contest.main("dqn", __doc__, CONTESTANTS, W1)
