"""DQN on Acrobot-v1: learns to swing a two-link arm above a line.

    python recipes/dqn_acrobot.py            # seed 0
    python recipes/dqn_acrobot.py --seed 1

Trains for 100,000 env steps and evaluates the policy at the end on 20 separate episodes. The goal is first found by
chance, so a tenth of the actions stay random. Targets are returns of three steps.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "Acrobot-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
CONFIG = {
    "nstep": 3,
    "model": {"encoder_hidden_size_list": [256, 256]},
    "learn": {"update_per_collect": 32, "batch_size": 128, "learning_rate": 5e-4, "target_update_freq": 250},
    "collect": {"n_sample": 64},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20}},
    "other": {"eps": {"end": 0.1, "decay": 12_000}, "replay_buffer": {"replay_buffer_size": 100_000}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = DQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dqn_acrobot"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
