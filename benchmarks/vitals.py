"""Record the metrics of published recipes by which a run is diagnosed, and the symptoms that were found, if any.

    python -m benchmarks.vitals --only dqn_cartpole                  # seed 0, the budget of its proof
    python -m benchmarks.vitals --only sac_hopper --budget 50000     # a part of it
    python -m benchmarks.vitals                                      # every proof, some hours

Each run goes through ``benchmarks.learn``, as the published curves do. The rows are stored in
``docs/results/vitals.json`` with four digits; ``tests/callbacks/test_diagnosis.py`` fails if a run with the whole
budget shows a symptom. A part of the budget says less: symptoms that need most of the budget then look at a policy that
is still new.
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
LEFT_OUT = ("time/", "buffer/", "learn/total_loss", "learn/policy_loss", "learn/value_loss", "learn/actor_loss")
"""Metrics, or starts of their names, that no symptom reads."""


class Recorder(Diagnosis):
    """A diagnosis that keeps its rows."""

    last: Recorder

    def see(self, row: Row) -> list[Symptom]:
        """Keep a row, and look at it."""
        Recorder.last = self
        kept = {name: float(f"{value:.4g}") for name, value in row.items() if not name.startswith(LEFT_OUT)}
        vars(self).setdefault("rows", []).append(kept)
        return super().see(row)


def record(name: str, seed: int, budget: int) -> dict[str, Any]:
    """Train a proof, and return its facts, rows and symptoms."""
    vars(metrics)["Diagnosis"] = Recorder
    began = time.perf_counter()
    run = learn.run_one(name, "ours", seed, budget)
    diagnosis = Recorder.last
    rows = vars(diagnosis)["rows"]
    names = sorted({key for row in rows for key in row})
    columns = {key: [row.get(key) for row in rows] for key in names}
    told = {"seed": seed, "budget": budget, "seconds": round(time.perf_counter() - began), "best": run["best"]}
    return {**told, "found": diagnosis.found, "facts": dataclasses.asdict(diagnosis.facts), "columns": columns}


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the proofs that are asked for, and store each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PROOFS), help="keys of benchmarks.proofs.PROOFS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, help="env steps; the proof's own without it")
    options = parser.parse_args(arguments)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name in options.only:
        found = record(name, options.seed, options.budget or PROOFS[name].budget)
        symptoms = found["found"] or "none"
        print(f"{name}: {found['seconds']} s, best {found['best']:.1f}, symptoms {symptoms}", flush=True)
        stored = json.loads(FILE.read_text()) if FILE.is_file() else {}
        lines = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in sorted({**stored, name: found}.items())]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
