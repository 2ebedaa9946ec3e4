"""TD-MPC2 on walker-walk of the DeepMind Control Suite (extra dm-control): plans in a learned model to walk.

    python recipes/tdmpc2_walker.py            # seed 0
    python recipes/tdmpc2_walker.py --seed 1

Trains for 100,000 env steps, each of two frames, with the settings of the authors: networks of 5 million parameters,
512 candidate plans in 6 iterations, and one update for each step. It takes seconds for each env step on one core
of a CPU, and is meant for a GPU.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import TDMPC2Policy

ENV_ID = "lightning_ding.di_engine.env_makers.make_dm_control"
ENV_KWARGS = {"domain_name": "walker", "task_name": "walk", "frame_skip": 2}
NUM_ENVS = 1
MAX_ENV_STEP = 100_000
CONFIG = {
    "random_collect_size": 2_500,
    "model": {"size": "5m", "predicts_end": False},
    "eval": {"evaluator": {"eval_freq": 20_000, "n_episode": 10}},
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
    policy = TDMPC2Policy(CONFIG)
    trainer = Trainer(accelerator="auto", logger=TensorBoardLogger("runs", name="tdmpc2_walker"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
