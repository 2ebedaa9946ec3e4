"""DQN on tic-tac-toe (extra pettingzoo): learns by self-play to beat a random player.

    python recipes/dqn_tictactoe.py            # seed 0
    python recipes/dqn_tictactoe.py --seed 1

It plays against itself, its past versions and a random player, moving first in half of the games. The evaluation is 200
games against a random player; a return is 1 for a win, 0 for a draw and -1 for a loss, and 0.95 is almost perfect.
"""

from __future__ import annotations

import argparse
from typing import Any

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.callbacks import SelfPlay
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

ENV_ID = "pettingzoo:tictactoe_v3"
SELF_PLAY: dict[str, Any] = {"newest_share": 0.3, "past_share": 0.2, "snapshot_interval": 5_000}
NUM_ENVS = 32
MAX_ENV_STEP = 150_000
CONFIG = {
    "discount_factor": 0.95,  # an early win is worth more than a late one
    "model": {"encoder_hidden_size_list": [128, 128], "dueling": False},
    "learn": {"update_per_collect": 16, "target_update_freq": 100, "lr_scheduler": {"type": "linear"}},
    "collect": {"n_sample": 128},
    "other": {"eps": {"end": 0.1, "decay": 20_000}, "replay_buffer": {"replay_buffer_size": 20_000}},
    "eval": {"evaluator": {"eval_freq": 1000, "n_episode": 200}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 200 games."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the games and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = DQNPolicy(CONFIG)
    logger = TensorBoardLogger("runs", name="dqn_tictactoe")
    trainer = Trainer(accelerator="cpu", logger=logger, callbacks=[SelfPlay(**SELF_PLAY)])
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 200 greedy games: {scores['test/return_mean']:.2f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
