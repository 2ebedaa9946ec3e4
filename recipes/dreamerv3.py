"""DreamerV3 on CartPole-v1: learns in a world model to hold the pole.

    python recipes/dreamerv3.py            # seed 0
    python recipes/dreamerv3.py --seed 1

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
The networks are smaller than the smallest of the paper, sequences have 16 steps, and the step size is larger, because
there are only thousands of updates. The angle at which the pole falls is 0.2 rad, so the squared error of predicted
observations hardly counts. With the paper's weights of the divergences the model does not see that an episode ends.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DreamerV3Policy

ENV_ID = "CartPole-v1"
NUM_ENVS = 1
MAX_ENV_STEP = 20_000
CONFIG = {
    "learn_unroll_len": 16,
    "imagine_last": 8,
    "model": {"deter": 128, "hidden": 64, "units": 64, "groups": 8, "classes": 8, "blocks": 4},
    "learn": {"train_ratio": 64, "batch_size": 32, "learning_rate": 1e-3, "warmup": 100}
    | {"dynamics_weight": 0.1, "representation_weight": 0.02},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"eval_freq": 100, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = DreamerV3Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dreamerv3_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
