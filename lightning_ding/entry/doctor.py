"""The command ``doctor``: symptoms of a run that does not learn, with the evidence and where to read on.

    lightning-ding doctor runs/dqn/version_0              # a folder with metrics.csv or TensorBoard's files
    lightning-ding doctor runs/dqn/version_0/checkpoints/last.ckpt
    lightning-ding doctor runs/dqn --json > found.json    # the newest run in a folder

A running Trainer logs the same symptoms. A checkpoint contains what its run found until then; one without it, such as
``best.ckpt``, is judged by the metrics of its run, which are looked for in the folders above it. The config is read
from ``hparams.yaml`` or from a checkpoint; without it, symptoms that depend on the config are left out.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_ding.callbacks.diagnosis import PAGE, Diagnosis, Symptom
from lightning_ding.config import require
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.policy.load import read_checkpoint
from lightning_ding.utils.run_facts import Facts, facts_of

logger = logging.getLogger(__name__)
CSV, EVENTS, HPARAMS = "metrics.csv", "events.out.tfevents.*", "hparams.yaml"
LEVELS = 3
"""Folders above a checkpoint in which the metrics of its run are looked for."""
SIZES = {"scalars": 0, "images": 1, "histograms": 1, "tensors": 1}
"""Values of each kind that TensorBoard's reader keeps; 0 means all."""
HEALTHY = {
    "learn/explained_variance": "0 at the start, then above 0.5; below 0 the critic is worse than a constant",
    "learn/value_mean": "near learn/target_mean",
    "learn/value_std": "near learn/target_std",
    "learn/target_mean": "at most the largest reward / (1 - discount_factor)",
    "learn/target_std": "above 0",
    "learn/grad_norm": "of the same size for most of the run",
    "learn/clipped_gradients": "any; at 1 all the time the clipping sets the step",
    "learn/clip_fraction": "0.02 to 0.3",
    "learn/approx_kl": "0.003 to 0.05",
    "learn/entropy_share": "falls from 1 to between 0.1 and 0.9",
    "learn/action_std": "falls below 1",
    "learn/dead_units": "below 0.8",
    "learn/dead_units_critic": "below 0.8, or 1 where all states have the same value",
    "learn/saturated_actions": "below 0.95, or actions that change sides",
    "learn/action_spread": "above 0.05",
    "learn/obs_changing": "above 0",
    "learn/obs_mean": "-3 to 3, except for images",
    "learn/obs_std": "0.1 to 3, except for images",
    "learn/obs_abs_max": "below 100, except for images",
    "learn/reward_mean": "-10 to 10",
    "learn/reward_std": "above 0",
    "learn/reward_abs_max": "0.01 to 100",
    "learn/data_age": "at most the updates in which the buffer is filled once",
}
"""Usual values of the metrics in runs that learn."""


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line, or a run without metrics."""
    parser = CommandParser(prog="lightning-ding doctor", description=__doc__)
    parser.add_argument("run", help="folder of a run, or a checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(list(arguments)[1:])
    found = in_one_line(lambda: doctor(options.run))
    print(json.dumps(found) if options.json else as_text(found))


def doctor(run: str | Path) -> dict[str, Any]:
    """Return what the metrics of a run show.

    Args:
        run: Folder of a run, a folder above it, a file of metrics, or a checkpoint.

    Returns:
        ``source``, the file or folder that was read; ``rows``, the number of rows with metrics, or None for a
        checkpoint; ``has_config``; ``symptoms``, each with ``name``, ``evidence`` and ``page``; and ``metrics``, the
        newest value of each.

    Raises:
        ValueError: If there are no metrics.
    """
    path = Path(run)
    require(path.exists(), "run", "the folder of a run, or a checkpoint", str(run))
    saved = read_checkpoint(path) if path.suffix == ".ckpt" else None
    own = {} if saved is None else _diagnosis_in(saved)
    if own:
        return _report(str(path), None, True, own["found"], own["last_row"])
    folders = [path] if path.is_dir() else list(path.resolve().parents)[:LEVELS]
    source = _newest_metrics(folders, is_near=path.is_file())
    allowed = f"a run with {CSV} or the files of TensorBoard, or a checkpoint of a run that logged metrics"
    if source is None:
        raise ValueError(f"run must be {allowed}, got {str(run)!r}")
    facts = _facts(saved, source.parent)
    diagnosis = Diagnosis(facts or Facts())
    rows = _rows_of_csv(source) if source.name == CSV else _rows_of_events(source.parent)
    for row in rows:
        diagnosis.see(row)
    return _report(str(source), len(rows), facts is not None, diagnosis.found, diagnosis.last_row)


def _report(
    source: str, rows: int | None, has_config: bool, found: Mapping[str, str], metrics: Mapping[str, float]
) -> dict[str, Any]:
    symptoms = [{"name": name, "evidence": text, "page": Symptom(name, text).page} for name, text in found.items()]
    return {"source": source, "rows": rows, "has_config": has_config, "symptoms": symptoms, "metrics": dict(metrics)}


def _diagnosis_in(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the diagnosis in a checkpoint; empty if there is none, or it has seen no metrics."""
    states = (saved.get("callbacks") or {}).values()
    found = (state["diagnosis"] for state in states if isinstance(state, Mapping) and "diagnosis" in state)
    return next((one for one in found if one["last_row"]), {})


# ---------------------------------------------------------------------- reading files


def _newest_metrics(folders: Sequence[Path], is_near: bool) -> Path | None:
    """Return the newest file of metrics.

    Args:
        folders: Folders to look in, the nearest first.
        is_near: Look in the first folder that has metrics, and not in those below it.
    """
    for folder in folders:
        look = folder.glob if is_near else folder.rglob
        files = [*look(CSV), *look(EVENTS)]
        if files:
            return max(files, key=lambda file: (file.stat().st_mtime, file.name == CSV))
    return None


def _rows_of_csv(file: Path) -> list[dict[str, float]]:
    """Return the rows of a file; the last one of a run that was killed, or still runs, may be cut off and is left out.

    Raises:
        ValueError: If another row has something else than numbers.
    """
    with file.open(newline="") as lines:
        table = list(csv.DictReader(lines))
    rows = []
    for number, row in enumerate(table, 1):
        try:
            rows.append({name: float(text) for name, text in row.items() if text})
        except (ValueError, TypeError) as error:
            if number < len(table):
                raise ValueError(f"row {number} of {str(file)!r} cannot be read: {error}") from error
    return rows


def _rows_of_events(folder: Path) -> list[dict[str, float]]:
    """Return the scalars of TensorBoard's files in a folder, those of each step as a row."""
    reader = EventAccumulator(str(folder), size_guidance=SIZES)
    reader.Reload()
    rows: dict[int, dict[str, float]] = {}
    for tag in reader.Tags()["scalars"]:
        for event in reader.Scalars(tag):
            rows.setdefault(event.step, {"step": float(event.step)})[tag] = float(event.value)
    return [rows[step] for step in sorted(rows)]


def _facts(saved: Mapping[str, Any] | None, folder: Path) -> Facts | None:
    """Return the facts of a run from its checkpoint or from ``hparams.yaml``; None if neither can be read."""
    if saved is None:
        saved = next(_checkpoints(folder), None)
    if saved is not None:
        arguments = saved.get("datamodule_hyper_parameters") or {}
        return facts_of(saved["hyper_parameters"].get("cfg") or {}, arguments)
    file = folder / HPARAMS
    if not file.is_file():
        return None
    try:
        found = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        logger.warning("%s cannot be read: %s", file, " ".join(str(error).split()))
        return None
    return facts_of(found["cfg"], found) if isinstance(found.get("cfg"), Mapping) else None


def _checkpoints(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the contents of the checkpoints of a run, the newest first."""
    files = sorted(folder.rglob("*.ckpt"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files:
        try:
            yield read_checkpoint(file)
        except ValueError as error:
            logger.warning("skipping a checkpoint: %s", error)


# ---------------------------------------------------------------------- text


def as_text(found: Mapping[str, Any]) -> str:
    """Return what was found as lines to print."""
    rows = "" if found["rows"] is None else f", {found['rows']} rows"
    lines = [f"{found['source']}{rows}"]
    if not found["has_config"]:
        lines.append("the config of the run was not found, so only symptoms that do not depend on it are looked for")
    lines += [f"{one['name']}: {one['evidence']}\n    see {one['page']}" for one in found["symptoms"]]
    lines += [] if found["symptoms"] else [f"no symptom found; {PAGE} has the causes that metrics do not show"]
    metrics = {name: found["metrics"][name] for name in HEALTHY if name in found["metrics"]}
    width = max(map(len, metrics), default=0)
    lines += [f"{name:<{width}}  {value:>10.4g}  usual: {HEALTHY[name]}" for name, value in metrics.items()]
    return "\n".join(lines)
