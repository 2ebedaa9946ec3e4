"""TRPO on CartPole-v1: learns to hold the pole for all 500 steps.

    python recipes/trpo.py            # seed 0
    python recipes/trpo.py --seed 1

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
docs/results/learning.md has the returns of several seeds, and their curves.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import TRPOPolicy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "discount_factor": 0.98,
    "model": {"encoder_hidden_size_list": [64, 64], "activation": "tanh"},
    "learn": {"epoch_per_collect": 4, "batch_size": 128, "learning_rate": 0.002},
    "collect": {"n_sample": 1024},
    "eval": {"evaluator": {"eval_freq": 165, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = TRPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="trpo_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
