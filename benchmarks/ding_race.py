"""DI-engine's configs to their own stop value, here and in DI-engine, in turns.

    python -m benchmarks.ding_race --folder FOLDER --ding-python PYTHON               # ten configs, seeds 0, 1, 2
    python -m benchmarks.ding_race --folder FOLDER --ding-python PYTHON --only pendulum_sac --seeds 0

FOLDER contains DI-engine (``pip install --no-deps --target FOLDER DI-engine``); PYTHON is an interpreter in which it
runs. The configs are used unchanged. Each run is a separate process with one torch thread; there is one at a time.
Seconds are those of the pipeline, without imports. Results go to ``docs/results/ding_race.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CARTPOLE, PENDULUM = "classic_control/cartpole/config/cartpole_", "classic_control/pendulum/config/pendulum_"
CONFIGS = {
    **{f"cartpole_{kind}": f"{CARTPOLE}{kind}_config.py" for kind in ("dqn", "ppo", "a2c", "pg", "c51", "qrdqn")},
    "cartpole_rainbow": f"{CARTPOLE}rainbow_config.py",
    **{f"pendulum_{kind}": f"{PENDULUM}{kind}_config.py" for kind in ("ddpg", "td3", "sac")},
}
ON_POLICY = ("cartpole_ppo", "cartpole_a2c", "cartpole_pg")
OUT = Path("docs/results/ding_race.json")
ROOT = Path(__file__).resolve().parents[1]
Result = dict[str, Any]


def ours(file: str, seed: int, mode: str) -> Result:
    """Run a config here; return whether the stop value was reached, the counters and the seconds."""
    import torch

    from lightning_ding.entry import serial_pipeline, serial_pipeline_onpolicy

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    (serial_pipeline_onpolicy if mode == "serial_onpolicy" else serial_pipeline)(file, seed=seed)
    seconds = time.perf_counter() - began
    result = json.loads(next(Path().rglob("result.json")).read_text())
    counters = {"env_step": result["env_step"], "train_iter": result["train_iter"]}
    return {"reached": result["stop"], "seconds": seconds, **counters}


def run(command: list[str], seconds: float) -> Result:
    """Run one side in a separate process and a temporary folder, and return its result."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with TemporaryDirectory() as scratch:
        try:
            done = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"reached": False, "seconds": seconds, "env_step": -1, "train_iter": -1}
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def table(results: dict[str, dict[str, dict[str, Result]]]) -> str:
    """Return the medians of each config as Markdown."""
    lines = [
        "| config | reached here / DI-engine | env steps here | DI-engine | ratio | seconds here | DI-engine | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, sides in results.items():
        reached = [sum(one["reached"] for one in sides[side].values()) for side in ("ours", "ding")]
        cells = []
        for key, digits in (("env_step", 0), ("seconds", 1)):
            here, there = (statistics.median(one[key] for one in sides[side].values()) for side in ("ours", "ding"))
            cells += [f"{here:,.{digits}f}", f"{there:,.{digits}f}", f"{here / there:.2f}"]
        lines.append(f"| {name} | {reached[0]} / {reached[1]} of {len(sides['ours'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the configs, seed by seed, first here and then in DI-engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder with the packages ding and dizoo")
    parser.add_argument("--ding-python", help="Python in which DI-engine runs")
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS), help="run only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=600.0, help="longest time for a run")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file; runs in it are not repeated")
    parser.add_argument("--run", nargs=3, metavar=("FILE", "SEED", "MODE"), help="run our side in this process")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(ours(options.run[0], int(options.run[1]), options.run[2])))
        return
    if options.folder is None or options.ding_python is None:
        parser.error("--folder and --ding-python are needed")
    results = json.loads(options.out.read_text()) if options.out.is_file() else {}
    for name in options.only:
        mode = "serial_onpolicy" if name in ON_POLICY else "serial"
        file = str((options.folder / "dizoo" / CONFIGS[name]).resolve())
        here = [sys.executable, "-W", "ignore", "-m", "benchmarks.ding_race", "--run", file]
        there = [options.ding_python, "-W", "ignore", str(ROOT / "benchmarks/ding_side.py"), file]
        sides = results.setdefault(name, {"ours": {}, "ding": {}})
        for seed, (side, command) in itertools.product(map(str, options.seeds), (("ours", here), ("ding", there))):
            if seed not in sides[side]:
                sides[side][seed] = run([*command, seed, mode], options.seconds)
                print(name, seed, side, sides[side][seed], flush=True)
                options.out.write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
