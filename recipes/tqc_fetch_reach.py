"""TQC with hindsight on FetchReach-v4 (extra robotics): moves a robot's hand to a point that is given.

    python recipes/tqc_fetch_reach.py            # seed 0
    python recipes/tqc_fetch_reach.py --seed 1

A step away from the goal is rewarded with -1, and an episode has 50 steps. Trains for 20,000 env steps and evaluates
the policy at the end on 100 greedy episodes. Discount, learning rates, minibatches and hindsight are those of RL
Baselines3 Zoo for TQC on this env.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import TQCPolicy

ENV_ID = "gymnasium_robotics:FetchReach-v4"
NUM_ENVS = 4
MAX_ENV_STEP = 20_000
CONFIG = {
    "compile": "auto",
    "discount_factor": 0.95,
    "random_collect_size": 1_000,
    "model": {"ensemble_num": 2},
    "learn": {"update_per_collect": 4, "learning_rate_q": 1e-3, "learning_rate_policy": 1e-3},
    "collect": {"n_sample": 4},
    "other": {"replay_buffer": {"type": "her", "her_replay_k": 4, "replay_buffer_size": 100_000}},
    "eval": {"evaluator": {"eval_freq": 1_000, "n_episode": 100}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 100 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, **run)
    policy = TQCPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="tqc_fetch_reach"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 100 greedy episodes: {scores['test/return_mean']:.2f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
