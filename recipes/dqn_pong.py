"""DQN on Pong (extra atari): learns to beat the built-in player, 21 points to few.

    python recipes/dqn_pong.py            # seed 0
    python recipes/dqn_pong.py --seed 1

Trains for a million env steps, 4 million frames, and evaluates the policy at the end on 20 complete games. The wrappers
are those of Mnih et al. 2015, without sticky actions; the other settings are those of RL Baselines3 Zoo for Atari,
except for double Q-learning and shorter schedules: 10,000 random steps at the start, and exploration for 100,000 steps.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "lightning_ding.envs.make_atari"
ENV_KWARGS = {"game": "Pong", "repeat_action_probability": 0.0}
EVAL_ENV_KWARGS = {**ENV_KWARGS, "training": False}
NUM_ENVS = 8
MAX_ENV_STEP = 1_000_000
CONFIG = {
    "random_collect_size": 10_000,
    "model": {"dueling": False},
    "learn": {"update_per_collect": 8, "batch_size": 32, "learning_rate": 1e-4, "target_update_freq": 250},
    "collect": {"n_sample": 32},
    "other": {"eps": {"end": 0.01}, "replay_buffer": {"replay_buffer_size": 100_000, "frame_stack": 4}},
    "eval": {"evaluator": {"eval_freq": 12_500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    kwargs = {"env_kwargs": ENV_KWARGS, "eval_env_kwargs": EVAL_ENV_KWARGS, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = DQNPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="dqn_pong"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
