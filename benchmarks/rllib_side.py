"""RLlib's PPO and IMPALA next to those of this project over Ray, with the same envs, networks and processes.

    python -m benchmarks.rllib_side               # all sides, seeds 0 to 4; docs/results/rllib_side.json
    python -m benchmarks.rllib_side --only ppo --sides rllib --seeds 0 --steps 10000 --output /tmp/short.json
    python -m benchmarks.rllib_side --table       # what has been measured

    ppo      Hopper-v5, 200,000 env steps, four collectors of eight envs, as in benchmarks.distributed_ppo
    impala   CartPole-v1, 100,000 env steps, two collectors of four envs, settings of recipes/impala.py;
             ``rllib_example`` has the settings of RLlib's own example for CartPole-v1, which trains for longer

RLlib has its new API stack, a learner in the main process and no evaluations. The settings of ``rllib`` are computed
from our configs. Curves, speeds and threads are those of ``benchmarks.distributed_ppo``: a point has the mean return of
the newest 100 training episodes. Needs the packages "ray[rllib]" and "gymnasium[mujoco]".

What is not equal:

* PPO: our critic learns standardised returns (PopArt). RLlib's learns returns, so its gradients are larger, and are not
  clipped (here by 0.5). After 60,000 env steps of seed 0, RLlib's return was 292 without clipping and 222 with it.
* PPO: we compute advantages again before each pass and standardise them in each minibatch, RLlib once for a rollout.
* PPO: RLlib adds a masked step to each part of an episode, and so makes about 170 updates for a rollout, not 160.
* IMPALA: we draw four minibatches of the newest 512 steps for each 128 new ones. RLlib has no replay and makes 16
  updates with each 512 new steps. Both use a step 16 times.
* IMPALA: our traces decay by ``lambda_`` 0.95, RLlib's by 1.0.
* Adam's ``eps`` is 1e-5 here and 1e-8 in RLlib.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import time
from collections import deque
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from benchmarks import distributed_ppo
from benchmarks.compare import provenance
from benchmarks.distributed_ppo import Curve, in_own_process, run_distributed, run_parallel, summary
from benchmarks.intervals import text
from lightning_ding.config import resolve
from lightning_ding.policy.impala import IMPALAConfig
from lightning_ding.policy.ppo import PPOConfig

RECIPE = Path(__file__).parents[1] / "recipes" / "configs" / "impala_cartpole.yaml"
SIDES = {"ppo": ("ours", "rllib"), "impala": ("ours", "rllib", "rllib_example")}
STEPS = {"ppo": distributed_ppo.STEPS, "impala": 100_000}
ENV_IDS = {"ppo": distributed_ppo.ENV_ID, "impala": "CartPole-v1"}
COLLECTORS = {"ppo": (distributed_ppo.COLLECTORS, distributed_ppo.ENVS), "impala": (2, 4)}  # and envs of each
GOALS = {"ppo": (500, 1000), "impala": (200, 475)}


def ppo_settings() -> dict[str, Any]:
    """Return the arguments of RLlib's ``training`` that mean what our config of PPO means."""
    config = resolve(PPOConfig, {key: value for key, value in distributed_ppo.POLICY.items() if key != "type"})
    learn = config.learn
    return {
        "lr": learn.learning_rate,
        "gamma": config.discount_factor,
        "lambda_": config.collect.gae_lambda,
        "clip_param": learn.clip_ratio,
        "use_kl_loss": False,
        "entropy_coeff": learn.entropy_weight,
        "vf_loss_coeff": learn.value_weight / 2,  # ours is the weight of half the squared error
        "vf_clip_param": math.inf,
        "train_batch_size_per_learner": config.collect.n_sample,
        "minibatch_size": learn.batch_size,
        "num_epochs": learn.epoch_per_collect,
    }


def impala_policy(steps: int) -> dict[str, Any]:
    """Return our config of IMPALA; the learning rate falls to 0 at ``steps``."""
    policy: dict[str, Any] = yaml.safe_load(RECIPE.read_text())["model"]["cfg"]
    policy["learn"]["lr_scheduler"] |= {"unit": "env_step", "decay": steps}
    return policy


def impala_settings(steps: int) -> dict[str, Any]:
    """Return the arguments of RLlib's ``training`` that mean what our config of IMPALA means."""
    config = resolve(IMPALAConfig, impala_policy(steps))
    learn, batch = config.learn, config.learn.batch_size * config.unroll_len
    return {
        "lr": [[0, learn.learning_rate], [steps, 0.0]],
        "gamma": config.discount_factor,
        "entropy_coeff": learn.entropy_weight,
        "vf_loss_coeff": 2 * learn.value_weight,  # RLlib's is the weight of half the squared error
        "grad_clip": learn.grad_clip_norm,
        "train_batch_size_per_learner": batch,
        "num_epochs": learn.update_per_collect * batch // (config.collect.n_sample or batch),
    }


def ppo_config() -> Any:
    """Return RLlib's config of PPO, with our network, its initial weights, and normalised observations."""
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from torch import nn

    base: Any = import_module("ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module").DefaultPPOTorchRLModule

    class Network(base):  # type: ignore[misc]
        """RLlib's network with the initial weights of our heads, which its config does not have."""

        def setup(self) -> None:
            super().setup()
            nn.init.constant_(self.pi.log_std, -0.5)
            for name, gain in (("pi", 0.01), ("vf", 1.0)):
                if hasattr(self, name):  # an env runner has no critic
                    layer = getattr(self, name).net.mlp[-1]
                    nn.init.orthogonal_(layer.weight, gain)
                    nn.init.zeros_(layer.bias)

    ours = distributed_ppo.POLICY["model"]
    network = {"fcnet_hiddens": ours["encoder_hidden_size_list"], "fcnet_activation": ours["activation"]}
    network |= {"vf_share_layers": ours["share_encoder"], "free_log_std": True, "fcnet_bias_initializer": "zeros_"}
    network |= {"fcnet_kernel_initializer": "orthogonal_", "fcnet_kernel_initializer_kwargs": {"gain": math.sqrt(2)}}
    config: Any = import_module("ray.rllib.algorithms.ppo").PPOConfig()
    config = config.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
    config = config.rl_module(rl_module_spec=RLModuleSpec(module_class=Network, model_config=network))
    return config.training(**ppo_settings())


def impala_config(side: str, steps: int) -> Any:
    """Return RLlib's config of IMPALA, with our network and settings or those of its example."""
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    config: Any = import_module("ray.rllib.algorithms.impala").IMPALAConfig()
    config = config.reporting(min_time_s_per_iteration=0.5)  # as points of a distributed run
    if side == "rllib_example":
        config = config.env_runners(env_to_module_connector=lambda *_, **__: MeanStdFilter())
        config = config.rl_module(model_config={"vf_share_layers": True})
        settings = {"lr": 5e-4, "vf_loss_coeff": 0.05, "entropy_coeff": 0.0, "grad_clip": 40.0}
        return config.training(**settings, train_batch_size_per_learner=500)
    ours = resolve(IMPALAConfig, impala_policy(steps))
    hidden = list(ours.model.encoder_hidden_size_list or ())
    network = {"fcnet_hiddens": hidden, "fcnet_activation": ours.model.activation, "vf_share_layers": False}
    config = config.env_runners(rollout_fragment_length=ours.unroll_len).rl_module(model_config=network)
    return config.training(**impala_settings(steps))


def note_return(*, episode: Any, prev_episode_chunks: Any, metrics_logger: Any, **_: Any) -> None:
    """Report the return of an episode that has ended; RLlib keeps it in parts."""
    whole = sum(part.get_return() for part in (episode, *prev_episode_chunks))
    metrics_logger.log_value("returns", float(whole), reduce="item_series")


def run_rllib(algorithm: str, side: str, seed: int, steps: int) -> Curve:
    """Train with RLlib."""
    ray: Any = import_module("ray")
    collectors, envs = COLLECTORS[algorithm]
    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    config = ppo_config() if algorithm == "ppo" else impala_config(side, steps)
    config = config.environment(ENV_IDS[algorithm]).framework("torch").learners(num_learners=0)
    config = config.env_runners(num_env_runners=collectors, num_envs_per_env_runner=envs)
    trainer = config.callbacks(on_episode_end=note_return).debugging(seed=seed, log_level="ERROR").build_algo()
    curve: Curve = []
    newest: deque[float] = deque(maxlen=100)  # as in the status of a distributed run
    while not curve or curve[-1][0] < steps:
        result = trainer.train()
        found = result["env_runners"]
        if isinstance(found.get("returns"), list):  # NaN if no episode has ended
            newest.extend(found["returns"])
        step = int(found.get("num_env_steps_sampled_lifetime", 0))
        if "learners" in result and newest and step > (curve[-1][0] if curve else 0):
            curve.append((step, time.perf_counter(), sum(newest) / len(newest)))
    trainer.stop()
    ray.shutdown()
    return [(step, seconds - curve[0][1], mean) for step, seconds, mean in curve]


def run(algorithm: str, side: str, seed: int, steps: int) -> dict[str, Any]:
    """Run one side in this process."""
    if side != "ours":
        return summary(run_rllib(algorithm, side, seed, steps))
    if algorithm == "ppo":
        return summary(run_distributed("ray", seed, steps))
    collectors, envs = COLLECTORS[algorithm]
    env = {"env_id": ENV_IDS[algorithm], "collector_env_num": envs}
    ours = {"seed": seed, "env": env, "policy": {"type": algorithm, **impala_policy(steps)}}
    return summary(run_parallel(ours, "ray", collectors, steps))


def reached(curves: list[Curve], goal: float) -> str:
    """Return the seconds until a mean return of ``goal``, of the runs that reach it, and their number if some do not.

    Example:
        >>> reached([[(100, 1.0, 20.0), (200, 2.0, 210.0)], [(100, 4.0, 200.0)], [(100, 1.5, 20.0)]], 200.0)
        '3.00 [2.00, 4.00] (2 of 3)'
    """
    firsts = [next((seconds for _, seconds, mean in curve if mean >= goal), None) for curve in curves]
    times = [one for one in firsts if one is not None]
    return (text(times) if times else "-") + (f" ({len(times)} of {len(curves)})" if len(times) < len(curves) else "")


def table(runs: dict[str, Any]) -> str:
    """Return a table for each algorithm, with interquartile means and 95 % intervals of the seeds."""
    blocks = []
    for algorithm, sides in runs.items():
        goals = GOALS[algorithm]
        head = ["seeds", "env steps/s", *(f"seconds until {goal:,}" for goal in goals), "return over the last tenth"]
        lines = [f"| {algorithm}, {ENV_IDS[algorithm]} | {' | '.join(head)} |", "|---|" + "--:|" * len(head)]
        for side, seeds in sides.items():
            curves = [one["curve"] for one in seeds.values()]
            speeds, lasts = ([one[key] for one in seeds.values()] for key in ("env_steps_per_s", "last"))
            cells = [str(len(seeds)), text(speeds), *(reached(curves, goal) for goal in goals), text(lasts)]
            lines.append(f"| {side} | {' | '.join(cells)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def main() -> None:
    """Run each side with each seed in turn, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SIDES), nargs="+", default=list(SIDES), help="algorithms")
    parser.add_argument("--sides", choices=SIDES["impala"], nargs="+", default=SIDES["impala"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="env steps of a run; None means those above")
    parser.add_argument("--output", type=Path, default=Path("docs/results/rllib_side.json"))
    parser.add_argument("--table", action="store_true", help="print the results as tables, and run nothing")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.output.read_text())["runs"]))
        return
    if options.run:
        logging.disable(logging.WARNING)
        print(json.dumps(run(options.only[0], options.sides[0], options.seeds[0], options.steps)))
        return
    known = json.loads(options.output.read_text())["runs"] if options.output.exists() else {}
    sides = [(one, side) for one in options.only for side in SIDES[one] if side in options.sides]
    for seed, (algorithm, side) in itertools.product(options.seeds, sides):
        flags = ["--only", algorithm, "--sides", side, "--seeds", seed, "--steps", options.steps or STEPS[algorithm]]
        if result := in_own_process("benchmarks.rllib_side", flags):
            known.setdefault(algorithm, {}).setdefault(side, {})[str(seed)] = result
            print(algorithm, side, seed, result["env_steps_per_s"], result["last"], flush=True)
            record = {**provenance(), "cores": os.cpu_count(), "ray": version("ray"), "torch": version("torch")}
            options.output.write_text(json.dumps({**record, "runs": known}) + "\n")


if __name__ == "__main__":
    main()
