"""SQN on CartPole-v1, where the best return is 500.

    python recipes/sqn.py            # seed 0
    python recipes/sqn.py --seed 1

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import SQNPolicy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 50_000
CONFIG = {
    "nstep": 3,
    "learn": {"update_per_collect": 16, "batch_size": 128, "learning_rate": 1e-3, "target_theta": 0.02},
    "collect": {"n_sample": 64},
    "other": {"replay_buffer": {"replay_buffer_size": 50_000}},
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
    policy = SQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="sqn_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
