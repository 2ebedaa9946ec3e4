"""TD-MPC2 on Pendulum-v1: plans in a learned model to swing the pendulum up and to hold it there.

    python recipes/tdmpc2.py            # seed 0
    python recipes/tdmpc2.py --seed 1

Trains for 8,000 env steps and evaluates the policy at the end on 20 separate episodes. The networks are far smaller
than the smallest of the authors, there are fewer candidate plans, and the step size is larger, because there are only
thousands of updates.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import TDMPC2Policy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 4
MAX_ENV_STEP = 8_000
CONFIG = {
    "discount_factor": 0.975,
    "random_collect_size": 800,
    "model": {"encoder": 64, "hidden": 64, "latent": 32, "ensemble_num": 2, "predicts_end": False},
    "plan": {"iterations": 3, "num_samples": 64, "num_elites": 12, "num_policy_samples": 6},
    "learn": {"update_per_collect": 4, "batch_size": 64, "learning_rate": 0.001},
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 7_200, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = TDMPC2Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="tdmpc2_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
