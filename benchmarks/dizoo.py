"""Whether the configs of DI-engine's dizoo load and train here, unchanged.

    python -m pip install --no-deps --target FOLDER DI-engine
    python -m benchmarks.dizoo --folder FOLDER                        # all configs of the ten algorithms; half an hour
    python -m benchmarks.dizoo --folder FOLDER --only cartpole_dqn    # those whose path contains the text

Installs nothing; needs the extras ``atari``, ``box2d`` and ``mujoco`` for their envs. Every config runs in a separate
process, without evaluations, until ten updates have been made or ``--seconds`` have passed. Results go to
``docs/results/dizoo.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning_ding.di_engine.keys import KEYS

UPDATES = 10
POLICY_TYPE = re.compile(r"policy=dict\(\s*type='(\w+?)(_command)?'|policy=dict\(type=\"(\w+?)(_command)?\"")
OUT = Path("docs/results/dizoo.json")
Row = dict[str, Any]
"""``config``, ``policy``, ``loaded``, ``trained``, ``reason``, and the counters of the run."""


def configs(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files below ``dizoo`` with a config of one of our algorithms, and the algorithm."""
    for file in sorted((folder / "dizoo").rglob("config/**/*.py")):
        found = POLICY_TYPE.search(file.read_text())
        kind = (found[1] or found[3]) if found else None
        if kind in KEYS:
            yield file, kind


def run(file: Path) -> Row:
    """Load a config and train; return what happened."""
    from lightning_ding.di_engine.translate import translate
    from lightning_ding.entry.serial import train

    warnings.simplefilter("ignore")
    row: Row = {"loaded": False, "trained": False}
    try:
        translated = translate(str(file), max_train_iter=UPDATES)
        row |= {"loaded": True, "translated": len(translated.translated), "warnings": list(translated.warnings)}
        trainer = {**translated.trainer, "limit_val_batches": 0, "num_sanity_val_steps": 0}
        data = {**translated.data, "stop_value": None}
        began = time.perf_counter()
        policy = train(dataclasses.replace(translated, trainer=trainer, data=data))
        seconds = time.perf_counter() - began
    except Exception as error:  # whatever the config does is a result
        return row | {"reason": f"{type(error).__name__}: {error}"}
    progress = {"env_step": policy.progress.env_step, "train_iter": policy.progress.train_iter}
    return row | {"trained": policy.progress.train_iter > 0, "seconds": round(seconds, 1), **progress}


def run_apart(file: Path, folder: Path, seconds: float) -> Row:
    """Run a config in a separate process, in a folder that is removed afterwards."""
    command = [sys.executable, "-m", "benchmarks.dizoo", "--run", str(file)]
    root = Path(__file__).resolve().parents[1]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}{os.pathsep}{folder}"}
    with TemporaryDirectory() as scratch:
        try:
            done = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"loaded": True, "trained": False, "reason": f"no {UPDATES} updates in {seconds:g} s"}
    try:
        row: Row = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        row = {"loaded": False, "trained": False, "reason": f"ended with code {done.returncode}: {done.stderr[-300:]}"}
    return row


def table(rows: list[Row]) -> str:
    """Return the counts of each algorithm, and the configs that do not train, as Markdown."""
    lines = ["| algorithm | configs | loaded | trained |", "|---|---|---|---|"]
    for kind in KEYS:
        of_kind = [row for row in rows if row["policy"] == kind]
        counted = Counter(name for row in of_kind for name in ("loaded", "trained") if row[name])
        lines.append(f"| {kind} | {len(of_kind)} | {counted['loaded']} | {counted['trained']} |")
    trained = sum(row["trained"] for row in rows)
    lines.append(f"| all | {len(rows)} | {sum(row['loaded'] for row in rows)} | {trained} |")
    lines += ["", "| config | reason |", "|---|---|"]
    lines += [f"| {row['config']} | {row['reason']} |" for row in rows if not row["trained"]]
    return "\n".join(lines)


def main() -> None:
    """Run all configs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="folder with the packages ding and dizoo")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run the configs whose path contains one of these texts"
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="longest time for a config")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file")
    parser.add_argument("--run", type=Path, metavar="FILE", help="run one config in this process, print JSON")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run)))
        return
    if options.folder is None or not (options.folder / "dizoo").is_dir():
        parser.error(f"--folder must be a folder with dizoo in it, got {options.folder}")
    rows = []
    for file, kind in configs(options.folder.resolve()):
        name = file.relative_to(options.folder.resolve() / "dizoo").as_posix()
        if not any(text in name for text in options.only):
            continue
        rows.append({"config": name, "policy": kind} | run_apart(file, options.folder.resolve(), options.seconds))
        print(f"{name}: {'trained' if rows[-1]['trained'] else rows[-1]['reason'][:150]}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
