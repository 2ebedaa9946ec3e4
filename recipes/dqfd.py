"""DQfD on CartPole-v1: learns from 20 episodes of a trained DQN, in half of the env steps of recipes/dqn.py.

    python recipes/dqn.py
    lightning-ding collect runs/dqn_cartpole/version_0/checkpoints/best.ckpt --out demos.npz --episodes 20 --greedy
    python recipes/dqfd.py demos.npz

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQfDPolicy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 25_000
CONFIG = {
    "nstep": 3,
    "learn": {
        "update_per_collect": 16,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "target_update_freq": 100,
        "per_train_iter_k": 1000,
    },
    "collect": {"n_sample": 64},
    "other": {"replay_buffer": {"replay_buffer_size": 50_000}},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", help="path of the data set, or id of one of Minari's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, demonstrations=options.demonstrations, **run)
    policy = DQfDPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dqfd_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
