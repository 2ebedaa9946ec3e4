"""SAC on BipedalWalker-v3 (extra box2d): learns to walk to the end of the track, which means a return of 300.

    python recipes/sac_bipedalwalker.py            # seed 0
    python recipes/sac_bipedalwalker.py --seed 1

Trains for 500,000 env steps and evaluates the policy at the end on 20 separate episodes. The settings are those of RL
Baselines3 Zoo, but without state-dependent exploration, and with two layers of 256 units.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import SACPolicy

ENV_ID = "BipedalWalker-v3"
NUM_ENVS = 4
MAX_ENV_STEP = 500_000
CONFIG = {
    "compile": "auto",
    "random_collect_size": 10_000,
    "discount_factor": 0.98,
    "learn": {
        "update_per_collect": 64,
        **dict.fromkeys(("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"), 7.3e-4),
        "target_theta": 0.02,
    },
    "collect": {"n_sample": 64},
    "other": {"replay_buffer": {"replay_buffer_size": 300_000}},
    "eval": {"evaluator": {"eval_freq": 20_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = SACPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="sac_bipedalwalker"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
