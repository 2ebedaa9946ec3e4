"""SAC with the layers of SimBa on walker-walk of the DeepMind Control Suite (extra dm-control): learns to walk.

    python recipes/sac_simba.py --seed 0

25,000 env steps of two frames. Settings of Lee et al. 2024 (https://arxiv.org/abs/2410.09754) but for critics of width
128 (512), a step size of 3e-4, 2,500 random steps (5,000), and an actor whose log std is within [-20, 2] (-10 to 2).
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import SACPolicy

ENV_ID = "lightning_ding.di_engine.env_makers.make_dm_control"
ENV_KWARGS = {"domain_name": "walker", "task_name": "walk", "frame_skip": 2}
NUM_ENVS = 4
MAX_ENV_STEP = 25_000
NORM_OBS = True
SIMBA = {"type": "simba"}
CONFIG = {
    **{"compile": "auto", "random_collect_size": 2_500, "collect": {"n_sample": 4}},
    "model": {
        **{"twin_critic": False, "actor_layers": SIMBA, "critic_layers": SIMBA, "last_layer_init": None},
        **{"actor_head_hidden_size": 128, "critic_head_hidden_size": 128, "critic_head_layer_num": 2},
    },
    "learn": {
        **{"learning_rate_q": 3e-4, "learning_rate_policy": 3e-4, "learning_rate_alpha": 1e-4, "alpha": 0.01},
        **{"update_per_collect": 8, "target_entropy": -3.0, "optimizer": {"type": "adamw", "weight_decay": 0.01}},
    },
    "eval": {"evaluator": {"eval_freq": 5_000, "n_episode": 20}},
}


def main() -> None:
    """Train, then evaluate the policy at the end on 20 greedy episodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    seed_everything(options.seed)
    limits = {"num_envs": NUM_ENVS, "seed": options.seed, "max_env_step": options.max_env_step}
    datamodule = ReplayDataModule(ENV_ID, **limits, env_kwargs=ENV_KWARGS, norm_obs=NORM_OBS)
    policy = SACPolicy(CONFIG)
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("runs", name="sac_simba"))
    trainer.fit(policy, datamodule)

    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    print(f"mean return of 20 greedy episodes: {scores['test/return_mean']:.1f}")
    print(f"best checkpoint: {best}")


if __name__ == "__main__":
    main()
