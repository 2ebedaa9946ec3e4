"""Independent Q-learning with a memory on the switch riddle: three prisoners give a switch a meaning, and read it.

    python recipes/iql_ma_switch_riddle.py            # seed 0
    python recipes/iql_ma_switch_riddle.py --seed 1

Evaluates the policy at the end of 500,000 env steps on 200 greedy episodes. The best return is 20/27, or 0.74, the
probability that all have been in the room by the last day. Teams that never read the switch have 0.53 at most.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import IQLMAPolicy

ENV_ID = "lightning_ding.envs.teams.SwitchRiddle"
NUM_ENVS = 64
MAX_ENV_STEP = 500_000
CONFIG = {
    "discount_factor": 1.0,
    "nstep": 6,  # whole episodes: returns without values of later days
    "learn_unroll_len": 6,
    "random_collect_size": 0,
    "model": {"encoder_hidden_size_list": [64], "core": {"type": "gru", "hidden_size": 64}},
    "learn": {
        "update_per_collect": 8,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "lr_scheduler": {"type": "linear"},
    },
    "collect": {"n_sample": 768},
    "other": {"eps": {"start": 0.1, "end": 0.1}, "replay_buffer": {"replay_buffer_size": 4000}},
    "eval": {"evaluator": {"eval_freq": 128, "n_episode": 200}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 200 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()
    seed_everything(options.seed)
    datamodule = ReplayDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = IQLMAPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="iql_ma_switch_riddle"))
    trainer.fit(policy, datamodule)
    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 200 greedy episodes: {scores['test/return_mean']:.3f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
