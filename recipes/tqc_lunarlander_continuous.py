"""TQC on the continuous LunarLander-v3 (extra box2d): learns to land, which means a return of 200.

    python recipes/tqc_lunarlander_continuous.py            # seed 0
    python recipes/tqc_lunarlander_continuous.py --seed 1

Trains for 200,000 env steps and evaluates the policy at the end on 20 separate episodes. The settings are those of RL
Baselines3 Zoo, except for the length of the run, minibatches of 128 and two layers of 128 units; one update for each
env step, in rounds of four.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import TQCPolicy

ENV_ID = "LunarLanderContinuous-v3"
NUM_ENVS = 4
MAX_ENV_STEP = 200_000
CONFIG = {
    "compile": "auto",
    "random_collect_size": 10_000,
    "model": {"actor_head_hidden_size": 128, "critic_head_hidden_size": 128, "ensemble_num": 2},
    "learn": {
        "update_per_collect": 4,
        "batch_size": 128,
        **dict.fromkeys(("learning_rate_q", "learning_rate_policy", "learning_rate_alpha"), 7.3e-4),
        "lr_scheduler": {"type": "linear"},
        "target_theta": 0.01,
    },
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 10_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = TQCPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="tqc_lunarlander_continuous"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
