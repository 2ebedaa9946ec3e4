"""PPO with D-REX on CartPole-v1: learns from trajectories of a policy that are ranked by how much noise they have.

    python recipes/dqn.py
    lightning-ding collect runs/dqn_cartpole/version_0/checkpoints/last.ckpt --out ranked.npz --episodes 10 --greedy \
        --noise 1 0.75 0.5 0.25 0
    python recipes/drex.py ranked.npz

Where there are demonstrations instead of a policy, `lightning-ding fit --policy bc` clones them first. The rewards of
the env are never used; the returns that are logged and evaluated are those of the env.

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the policy at the end on 20 others.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import PPOPolicy

ENV_ID = "CartPole-v1"
NUM_ENVS = 8
MAX_ENV_STEP = 200_000
PAIRS = {"num_trajs": 20_000, "num_snippets": 0}
CONFIG = {
    "reward_model": {"type": "drex", "data_path": "ranked.npz", "bounded": True, "num_trajs_per_bin": 10, **PAIRS},
    "model": {"encoder_hidden_size_list": [64, 64], "share_encoder": False, "activation": "tanh"},
    "learn": {"batch_size": 256, "epoch_per_collect": 4, "learning_rate": 1e-3, "entropy_weight": 0.01},
    "collect": {"n_sample": 1024},
    "eval": {"evaluator": {"eval_freq": 80, "n_episode": 20, "stop_value": 500.0}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path of the ranked trajectories, or id of one of Minari's")
    parser.add_argument("--seed", type=int, default=0, help="seed of the networks and the envs")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, max_env_step=options.max_env_step)
    policy = PPOPolicy(deep_merge(CONFIG, {"reward_model": {"data_path": options.dataset}}))
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="drex_cartpole"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
