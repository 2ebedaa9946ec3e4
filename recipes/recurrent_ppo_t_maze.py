"""PPO with a GTrXL on a T-maze of 20 steps: learns to turn at the end to the side that the first observation shows.

    python recipes/recurrent_ppo_t_maze.py            # seed 0
    python recipes/recurrent_ppo_t_maze.py --seed 1

Ends as soon as 20 greedy episodes reach the best return, 1, and evaluates the policy at the end on 20 others.
A policy without memory has a return of 0 at most.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import RecurrentPPOPolicy

ENV_ID = "lightning_ding.envs.t_maze:TMaze-v0"
NUM_ENVS = 8
MAX_ENV_STEP = 200_000
CONFIG = {
    "learn_unroll_len": 32,
    "model": {
        "encoder_hidden_size_list": [32],
        "core": {"type": "gtrxl", "hidden_size": 32, "num_heads": 4, "memory_length": 32},
    },
    "learn": {"batch_size": 256, "learning_rate": 1e-3, "lr_scheduler": {"type": "linear"}},
    "eval": {"evaluator": {"eval_freq": 400, "n_episode": 20, "stop_value": 1.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = RecurrentPPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="recurrent_ppo_t_maze"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
