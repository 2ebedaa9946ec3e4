"""Never Give Up in a corridor that random actions do not get through: finds the reward at its end.

    python recipes/ngu.py            # seed 0
    python recipes/ngu.py --seed 1

Ends as soon as 20 greedy episodes reach the end, and evaluates the policy at the end on 20 others.
A corridor of 16 cells winds through a square, so random actions hardly ever reach its end.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import NGUPolicy

ENV_ID = "lightning_ding.envs.corridor.CorridorEnv"
ENV_KWARGS = {"size": 4}
WRAPPERS = ["previous_step"]
NUM_ENVS = 8
MAX_ENV_STEP = 20_000
CONFIG = {
    "nstep": 5,
    "burnin_step": 0,
    "learn_unroll_len": 32,
    "discount_factor": 0.93,
    "discount_factor_last": 0.9,
    "beta": 0.02,
    "num_neighbours": 3,
    "model": {"num_policies": 2, "encoder_hidden_size_list": [64], "core": {"hidden_size": 32}},
    "learn": {"update_per_collect": 6, "batch_size": 32, "learning_rate": 1e-3, "target_theta": 0.05},
    "eval": {"evaluator": {"eval_freq": 100, "n_episode": 20, "stop_value": 1.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    run = {"seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, env_kwargs=ENV_KWARGS, wrappers=WRAPPERS, num_envs=NUM_ENVS, **run)
    policy = NGUPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ngu_corridor"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
