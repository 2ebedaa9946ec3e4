"""XQC on Hopper-v5 (extra mujoco): learns to hop forward.

    python recipes/xqc_hopper.py            # seed 0
    python recipes/xqc_hopper.py --seed 1

Trains for 50,000 env steps and evaluates the policy at the end on 20 separate episodes. The settings are those of
Palenicek et al. 2025 (https://arxiv.org/abs/2509.25174), two updates for each env step among them, but for the size of
the networks, so that two cores suffice: critics of two layers of 128 units, not four of 512, and an actor of width 128,
not 256. The step size does not fall; ``policy/xqc.py`` says what else differs.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import XQCPolicy

ENV_ID = "Hopper-v5"
NUM_ENVS = 4
MAX_ENV_STEP = 50_000
NORM_REWARD = True
CONFIG = {
    "compile": "auto",
    "discount_factor": 0.995,
    "random_collect_size": 5_000,
    "model": {"actor_head_hidden_size": 128, "critic_head_hidden_size": 128, "critic_head_layer_num": 1},
    "learn": {"update_per_collect": 8},
    "collect": {"n_sample": 4},
    "eval": {"evaluator": {"eval_freq": 2_500, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    limits = {"num_envs": NUM_ENVS, "seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, **limits, norm_reward=NORM_REWARD)
    policy = XQCPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="xqc_hopper"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
