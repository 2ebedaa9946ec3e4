"""What it saves that envs step while a policy learns, and what the later weights cost in env steps.

    python -m benchmarks.overlap             # SAC on Hopper-v5, 4 envs in 2 workers: milliseconds of a round
    python -m benchmarks.overlap --slow-env 2 --updates 2    # with 2 ms more for each env step
    python -m benchmarks.overlap --lag       # SAC on Pendulum-v1 and PPO on CartPole-v1: returns over five seeds

The networks are those of W3. A round is one step of all envs and the updates after it. Both contestants take turns in
separate processes, with one torch thread by default. The load of a shared machine varies, so the mean of the fastest
quarter of the rounds is printed beside the mean of all.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import runpy
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lightning import Trainer, seed_everything
from lightning.pytorch import Callback

from benchmarks import sac
from benchmarks.compare import in_turn, medians_of, save
from benchmarks.workload import SACWorkload

CONTESTANTS: dict[str, dict[str, Any]] = {
    "apart": {},
    "overlap": {"overlap": True},
    "sync": {"mode": "sync", "num_workers": None},
}
FIRST = 40  # rounds before the ones that are timed
LAG: dict[str, dict[str, Any]] = {
    "sac": {"env_id": "Pendulum-v1", "num_envs": 8, "max_env_step": 6_000, "eval_every": 400},
    "ppo": {"env_id": "CartPole-v1", "num_envs": 8, "max_env_step": 40_960, "eval_every": 2_048},
}
SOLVED = {"sac": -200.0, "ppo": 475.0}


class SlowEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Waits in each step, as for a simulator."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        """Step the env, and wait."""
        time.sleep(self.seconds)
        return self.env.step(action)


class RoundTimes(Callback):
    """Notes when each round has ended, and how long the main process was in steps of the envs until then."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.waits: list[float] = []
        self._waited = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure the steps of the envs."""
        envs: Any = trainer.datamodule.collector._stepper.env  # type: ignore[attr-defined]
        step = envs.step

        def timed(actions: Any) -> Any:
            start = time.perf_counter()
            found = step(actions)
            self._waited += time.perf_counter() - start
            return found

        envs.step = timed

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Note both."""
        self.times.append(time.perf_counter())
        self.waits.append(self._waited)


def trainer_with(*callbacks: Callback) -> Trainer:
    """Return a Trainer that writes nothing."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", enable_progress_bar=False, callbacks=list(callbacks), **quiet)  # type: ignore[arg-type]


def time_rounds(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Train one contestant, and return milliseconds of a round."""
    from lightning_ding.config import deep_merge
    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import SACPolicy

    seed_everything(0)
    rounds = {"collect": {"n_sample": options.n_sample}, "learn": {"update_per_collect": options.updates}}
    policy = SACPolicy(deep_merge(sac.our_config(SACWorkload(warm_up=512), options.compile), rounds))
    wrappers = [functools.partial(SlowEnv, seconds=options.slow_env / 1000)] if options.slow_env else []
    envs: dict[str, Any] = {
        "num_envs": options.num_envs,
        "mode": "async",
        "num_workers": options.workers,
    }
    limits = {"max_env_step": 512 + (FIRST + options.rounds) * options.n_sample, "evaluator_env_num": 1}
    data = ReplayDataModule(options.env, wrappers=wrappers, **{**envs, **limits, **CONTESTANTS[name]})
    noted = RoundTimes()
    trainer = trainer_with(noted)
    trainer.limit_val_batches = 0
    trainer.fit(policy, data)
    passed = 1000 * np.diff(noted.times[FIRST:])
    fastest = np.argsort(passed)[: len(passed) // 4]
    waited = 1000 * np.diff(noted.waits[FIRST:])[fastest].mean()
    found = {"seconds": passed.sum() / 1000, "ms": passed.mean(), "fastest_ms": passed[fastest].mean()}
    return {name: float(value) for name, value in {**found, "fastest_wait_ms": waited}.items()}


class Returns(Callback):
    """Notes the env steps and the mean return of each evaluation."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Note both."""
        self.curve.append((pl_module.progress.env_step, float(trainer.callback_metrics["eval/return_mean"])))


def learn(kind: str, overlap: bool, seed: int, workers: int) -> list[tuple[int, float]]:
    """Train a recipe, and return env steps and mean return of each evaluation."""
    from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
    from lightning_ding.policy import PPOPolicy, SACPolicy

    seed_everything(seed)
    recipe = runpy.run_path("recipes/sac.py")
    policy: Any = SACPolicy(recipe["CONFIG"]) if kind == "sac" else PPOPolicy({"collect": {"n_sample": 1_024}})
    envs: dict[str, Any] = {"mode": "async", "num_workers": workers, "seed": seed, "n_evaluator_episode": 10}
    data = (ReplayDataModule if kind == "sac" else RolloutDataModule)(**LAG[kind], **envs, overlap=overlap)
    noted = Returns()
    trainer_with(noted).fit(policy, data)
    return noted.curve


def measure_lag(options: argparse.Namespace) -> None:
    """Print env steps until a task is solved and the mean return over the run, of each seed, with overlap and apart."""
    found: dict[str, Any] = {}
    for kind in options.only:
        for seed in range(options.seeds):
            for overlap in (False, True):
                curve = learn(kind, overlap, seed, options.workers)
                solved = next((step for step, value in curve if value >= SOLVED[kind]), None)
                area = float(np.mean([value for _, value in curve]))
                name = f"{kind} {'overlap' if overlap else 'apart'}"
                found.setdefault(name, []).append({"seed": seed, "solved": solved, "mean": area, "curve": curve})
                last = curve[-1][1]
                print(f"{name:>12} seed {seed}: solved at {solved}, mean {area:.1f}, last {last:.1f}", flush=True)
    options.out.write_text(json.dumps(found))


def main() -> None:
    """Time the contestants in turn, or compare what they learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=CONTESTANTS, help="run one contestant in this process and print JSON")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=["apart", "overlap"])
    parser.add_argument("--repeats", type=int, default=3, help="number of turns")
    parser.add_argument("--rounds", type=int, default=400, help="rounds that are timed")
    parser.add_argument("--env", default="Hopper-v5", help="env id")
    parser.add_argument("--num-envs", type=int, default=4, help="number of envs")
    parser.add_argument("--workers", type=int, default=2, help="number of env processes")
    parser.add_argument("--n-sample", type=int, default=4, help="transitions of a round")
    parser.add_argument("--updates", type=int, default=1, help="updates of a round")
    parser.add_argument("--slow-env", type=float, default=0.0, help="milliseconds that each env step waits")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--compile", action="store_true", help="compile updates")
    parser.add_argument("--lag", action="store_true", help="compare learning instead of times")
    parser.add_argument("--only", nargs="+", choices=LAG, default=list(LAG), help="tasks of --lag")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of --lag")
    parser.add_argument("--out", type=Path, default=Path("overlap.json"), help="JSON file")
    options = parser.parse_args()
    logging.getLogger("lightning").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    if options.run or options.lag:
        torch.set_num_threads(options.threads)
        if options.lag:
            measure_lag(options)
            return
        print(json.dumps(time_rounds(options.run, options)))
        return
    passed = ("env", "num_envs", "workers", "n_sample", "updates", "slow_env", "threads", "rounds")
    command = ["benchmarks.overlap", *(["--compile"] if options.compile else [])]
    command += [part for name in passed for part in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    results = in_turn(command, options.contestants, options.repeats)
    medians = medians_of(results)
    print(f"\n{'':>10} {'ms':>7} {'ratio':>6} {'fastest quarter':>16} {'ratio':>6} {'of it in env steps':>19}")
    for name, row in medians.items():
        ratio, fastest = (row[key] / medians["apart"][key] for key in ("ms", "fastest_ms"))
        print(
            f"{name:>10} {row['ms']:7.2f} {ratio:6.2f} {row['fastest_ms']:16.2f} {fastest:6.2f} "
            f"{row['fastest_wait_ms']:19.2f}"
        )
    save(results, options.out)


if __name__ == "__main__":
    main()
