"""XQC on Pendulum-v1: learns to swing the pendulum up and to hold it there.

    python recipes/xqc.py --seed 1   # 0 by default

Trains for 8,000 env steps and evaluates the policy at the end on 20 separate episodes. The networks are narrower than
those of the paper, whose critics have four layers of 512 units. gamma is the authors' for episodes of 200 steps.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import XQCPolicy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 8_000
NORM_REWARD = True
CONFIG = {
    "discount_factor": 0.975,
    "random_collect_size": 200,
    "model": {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64, "critic_head_layer_num": 1},
    "learn": {
        "update_per_collect": 8,
        "batch_size": 128,
        "learning_rate_q": 0.001,
        "learning_rate_policy": 0.001,
        "learning_rate_alpha": 0.001,
    },
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    limits = {"num_envs": NUM_ENVS, "seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, **limits, norm_reward=NORM_REWARD)
    policy = XQCPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="xqc_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
