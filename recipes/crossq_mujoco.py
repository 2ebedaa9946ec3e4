"""CrossQ on HalfCheetah-v5 and other tasks of MuJoCo (extra mujoco): learns to run, hop and walk.

    python recipes/crossq_mujoco.py                          # seed 0
    python recipes/crossq_mujoco.py --env-id Walker2d-v5 --seed 1

Trains for 100,000 env steps and evaluates the policy at the end on 20 separate episodes. The settings are those of
Bhatt et al. 2024 (https://arxiv.org/abs/1902.05605), which are the defaults, but for critics of width 256, not 2,048,
so that two cores suffice; one update for each env step, in rounds of four.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import CrossQPolicy

ENV_ID = "HalfCheetah-v5"
NUM_ENVS = 4
MAX_ENV_STEP = 100_000
CONFIG = {
    "compile": "auto",
    "random_collect_size": 5_000,
    "model": {"critic_head_hidden_size": 256},
    "learn": {"update_per_collect": 4},
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 5_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default=ENV_ID, help="task of MuJoCo with continuous actions")
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(options.env_id, num_envs=NUM_ENVS, **run)
    policy = CrossQPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="crossq_mujoco"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
