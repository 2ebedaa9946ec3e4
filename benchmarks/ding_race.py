"""DI-engine's configs to their own stop value, here and in DI-engine, in turns.

    python -m benchmarks.ding_race --folder FOLDER --ding-python PYTHON               # ten configs, seeds 0, 1, 2
    python -m benchmarks.ding_race --folder FOLDER --ding-python PYTHON --only pendulum_sac --seeds 0
    python -m benchmarks.ding_race --folder FOLDER --ding-python PYTHON --tail        # ten of the long tail

FOLDER contains DI-engine (``pip install --no-deps --target FOLDER DI-engine``); PYTHON is an interpreter in which it
runs. The configs are used unchanged. Each run is a separate process with one torch thread; there is one at a time.
Seconds are those of the pipeline, without imports. Results go to ``docs/results/ding_race.json``, those of ``--tail``
to ``docs/results/ding_tail.json``. There DI-engine trains and plays the experts, once, and both sides learn from the
same checkpoints and data sets.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.ding_side import BC_DATA, PPO_EXPERT

if TYPE_CHECKING:
    from lightning_ding.di_engine.run import Run

CONTROL = "classic_control"
CARTPOLE, PENDULUM = f"{CONTROL}/cartpole/config/cartpole_", f"{CONTROL}/pendulum/config/pendulum_"
CONFIGS = {
    **{f"cartpole_{kind}": f"{CARTPOLE}{kind}_config.py" for kind in ("dqn", "ppo", "a2c", "pg", "c51", "qrdqn")},
    "cartpole_rainbow": f"{CARTPOLE}rainbow_config.py",
    **{f"pendulum_{kind}": f"{PENDULUM}{kind}_config.py" for kind in ("ddpg", "td3", "sac")},
}
TAIL = {
    **{f"cartpole_{kind}": f"{CARTPOLE}{kind}_config.py" for kind in ("bc", "sqil", "trex_dqn", "gcl", "ppg", "acer")},
    "cartpole_sqn": f"{CARTPOLE}sqn_config.py",
    **{f"pendulum_{kind}": f"{PENDULUM}{kind}_config.py" for kind in ("cql", "td3_bc", "bdq")},
}
ENTRIES = {
    **dict.fromkeys(("cartpole_ppo", "cartpole_a2c", "cartpole_pg"), "onpolicy"),
    **{"cartpole_bc": "bc", "cartpole_sqil": "sqil", "cartpole_trex_dqn": "trex", "cartpole_gcl": "guided_cost"},
    **{"cartpole_ppg": "ppg", "pendulum_cql": "offline", "pendulum_td3_bc": "offline"},
}
"""The entries that are not ``serial_pipeline``."""
OUT, TAIL_OUT = Path("docs/results/ding_race.json"), Path("docs/results/ding_tail.json")
ROOT = Path(__file__).resolve().parents[1]
Result = dict[str, Any]


def translated(file: str, seed: int, entry: str) -> Run:
    """Return the run of a config, after its expert has played if it has one."""
    from lightning_ding.di_engine.configs import read_pair
    from lightning_ding.di_engine.imitation import sqil_run, with_data
    from lightning_ding.di_engine.inverse_rl import guided_cost_run, preference_run
    from lightning_ding.di_engine.run import UNLIMITED
    from lightning_ding.di_engine.translate import translate

    pair, limits = read_pair(file), (UNLIMITED, UNLIMITED)
    if entry == "bc":
        return translate(with_data(pair, BC_DATA), seed)
    if entry == "sqil":
        return sqil_run(pair, file.replace("_sqil_", "_dqn_"), seed, None, None, *limits)
    if entry == "trex":
        return preference_run(pair, seed, None, *limits)
    if entry == "guided_cost":
        pair[0]["policy"]["collect"]["model_path"] = PPO_EXPERT
        return guided_cost_run(pair, seed, None, *limits)
    return translate(pair, seed)


def ours(file: str, seed: int, entry: str, limit: float) -> Result:
    """Run a config here; return whether the stop value was reached, the counters and the seconds."""
    import torch
    from lightning import Callback, Trainer

    from lightning_ding.di_engine.serial import train

    class Limit(Callback):
        """End the run at the limit of CPU seconds."""

        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = trainer.should_stop or time.process_time() - cpu > limit

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began, cpu = time.perf_counter(), time.process_time()
    run = translated(file, seed, entry)
    train(dataclasses.replace(run, hooks=(*run.hooks, {"class_path": Limit, "init_args": {}})))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    result = json.loads(next(Path().rglob("result.json")).read_text())
    counters = {"value": result["eval_value"], "env_step": result["env_step"], "train_iter": result["train_iter"]}
    return {"reached": result["stop"], **counters, "seconds": seconds, "cpu": cpu}


def run(command: list[str], limit: float, path: Path, experts: Path | None) -> Result:
    """Run one side in a separate process and a temporary folder, and return its result."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}
    with TemporaryDirectory() as scratch:
        if experts is not None:
            shutil.copytree(experts, scratch, dirs_exist_ok=True)
        most = 30 * limit  # each side ends itself at its limit of CPU time
        try:
            done = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True, timeout=most)
        except subprocess.TimeoutExpired:
            return {"reached": False, "error": f"did not end in {most:g} seconds"}
    if done.returncode:
        return {"reached": False, "error": done.stderr.strip().splitlines()[-1][:200]}
    result: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def make_experts(python: str, folder: Path, target: Path) -> None:
    """Let DI-engine train and play its experts in a folder, if it does not exist yet."""
    if target.is_dir():
        return
    command = [python, "-W", "ignore", str(ROOT / "benchmarks/ding_side.py"), "experts"]
    with TemporaryDirectory() as scratch:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
        subprocess.run([*command, str(folder / "dizoo" / CONTROL)], cwd=scratch, env=env, check=True)
        shutil.copytree(scratch, target)


def table(results: dict[str, dict[str, dict[str, Result]]], with_cpu: bool = False) -> str:
    """Return the medians of each config as Markdown."""
    columns = [("env_step", "env steps", 0), ("seconds", "seconds", 1), ("cpu", "CPU seconds", 1)][
        : 3 if with_cpu else 2
    ]
    heads = [f"{title} here | DI-engine | ratio" for _, title, _ in columns]
    lines = [f"| config | reached here / DI-engine | {' | '.join(heads)} |", "|---" * (2 + 3 * len(columns)) + "|"]
    for name, sides in results.items():
        reached = [sum(one["reached"] for one in sides[side].values()) for side in ("ours", "ding")]
        cells = []
        for key, _, digits in columns:
            values = [[one[key] for one in sides[side].values() if key in one] for side in ("ours", "ding")]
            here, there = (statistics.median(found) if found else math.nan for found in values)
            ratio = here / there if there else math.nan
            cells += [f"{here:,.{digits}f}", f"{there:,.{digits}f}", f"{ratio:.2f}"]
        lines.append(
            f"| {name} | {reached[0]} / {reached[1]} of {len(sides['ours'])} | {' | '.join(cells)} |".replace(
                "nan", "-"
            )
        )
    return "\n".join(lines)


def main() -> None:
    """Run the configs, seed by seed, first here and then in DI-engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder with the packages ding and dizoo")
    parser.add_argument("--ding-python", help="Python in which DI-engine runs")
    parser.add_argument("--tail", action="store_true", help="run the configs of the long tail")
    parser.add_argument("--experts", type=Path, default=Path("ding_experts"), help="folder of the experts of --tail")
    parser.add_argument("--only", nargs="+", choices=[*CONFIGS, *TAIL], help="run only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=600.0, help="longest CPU time for a run")
    parser.add_argument("--out", type=Path, help="JSON file; runs in it are not repeated")
    parser.add_argument(
        "--run", nargs=4, metavar=("FILE", "SEED", "ENTRY", "SECONDS"), help="run our side in this process"
    )
    options = parser.parse_args()
    if options.run:
        file, seed, entry, limit = options.run
        print(json.dumps(ours(file, int(seed), entry, float(limit))))
        return
    if options.folder is None or options.ding_python is None:
        parser.error("--folder and --ding-python are needed")
    configs, out = (TAIL, options.out or TAIL_OUT) if options.tail else (CONFIGS, options.out or OUT)
    folder = options.folder.resolve()
    if options.tail:
        make_experts(options.ding_python, folder, options.experts)
    results = json.loads(out.read_text()) if out.is_file() else {}
    for name in options.only or configs:
        rest = [ENTRIES.get(name, "serial"), str(options.seconds)]
        file = str(folder / "dizoo" / configs[name])
        here = [sys.executable, "-W", "ignore", "-m", "benchmarks.ding_race", "--run", file]
        there = [options.ding_python, "-W", "ignore", str(ROOT / "benchmarks/ding_side.py"), file]
        sides = results.setdefault(name, {"ours": {}, "ding": {}})
        for seed, (side, command, path) in itertools.product(
            map(str, options.seeds), (("ours", here, ROOT), ("ding", there, folder))
        ):
            if seed not in sides[side]:
                experts = options.experts if options.tail else None
                sides[side][seed] = run([*command, seed, *rest], options.seconds, path, experts)
                print(name, seed, side, sides[side][seed], flush=True)
                out.write_text(json.dumps(results, indent=1))
    print(table(results, options.tail))


if __name__ == "__main__":
    main()
