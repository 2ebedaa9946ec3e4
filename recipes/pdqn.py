"""P-DQN on Pendulum-v1, whose actions have no choice: learns to swing the pendulum up and to hold it there.

    python recipes/pdqn.py            # seed 0
    python recipes/pdqn.py --seed 1

Trains for 20,000 env steps and evaluates the policy at the end on 20 separate episodes.
docs/results/learning.md has the returns of several seeds, and their curves.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import PDQNPolicy

ENV_ID = "Pendulum-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 20_000
CONFIG = {
    "random_collect_size": 1000,
    "model": {"actor_head_hidden_size": 128, "critic_head_hidden_size": 128},
    "learn": {"update_per_collect": 8, "batch_size": 128, "learning_rate_actor": 0.001, "learning_rate_critic": 0.001},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"eval_freq": 1000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = PDQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="pdqn_pendulum"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
