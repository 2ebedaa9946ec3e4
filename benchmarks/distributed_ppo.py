"""PPO on Hopper with 32 envs: in one process, and with four collectors over Ray and over HTTP.

    python -m benchmarks.distributed_ppo                 # all sides, seeds 0 to 4; docs/results/distributed_ppo.json
    python -m benchmarks.distributed_ppo --sides process ray --seeds 0 --steps 50000
    python -m benchmarks.distributed_ppo --table         # what has been measured

Rollouts have 2,048 steps, each collector has eight envs, and each rollout gives 160 updates of 128 steps. A point of a
curve has the env steps, the seconds since the first rollout, and the mean return of training episodes: the newest 100
of a distributed run, and those since the point before of one process. Nothing is evaluated during a run.

Env steps per second are those between a tenth and the end of a run, because starting takes different times. Each run is
a separate process, with one torch thread in each of its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.compare import provenance
from benchmarks.intervals import text

ENV_ID = "Hopper-v5"
COLLECTORS, ENVS = 4, 8
ROLLOUT, EPOCHS, BATCH, STEP_SIZE = 2048, 10, 128, 3e-4
HIDDEN = [64, 64]
STEPS = 200_000
SIDES = ("process", "ray", "flask_fs")
LONGEST = 1200.0  # seconds of a run
SETTLED = 0.1  # share of the env steps after which the speed is measured

Curve = list[tuple[int, float, float]]
"""Env steps, seconds and mean return of each point."""

POLICY: dict[str, Any] = {
    "type": "ppo",
    "model": {"encoder_hidden_size_list": HIDDEN, "share_encoder": False, "activation": "tanh"},
    "learn": {"epoch_per_collect": EPOCHS, "batch_size": BATCH, "learning_rate": STEP_SIZE},
    "collect": {"n_sample": ROLLOUT},
}


def run_process(seed: int, steps: int) -> Curve:
    """Train in one process."""
    from lightning import Callback, Trainer, seed_everything

    from lightning_ding.callbacks import MetricsLogger
    from lightning_ding.datamodules import RolloutDataModule
    from lightning_ding.policy import create_policy

    curve: Curve = []

    class Points(Callback):
        """Note a point after each fourth rollout."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.began = time.perf_counter()

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            mean = trainer.callback_metrics.get("collect/return_mean")
            if mean is not None:
                curve.append((pl_module.progress.env_step, time.perf_counter() - self.began, float(mean)))

    seed_everything(seed, verbose=False)
    data = RolloutDataModule(
        ENV_ID, num_envs=COLLECTORS * ENVS, seed=seed, norm_obs=True, max_env_step=steps, rounds_per_epoch=4
    )
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu",
        enable_checkpointing=False,
        limit_val_batches=0,
        callbacks=[MetricsLogger(4), Points()],
        **quiet,
    )
    trainer.fit(create_policy(POLICY), data)
    return curve


def run_distributed(transport: str, seed: int, steps: int) -> Curve:
    """Train with a coordinator, a learner and four collectors on this machine."""
    main = {"seed": seed, "norm_obs": True, "policy": POLICY, "env": {"env_id": ENV_ID, "collector_env_num": ENVS}}
    return run_parallel(main, transport, COLLECTORS, steps)


def run_parallel(main: dict[str, Any], transport: str, collectors: int, steps: int) -> Curve:
    """Train with the processes of ``lightning-ding parallel`` on this machine, without evaluations.

    Args:
        main: The section ``main`` of the config, without its folder.
        transport: Name of the transport.
        collectors: Number of collectors.
        steps: Env steps after which the run is ended.
    """
    from benchmarks.distributed import ask_of, disconnect, start

    with TemporaryDirectory() as folder:
        env = {**main["env"], "evaluator_env_num": 1, "n_evaluator_episode": 1}
        system = {
            "transport": transport,
            "coordinator": {"commander": {"eval_interval": None}},
            "learner": {"validate": False},
            "collector": {"num": collectors},
        }
        config = {"main": {**main, "env": env, "exp_name": folder}, "system": system}
        with start(config) as process:
            curve = _watch(ask_of(config, lambda: process.poll() is not None), process, steps)
            disconnect(transport)  # before the run ends its own cluster
        code, result = process.returncode, Path(folder, "result.json")
        if code or json.loads(result.read_text())["env_step"] < steps:
            raise RuntimeError(f"exit code {code}:\n{Path(folder, 'log').read_text()[-3000:]}")
    return curve


def _watch(ask: Any, process: subprocess.Popen[bytes], steps: int) -> Curve:
    """Return a point for each half second of a run, and end it after some env steps."""
    curve: Curve = []
    began = None
    while process.poll() is None and (not curve or curve[-1][0] < steps):
        time.sleep(0.5)
        status = ask("status")
        began = began or (time.perf_counter() if status["train_iter"] else None)
        if began is not None and status["return_mean"] is not None:
            point = status["env_step"], time.perf_counter() - began, status["return_mean"]
            if not curve or point[0] > curve[-1][0]:
                curve.append(point)
    ask("shutdown")
    return curve


def speed(curve: Curve) -> float:
    """Return the env steps per second between a tenth of a run and its end.

    Example:
        >>> speed([(0, 0.0, 1.0), (100, 50.0, 1.0), (1000, 140.0, 2.0)])
        10.0
    """
    first = next(point for point in curve if point[0] >= SETTLED * curve[-1][0])
    return (curve[-1][0] - first[0]) / (curve[-1][1] - first[1])


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return the table of all sides: speeds, and returns with 95 % intervals at three points of the curves."""
    shares = (0.25, 0.5, 0.75)
    head = [f"return at {share:.0%} of the env steps" for share in shares]
    lines = [f"| | seeds | env steps/s | {' | '.join(head)} | over the last tenth |", "|---|--:|--:|--:|--:|--:|--:|"]
    for side, seeds in runs.items():
        curves = [result["curve"] for result in seeds.values()]
        speeds = [result["env_steps_per_s"] for result in seeds.values()]
        points = [text([_at(curve, share * curve[-1][0]) for curve in curves]) for share in shares]
        last = text([result["last"] for result in seeds.values()])
        lines.append(f"| {side} | {len(seeds)} | {sum(speeds) / len(speeds):,.0f} | {' | '.join(points)} | {last} |")
    return "\n".join(lines)


def _at(curve: Curve, env_step: float) -> float:
    """Return the mean return at the point that is nearest to an env step."""
    return min(curve, key=lambda point: abs(point[0] - env_step))[2]


def run(side: str, seed: int, steps: int) -> dict[str, Any]:
    """Run one side in this process."""
    return summary(run_process(seed, steps) if side == "process" else run_distributed(side, seed, steps))


def summary(curve: Curve) -> dict[str, Any]:
    """Return the speed of a run, its mean return over the last tenth, and its curve."""
    last = [point[2] for point in curve if point[0] > 0.9 * curve[-1][0]]
    rounded = [(step, round(seconds, 2), round(mean, 1)) for step, seconds, mean in curve]
    return {"env_steps_per_s": round(speed(curve), 1), "last": round(sum(last) / len(last), 1), "curve": rounded}


def in_own_process(module: str, arguments: list[Any]) -> dict[str, Any] | None:
    """Return what ``python -m MODULE --run ARGUMENTS`` prints; if it fails, print its last errors and return None."""
    command = [sys.executable, "-W", "ignore", "-m", module, "--run", *map(str, arguments)]
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # the latter as ``parallel`` sets it
    env = {**os.environ, **ray, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=env)
    if done.returncode:
        print(f"{' '.join(command[3:])} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Run each side with each seed in turn, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=list(SIDES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=STEPS, help="env steps of a run")
    parser.add_argument("--output", type=Path, default=Path("docs/results/distributed_ppo.json"))
    parser.add_argument("--table", action="store_true", help="print the results as a table, and run nothing")
    parser.add_argument("--run", action="store_true", help="run the only side and seed here, and print the result")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.output.read_text())["runs"]))
        return
    if options.run:
        logging.disable(logging.WARNING)
        print(json.dumps(run(options.sides[0], options.seeds[0], options.steps)))
        return
    known = json.loads(options.output.read_text()) if options.output.exists() else {"runs": {}}
    for seed in options.seeds:
        for side in options.sides:
            arguments = ["--sides", side, "--seeds", seed, "--steps", options.steps]
            result = in_own_process("benchmarks.distributed_ppo", arguments)
            if result is None:
                continue
            known["runs"].setdefault(side, {})[str(seed)] = result
            print(
                f"{side:>9} {seed}  {result['env_steps_per_s']:8.1f} env steps/s  return {result['last']:.1f}",
                flush=True,
            )
            record = {**provenance(), "cores": os.cpu_count(), "steps": options.steps, "runs": known["runs"]}
            options.output.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
