"""R2D3 on CartPole-v1: R2D2 that learns from 20 episodes of a trained DQN too, a quarter of each minibatch.

    python recipes/dqn.py
    lightning-ding collect runs/dqn_cartpole/version_0/checkpoints/best.ckpt --out demos.npz --episodes 20 --greedy
    python recipes/r2d3.py demos.npz

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import R2D3Policy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 25_000
DEMONSTRATION_SHARE = 0.25
CONFIG = {
    "nstep": 3,
    "burnin_step": 4,
    "learn_unroll_len": 20,
    "learn": {
        **{"update_per_collect": 4, "batch_size": 32, "learning_rate": 1e-3},
        **{"target_theta": 0.01, "per_train_iter_k": 500},
    },
    "eval": {"evaluator": {"eval_freq": 250, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demonstrations", help="path of the data set, or id of one of Minari's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step, "demonstration_share": DEMONSTRATION_SHARE}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, demonstrations=options.demonstrations, **run)
    policy = R2D3Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="r2d3_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
