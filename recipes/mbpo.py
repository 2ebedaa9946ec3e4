"""MBPO on Pendulum-v1: learns to swing the pendulum up in a fifth of the env steps that SAC takes.

    python recipes/mbpo.py --seed 0

Trains for 4,000 env steps and evaluates the policy at the end on 20 separate episodes.
docs/results/learning.md has the returns of several seeds.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import MBPOPolicy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 4
MAX_ENV_STEP = 4_000
CONFIG = {
    "random_collect_size": 400,
    "model": {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64},
    "dynamics": {
        **{"ensemble_num": 5, "elite_num": 3, "hidden_size_list": [100, 100, 100], "batch_size": 64},
        **{"max_epochs_since_update": 15, "max_epochs": 100, "fit_freq": 200},
        "terminated_fn": "lightning_ding.rl.dynamics.never_terminated",
    },
    "rollout": {"batch_size": 10_000, "random_action_share": 0.5},
    "learn": {
        **{"learning_rate_q": 1e-3, "learning_rate_policy": 1e-3, "learning_rate_alpha": 1e-3},
        **{"update_per_collect": 20, "batch_size": 128},
    },
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 10_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = MBPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="mbpo_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
