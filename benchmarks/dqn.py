"""Speed of DQN on workload W1: this project through ``Trainer.fit``, a bare loop, Stable-Baselines3.

    python -m benchmarks.dqn [--repeats 3] [--out docs/results/dqn_speed.json]

Each contestant runs in a process of its own with one torch thread, in turn, three times. Envs, network, optimizer,
batch size, target and buffer are the same. This project and the bare loop use double Q-learning; Stable-Baselines3 has
none and so computes one forward pass less an update.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import bare_dqn
from benchmarks.compare import Result, in_turn, measure, report
from benchmarks.workload import W1 as W


def run_ours(default_logging: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation; with ``default_logging``, logger and progress bar are on."""
    from lightning import Trainer, seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DQNPolicy

    seed_everything(0)
    learn = {"update_per_collect": W.updates_per_round, "batch_size": W.batch_size, "learning_rate": W.learning_rate}
    config = {
        "discount_factor": W.gamma,
        "random_collect_size": W.warm_up,
        "model": {"encoder_hidden_size_list": W.hidden, "dueling": False},
        "learn": {**learn, "target_update_freq": W.target_update_freq},
        "collect": {"n_sample": W.num_envs},
        "other": {
            "eps": {"type": "linear", "start": W.eps_start, "end": W.eps_end, "decay": W.eps_decay},
            "replay_buffer": {"replay_buffer_size": W.buffer_size},
        },
    }
    policy = DQNPolicy(config)
    datamodule = ReplayDataModule(W.env_id, num_envs=W.num_envs, max_env_step=W.env_steps, seed=0)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            limit_val_batches=0,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=default_logging,
            logger=default_logging,
        )
        start = time.perf_counter()
        trainer.fit(policy, datamodule)
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "env_steps": policy.progress.env_step, "updates": policy.progress.train_iter}


def run_sb3() -> Result:
    """Train with Stable-Baselines3."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    model = DQN(
        "MlpPolicy",
        make_vec_env(W.env_id, W.num_envs, seed=0),
        learning_rate=W.learning_rate,
        buffer_size=W.buffer_size,
        learning_starts=W.warm_up,
        batch_size=W.batch_size,
        gamma=W.gamma,
        train_freq=1,
        gradient_steps=W.updates_per_round,
        target_update_interval=W.target_update_freq * W.num_envs // W.updates_per_round,
        exploration_fraction=W.eps_decay / W.env_steps,
        exploration_initial_eps=W.eps_start,
        exploration_final_eps=W.eps_end,
        policy_kwargs={"net_arch": list(W.hidden), "optimizer_kwargs": {"fused": True}},
        device="cpu",
        seed=0,
    )
    start = time.perf_counter()
    model.learn(W.env_steps)
    return {"seconds": time.perf_counter() - start, "env_steps": model.num_timesteps, "updates": model._n_updates}


CONTESTANTS: dict[str, Callable[[], Result]] = {
    "bare loop": bare_dqn.run,
    "ours": run_ours,
    "ours, logging": lambda: run_ours(default_logging=True),
    "SB3": run_sb3,
}


def main() -> None:
    """Run one contestant, or all in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant in this process and print JSON")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="leave others out")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--out", type=Path, default=Path("docs/results/dqn_speed.json"), help="JSON file")
    options = parser.parse_args()
    if options.run:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        logging.getLogger("lightning").setLevel(logging.ERROR)
        print(json.dumps(measure(CONTESTANTS[options.run])))
    else:
        report(in_turn("benchmarks.dqn", options.only, options.repeats), "bare loop", options.out)


if __name__ == "__main__":
    main()
