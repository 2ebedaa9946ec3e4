"""IPPO on level-based foraging: two agents learn to pick up food that only both together can lift.

    pip install lbforaging
    python recipes/ippo_foraging.py            # seed 0
    python recipes/ippo_foraging.py --seed 1

Evaluates the policy at the end of 1,000,000 env steps on 100 greedy episodes. The best return is 1; that of a team
whose actions are random is 0.004.
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.policy import IPPOPolicy

ENV_ID = "lbforaging:Foraging-8x8-2p-2f-coop-v3"
NUM_ENVS = 64
MAX_ENV_STEP = 1_000_000
ENV_KWARGS = {"individual_rewards": False}
CONFIG = {
    "discount_factor": 0.97,
    "recompute_adv": False,
    "model": {"encoder_hidden_size_list": [128, 128], "activation": "tanh"},
    "learn": {"epoch_per_collect": 4, "batch_size": 800, "learning_rate": 1e-3, "entropy_weight": 0.01},
    "collect": {"n_sample": 3200},
    "eval": {"evaluator": {"eval_freq": 256, "n_episode": 100}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 100 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the rollouts")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    kwargs = {"env_kwargs": ENV_KWARGS, "max_env_step": options.max_env_step}
    seed_everything(options.seed)
    datamodule = RolloutDataModule(ENV_ID, num_envs=NUM_ENVS, seed=options.seed, **kwargs)
    policy = IPPOPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="ippo_foraging"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 100 greedy episodes: {scores['test/return_mean']:.2f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
