"""R2D2 on CartPole-v1 without velocities: learns to hold the pole with memory.

    python recipes/r2d2.py            # seed 0
    python recipes/r2d2.py --seed 1

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
An observation is the position of the cart and the angle of the pole, so one alone does not say which way it falls.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import R2D2Policy

ENV_ID = "lightning_ding.envs.partly_observed:CartPoleNoVelocity-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 300_000
CONFIG = {
    "nstep": 3,
    "burnin_step": 4,
    "learn_unroll_len": 20,
    "learn": {"update_per_collect": 4, "batch_size": 32, "learning_rate": 1e-3, "target_theta": 0.01},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = R2D2Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="r2d2_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
