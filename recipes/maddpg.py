"""MADDPG on a line: two agents learn to cover both targets; the best return is -1.

    python recipes/maddpg.py            # seed 0
    python recipes/maddpg.py --seed 1

Trains for 3,500 env steps, and evaluates the policy at the end on 20 greedy episodes.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import MADDPGPolicy

ENV_ID = "lightning_ding.envs.teams.line.CoverGame"
NUM_ENVS = 8
MAX_ENV_STEP = 3_500
CONFIG = {
    "random_collect_size": 500,
    "discount_factor": 0.9,
    "model": {"encoder_hidden_size_list": [32, 32]},
    "learn": {
        "update_per_collect": 8,
        "batch_size": 128,
        "target_theta": 0.02,
        "learning_rate_actor": 0.001,
        "learning_rate_critic": 0.003,
    },
    "collect": {"n_sample": 16, "noise_sigma": 0.3},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the minibatches")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = MADDPGPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="maddpg_cover"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
