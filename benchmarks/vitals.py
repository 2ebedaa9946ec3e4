"""Record the metrics of published recipes by which a run is diagnosed, and the symptoms that were found, if any.

    python -m benchmarks.vitals --only dqn_cartpole                  # seed 0, the budget of its proof
    python -m benchmarks.vitals --only sac_hopper --budget 50000     # a part of it
    python -m benchmarks.vitals --only dqn_cartpole --out FILE       # into another file
    python -m benchmarks.vitals                                      # every proof, some hours

Each run goes through ``benchmarks.learn``, as the published curves do. The rows are stored in
``docs/results/vitals.json`` with four digits; ``tests/callbacks/test_diagnosis.py`` fails if a run with the whole
budget shows a symptom. A part of the budget says less: symptoms that need most of the budget then look at a policy that
is still new.
A run writes what it has seen every ten seconds: if it is stopped, the file holds that part, with the env steps of its
last row as the budget and without a return.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import learn
from benchmarks.proofs import PROOFS
from lightning_ding.callbacks import metrics
from lightning_ding.callbacks.diagnosis import Diagnosis, Row, Symptom

FILE = Path(__file__).parents[1] / "docs" / "results" / "vitals.json"
EVERY = 10.0
"""Seconds between two writes of a run that has not ended."""
LEFT_OUT = ("time/", "buffer/", "learn/total_loss", "learn/policy_loss", "learn/value_loss", "learn/actor_loss")
"""Metrics, or starts of their names, that no symptom reads."""


class Recorder(Diagnosis):
    """A diagnosis that keeps its rows, and tells of them now and then."""

    last: Recorder
    tell: Any
    """A static method of one diagnosis, that writes what it has seen."""

    def see(self, row: Row) -> list[Symptom]:
        """Keep a row, and look at it."""
        Recorder.last = self
        kept = {name: float(f"{value:.4g}") for name, value in row.items() if not name.startswith(LEFT_OUT)}
        vars(self).setdefault("rows", []).append(kept)
        new = super().see(row)
        if time.perf_counter() - vars(self).setdefault("told", time.perf_counter()) > EVERY:
            vars(self)["told"] = time.perf_counter()
            Recorder.tell(self)
        return new


def record(name: str, seed: int, budget: int, file: Path) -> None:
    """Train a proof, and store its facts, rows and symptoms: a part of them every few seconds, and all at the end.

    Args:
        name: A key of ``PROOFS``.
        seed: Seed of the run.
        budget: Env steps.
        file: JSON file of the results; other proofs in it are kept.
    """
    vars(metrics)["Diagnosis"] = Recorder
    began = time.perf_counter()

    def write(diagnosis: Recorder, reached: int, best: float | None) -> None:
        told = {"seed": seed, "budget": reached, "seconds": round(time.perf_counter() - began), "best": best}
        save(name, {**told, **contents(diagnosis)}, file)

    Recorder.tell = staticmethod(lambda diagnosis: write(diagnosis, int(vars(diagnosis)["rows"][-1]["step"]), None))
    run = learn.run_one(name, "ours", seed, budget)
    write(Recorder.last, budget, run["best"])


def contents(diagnosis: Recorder) -> dict[str, Any]:
    """Return the symptoms, the facts and the columns of a diagnosis."""
    rows = vars(diagnosis)["rows"]
    names = sorted({key for row in rows for key in row})
    columns = {key: [row.get(key) for row in rows] for key in names}
    return {"found": diagnosis.found, "facts": dataclasses.asdict(diagnosis.facts), "columns": columns}


def save(name: str, found: dict[str, Any], file: Path) -> None:
    """Write the record of a proof to a file in one step, so that a run that is stopped leaves a whole file."""
    stored = json.loads(file.read_text()) if file.is_file() else {}
    lines = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in sorted({**stored, name: found}.items())]
    written = file.with_name(f"{file.name}.new")
    written.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    written.replace(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the proofs that are asked for, and store each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PROOFS), help="keys of benchmarks.proofs.PROOFS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, help="env steps; the proof's own without it")
    parser.add_argument("--out", type=Path, default=FILE, help="JSON file of the results")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name in options.only:
        record(name, options.seed, options.budget or PROOFS[name].budget, options.out)
        found = json.loads(options.out.read_text())[name]
        symptoms = found["found"] or "none"
        print(f"{name}: {found['seconds']} s, best {found['best']:.1f}, symptoms {symptoms}", flush=True)


if __name__ == "__main__":
    main()
