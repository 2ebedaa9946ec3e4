"""How many of the configs of DI-engine's dizoo load and train here, unchanged.

    git clone https://github.com/opendilab/DI-engine FOLDER             # the package on PyPI lacks a quarter of them
    python -m benchmarks.dizoo --folder FOLDER                        # all pairs of configs; an hour or two
    python -m benchmarks.dizoo --folder FOLDER --all                  # translates them only; two minutes
    python -m benchmarks.dizoo --folder FOLDER --only cartpole_dqn    # those whose path contains the text
    python -m benchmarks.dizoo --folder FOLDER --without atari        # those whose path does not; minutes

Installs nothing; needs the extras ``atari``, ``box2d`` and ``mujoco`` for their envs. Every file with a ``main_config``
and a ``create_config`` runs in a fork, without evaluations and with its envs in the same process, until ten updates
have been made or ``--seconds`` have passed. Prints the counts; ``--out`` names a JSON file for the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lightning_ding.di_engine.check import RUNS, Checked, cause_of, config_files, one_line, summary
from lightning_ding.di_engine.configs import entry_of, policy_type, read_pair
from lightning_ding.di_engine.serial import train
from lightning_ding.di_engine.translate import translate

UPDATES = 10
Row = dict[str, Any]
"""``config``, ``policy``, ``loaded``, ``trained``, ``reason``, ``cause``, and the counters of the run."""


def run(file: Path, trains: bool) -> Row:
    """Load a config, train, and return what happened."""
    warnings.simplefilter("ignore")
    row: Row = {"policy": "", "loaded": False, "trained": False}
    try:
        pair = read_pair(str(file))
        row["policy"] = policy_type(*pair)
        translated = translate(pair, max_train_iter=UPDATES, entry=entry_of(file))
        translated.check_needs()
        row |= {"loaded": True, "translated": len(translated.translated), "warnings": list(translated.warnings)}
        if not trains:
            return row
        trainer = {**translated.trainer, "limit_val_batches": 0, "num_sanity_val_steps": 0}
        data = {**translated.data, "stop_value": None, "mode": "sync"}
        data.pop("env_timeout", None)  # of envs in other processes
        began = time.perf_counter()
        policy = train(dataclasses.replace(translated, trainer=trainer, data=data))
        seconds = time.perf_counter() - began
    except BaseException as error:  # whatever the config does is a result, also sys.exit
        return row | {"reason": one_line(error).replace(str(Path.home()), "~"), "cause": cause_of(error)}
    progress = {"env_step": policy.progress.env_step, "train_iter": policy.progress.train_iter}
    return row | {"trained": policy.progress.train_iter > 0, "seconds": round(seconds, 1), **progress}


def run_apart(file: Path, seconds: float, trains: bool) -> Row:
    """Run a config in a fork, in a folder that is removed afterwards."""
    here, there = multiprocessing.Pipe(duplex=False)
    with TemporaryDirectory() as scratch:
        process = multiprocessing.get_context("fork").Process(target=_child, args=(file, trains, Path(scratch), there))
        process.start()
        there.close()
        row = {
            "policy": "",
            "loaded": True,
            "trained": False,
            "reason": f"no {UPDATES} updates in {seconds:g} s",
            "cause": "time",
        }
        if here.poll(seconds):
            try:
                row = here.recv()
            except EOFError:
                row |= {"loaded": False, "reason": "the process ended", "cause": "other"}
        process.kill()
        process.join()
    return row


def _child(file: Path, trains: bool, scratch: Path, answer: Connection) -> None:
    os.chdir(scratch)
    silent = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(silent, descriptor)
    answer.send(run(file, trains))


def table(rows: list[Row], trains: bool) -> str:
    """Return the counts of each algorithm, and the configs that do not train, as Markdown."""
    lines = ["| algorithm | configs | load | train | the others |", "|---|---|---|---|---|"]
    kinds = sorted({row["policy"] for row in rows}, key=lambda kind: (not _count(rows, kind, "loaded"), kind))
    for kind in (*kinds, None):
        of_kind = [row for row in rows if kind in (None, row["policy"])]
        why = Counter(row["cause"] for row in of_kind if not row["trained"] and "cause" in row).most_common()
        counts = [str(_count(rows, kind, name)) for name in ("loaded", "trained")]
        lines.append(
            f"| {'all' if kind is None else kind or 'not read'} | {len(of_kind)} | {' | '.join(counts)} | "
            f"{', '.join(f'{number} {name}' for name, number in why)} |"
        )
    lines += ["", "| config | reason |", "|---|---|"]
    lines += [f"| {row['config']} | {' '.join(row['reason'].split())[:200]} |" for row in rows if "reason" in row]
    checked = [Checked(Path(row["config"]), row["policy"], row.get("cause", RUNS), "") for row in rows]
    trained = f"{_count(rows, None, 'trained')} train; " if trains else ""
    return "\n".join([*lines, "", trained + summary(checked)])


def _count(rows: list[Row], kind: str | None, name: str) -> int:
    return sum(row[name] for row in rows if kind in (None, row["policy"]))


def main() -> None:
    """Run all configs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder with the packages ding and dizoo")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="run the configs whose path contains one of these texts"
    )
    parser.add_argument("--without", nargs="+", default=[], help="leave out those with one of these texts")
    parser.add_argument("--all", action="store_true", help="translate the configs, and train none")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time for a config")
    parser.add_argument("--out", type=Path, help="JSON file, such as docs/results/dizoo_all.json for --all")
    options = parser.parse_args()
    if not (options.folder / "dizoo").is_dir():
        parser.error(f"--folder must be a folder with dizoo in it, got {options.folder}")
    torch.set_num_threads(1)
    folder = options.folder.resolve()
    sys.path.append(str(folder))  # a config may import its envs
    rows = []
    for file in config_files([folder / "dizoo"]):
        name = file.relative_to(folder / "dizoo").as_posix()
        if not any(text in name for text in options.only) or any(text in name for text in options.without):
            continue
        rows.append({"config": name} | run_apart(file, options.seconds, not options.all))
        is_done = rows[-1]["loaded" if options.all else "trained"]
        print(f"{name}: {'ok' if is_done else rows[-1].get('reason', 'no update')[:150]}", flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows, not options.all))


if __name__ == "__main__":
    main()
