"""DreamerV3 on cartpole-swingup of the DeepMind Control Suite (extra dm-control): swings a pole up and holds it.

    python recipes/dreamerv3_swingup.py            # seed 0
    python recipes/dreamerv3_swingup.py --seed 1

Trains for 50,000 env steps, each of two frames, and evaluates the policy at the end on 20 separate episodes. The
networks are the smallest of the paper, from vectors. The paper trains on 1,024 steps for each of the env with a step
size of 4e-5; here it is 128 steps and 3e-4.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DreamerV3Policy

ENV_ID = "lightning_ding.di_engine.env_makers.make_dm_control"
ENV_KWARGS = {"domain_name": "cartpole", "task_name": "swingup", "frame_skip": 2}
NUM_ENVS = 1
MAX_ENV_STEP = 50_000
CONFIG = {
    "imagine_last": 16,
    "learn": {"train_ratio": 128, "learning_rate": 3e-4, "warmup": 200},
    "collect": {"n_sample": 8},
    "eval": {"evaluator": {"eval_freq": 1_250, "n_episode": 10}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    limits = {"num_envs": NUM_ENVS, "seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, **limits, env_kwargs=ENV_KWARGS)
    policy = DreamerV3Policy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dreamerv3_swingup"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
