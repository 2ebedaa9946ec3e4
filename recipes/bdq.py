"""BDQ on Pendulum-v1 with 11 torques to choose from: learns to swing the pendulum up and to hold it there.

    python recipes/bdq.py            # seed 0
    python recipes/bdq.py --seed 1

Trains for 20,000 env steps and evaluates the policy at the end on 20 separate episodes.
docs/results/learning.md has the returns of several seeds, and their curves.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import BDQPolicy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 20_000
WRAPPERS = [{"discretize_action": {"bins": 11, "multidiscrete": True}}]
CONFIG = {
    "random_collect_size": 1000,
    "model": {"encoder_hidden_size_list": [128, 128]},
    "learn": {"update_per_collect": 16, "batch_size": 128, "learning_rate": 0.001, "target_update_freq": 200},
    "collect": {"n_sample": 32},
    "other": {"eps": {"decay": 5000}},
    "eval": {"evaluator": {"eval_freq": 1000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    kwargs = {"wrappers": WRAPPERS, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = BDQPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="bdq_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
