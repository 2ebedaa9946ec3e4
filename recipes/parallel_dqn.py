"""DQN on CartPole-v1 with one learner and two collectors, each in a separate process.

    python recipes/parallel_dqn.py                           # seed 0, over HTTP and files
    python recipes/parallel_dqn.py --seed 1 --transport ray  # over Ray

Ends as soon as 20 greedy episodes reach 500 steps each, and evaluates the best checkpoint on 20 others. The settings
are those of recipes/dqn.py; docs/distributed.md lists results.
"""

from __future__ import annotations

import argparse
import time

from lightning_ding.entry.parallel import parallel_pipeline

POLICY = {
    "type": "dqn",
    "nstep": 3,
    "learn": {"update_per_collect": 16, "batch_size": 128, "learning_rate": 1e-3, "target_update_freq": 100},
    "collect": {"n_sample": 64},
    "eval": {"evaluator": {"eval_freq": 500, "n_episode": 20, "stop_value": 500.0}},
}
ENV = {
    "env_id": "CartPole-v1",
    "collector_env_num": 4,
    "evaluator_env_num": 8,
    "n_evaluator_episode": 20,
    "stop_value": 500.0,
}
MAX_ENV_STEP = 50_000
SYSTEM = {"collector": {"num": 2}, "coordinator": {"commander": {"type": "solo", "eval_interval": None}}}


def main() -> None:
    """Train, and print how well the best checkpoint does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the network, the envs and the replay buffer")
    parser.add_argument("--transport", default="flask_fs", help="flask_fs or ray")
    parser.add_argument("--max-env-step", type=int, default=MAX_ENV_STEP, help="maximum number of env steps")
    options = parser.parse_args()

    exp_name = time.strftime(f"runs/parallel_dqn_cartpole/{options.transport}_{options.seed}_%Y%m%d_%H%M%S")
    main_config = {"exp_name": exp_name, "seed": options.seed, "policy": POLICY, "env": ENV}
    started = time.monotonic()
    result = parallel_pipeline(
        {
            "main": {**main_config, "max_env_step": options.max_env_step},
            "system": {**SYSTEM, "transport": options.transport},
        }
    )

    print(f"mean return of 20 greedy episodes: {result['results']['test/return_mean']:.1f}")
    print(f"seconds: {time.monotonic() - started:.1f}")


if __name__ == "__main__":
    main()
