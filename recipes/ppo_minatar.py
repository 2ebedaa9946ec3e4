"""PPO on MinAtar's Breakout (extra minatar): learns to keep the ball in play and to break bricks, a point each.

    python recipes/ppo_minatar.py            # seed 0
    python recipes/ppo_minatar.py --seed 1

Trains for 1,000,000 env steps and evaluates the policy at the end on 20 separate episodes. The network is that of Young
and Tian 2019 (https://arxiv.org/abs/1903.03176); sticky actions are on, as they recommend.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy

ENV_ID = "lightning_ding.envs.MinAtarEnv"
ENV_KWARGS = {"game": "breakout"}
NUM_ENVS = 16
MAX_ENV_STEP = 1_000_000
CONFIG = {
    "model": {"encoder_kwargs": {"channels": [16], "feature_size": 128}},
    "learn": {
        "epoch_per_collect": 4,
        "batch_size": 256,
        "learning_rate": 3e-3,
        "entropy_weight": 0.01,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 2048, "gae_lambda": 0.95},
    "eval": {"evaluator": {"eval_freq": 640, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    kwargs = {"env_kwargs": ENV_KWARGS, "max_env_step": options.max_env_step}
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = PPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ppo_minatar"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
