"""DQN on MinAtar's Breakout (extra minatar): learns to keep the ball in play and to break bricks, a point each.

    python recipes/dqn_minatar.py            # seed 0
    python recipes/dqn_minatar.py --seed 1

Trains for 300,000 env steps and evaluates the policy at the end on 20 separate episodes. The network is that of Young
and Tian 2019 (https://arxiv.org/abs/1903.03176); sticky actions are on, as they recommend.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "lightning_ding.envs.MinAtarEnv"
ENV_KWARGS = {"game": "breakout"}
NUM_ENVS = 8
MAX_ENV_STEP = 300_000
CONFIG = {
    "nstep": 3,
    "random_collect_size": 5_000,
    "model": {"encoder_kwargs": {"channels": [16], "feature_size": 128}},
    "learn": {"update_per_collect": 8, "batch_size": 64, "learning_rate": 2.5e-4, "target_update_freq": 250},
    "collect": {"n_sample": 32},
    "other": {"eps": {"end": 0.01, "decay": 100_000}, "replay_buffer": {"replay_buffer_size": 100_000}},
    "eval": {"evaluator": {"eval_freq": 2500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    kwargs = {"env_kwargs": ENV_KWARGS, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = DQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dqn_minatar"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
