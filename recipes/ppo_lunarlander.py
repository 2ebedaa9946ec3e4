"""PPO on LunarLander-v3 (extra box2d): learns to land, which means a return of 200.

    python recipes/ppo_lunarlander.py            # seed 0
    python recipes/ppo_lunarlander.py --seed 1

Trains for a million env steps and evaluates the policy at the end on 20 greedy episodes. docs/results/learning.md lists
the return and time of one seed on two CPU cores.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy

ENV_ID = "LunarLander-v3"
NUM_ENVS = 16
MAX_ENV_STEP = 1_000_000
CONFIG = {
    "discount_factor": 0.999,
    "model": {"encoder_hidden_size_list": [64, 64], "share_encoder": False, "activation": "tanh"},
    "learn": {"epoch_per_collect": 4, "batch_size": 64, "learning_rate": 3e-4, "entropy_weight": 0.01},
    "collect": {"n_sample": 16_384, "gae_lambda": 0.98},
    "eval": {"evaluator": {"eval_freq": 400, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = PPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ppo_lunarlander"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
