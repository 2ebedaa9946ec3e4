"""MAPPO on simple_spread: three agents learn to stand on three landmarks without bumping into each other.

    pip install mpe2
    python recipes/mappo_simple_spread.py            # seed 0
    python recipes/mappo_simple_spread.py --seed 1

Evaluates the policy at the end of 100,000 env steps on 20 greedy episodes.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import MAPPOPolicy

ENV_ID = "pettingzoo:mpe2.simple_spread_v3"
NUM_ENVS = 8
MAX_ENV_STEP = 100_000
ENV_KWARGS = {"team_reward": "mean", "individual_rewards": False}
CONFIG = {
    "model": {"encoder_hidden_size_list": [64, 64]},
    "learn": {"epoch_per_collect": 10, "batch_size": 256, "learning_rate": 7e-4, "entropy_weight": 0.01},
    "collect": {"n_sample": 1600},
    "eval": {"evaluator": {"eval_freq": 100, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    kwargs = {"env_kwargs": ENV_KWARGS, "max_env_step": options.max_env_step}
    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = MAPPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="mappo_simple_spread"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
